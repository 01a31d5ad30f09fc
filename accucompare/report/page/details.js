// All that is known of one row, and the links that lead to rows.

const PLACE = ["role", "path", "call", "step", "rank"];
const BOTH = ["shape", "dtype", "L2", "min", "max", "mean", "NaN", "Inf", "there"];
const SAID_APART = new Set(["#", "layer", "type", ...PLACE, "reason", "status", "detail", "candidate layer", "nearest name", "source line"]);

// A row's place in words: `encoder.0.fc1 call 1 output.0 (step 2)`.
function placeOf(table, row) {
  const [role, path, call, step, rank] = PLACE.map((title) => table.value(title, row));
  const several = (title) => table.column(title).numbers.some((number) => number > 0);
  const where = [...(several("step") && step !== null ? [`step ${step}`] : []), ...(several("rank") && rank !== null ? [`rank ${rank}`] : [])];
  return [table.value("layer", row), call ? `call ${call}` : "", path ? `${role}.${path}` : role, where.length ? `(${where.join(", ")})` : ""].filter(Boolean).join(" ");
}

// A row's link fragment, as page_comparison.anchor writes it.
function anchorOf(table, row) {
  const parts = [encodeURIComponent(table.value("layer", row))];
  for (const title of PLACE) {
    const value = table.value(title, row);
    if (value) parts.push(`${title}=${encodeURIComponent(value)}`);
  }
  return parts.join(";");
}

// The row of a link fragment: at its place, or else its layer's first failing row, or its layer's first; -1 for none.
function rowOf(table, anchor) {
  let layer;
  let wanted;
  try {
    const [name, ...rest] = anchor.split(";");
    layer = decodeURIComponent(name);
    wanted = rest.map((part) => [part.slice(0, part.indexOf("=")), decodeURIComponent(part.slice(part.indexOf("=") + 1))]);
  } catch {
    return -1; // not one of our links
  }
  const column = table.column("layer");
  const index = column.words.indexOf(layer);
  if (index < 0) return -1;
  const given = new Map(wanted);
  const isIt = (row) => PLACE.every((title) => String(table.value(title, row) || "") === (given.get(title) ?? ""));
  const status = table.column("status");
  const failing = status.words.indexOf("fail");
  let first = -1;
  let fails = -1;
  for (let row = 0; row < table.rows; row++) {
    if (column.indices[row] !== index) continue;
    if (given.size && isIt(row)) return row;
    if (first < 0) first = row;
    if (fails < 0 && status.indices[row] === failing) fails = row;
  }
  return fails >= 0 ? fails : first;
}

function showDetails(place, table, row, meanings, close) {
  const value = (title) => shown(table.column(title) ?? {}, table.value(title, row));
  const pair = (name, text) => (text ? make("div", {}, make("dt", {}, name), make("dd", { dir: "auto" }, text)) : null);
  const reason = value("reason");
  const label = make("span", { className: "reason" }, reason);
  label.dataset.reason = reason;
  const list = (columns) => make("dl", { className: "facts" }, ...columns.map((column) => pair(column.title, shown(column, column.value(row)))).filter(Boolean));
  const sides = new Set(BOTH.flatMap((what) => [`golden ${what}`, `candidate ${what}`]));
  const rest = table.columns.filter((column) => !SAID_APART.has(column.title) && !sides.has(column.title));
  const groups = [
    ["Difference", rest.filter((column) => ["difference", "not finite"].includes(column.group))],
    ["How it was judged", rest.filter((column) => ["judgement", "baseline"].includes(column.group))],
    ["More", rest.filter((column) => !["difference", "not finite", "judgement", "baseline"].includes(column.group))],
  ];
  const other = value("candidate layer");
  const lines = BOTH.map((what) => [what === "there" ? "where furthest" : what, value(`golden ${what}`), value(`candidate ${what}`)]).filter(([, golden, candidate]) => golden || candidate);
  place.replaceChildren(
    make("button", { type: "button", className: "close", ariaLabel: "Close", onclick: close }, "×"),
    make("h3", { dir: "auto" }, placeOf(table, row)),
    make("p", {}, value("type"), " ", label, reason in meanings ? ` ${meanings[reason]}` : ""),
    ...[value("detail"), other && other !== "same" ? `in the candidate: ${other}` : "", value("nearest name") && `nearest name: ${value("nearest name")}`]
      .filter(Boolean)
      .map((text) => make("p", { dir: "auto" }, text)),
    value("source line") ? make("p", {}, "source line ", make("code", { dir: "ltr" }, value("source line"))) : "",
    make(
      "table",
      { className: "plain sides" },
      make("tr", {}, make("th"), make("th", {}, "golden"), make("th", {}, "candidate")),
      ...lines.map(([what, golden, candidate]) => make("tr", {}, make("th", {}, what), make("td", {}, golden), make("td", {}, candidate))),
    ),
    ...groups.filter(([, columns]) => columns.some((column) => shown(column, column.value(row)))).flatMap(([title, columns]) => [make("h4", {}, title), list(columns)]),
    make("p", {}, make("a", { href: `#${anchorOf(table, row)}` }, "link to this row")),
  );
  place.hidden = false;
}
