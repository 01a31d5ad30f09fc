// The graph: calls as nested boxes with the tensors that flowed between them. Each open box is laid out by dagre on its own,
// and holds at most MOST_IN_BOX boxes: more are put together in execution order. At first only what an error went through is
// drawn, folded but for the way to where it was made.

const MOST_IN_BOX = 32;
const MOST_OPENED = 400; // boxes that "open all" draws at most
const MOST_TOLD = 12; // boxes that the way names
const LINE = { title: 15, pad: 12, letter: 7.1, high: 38, head: 26 };
const SVG = "http://www.w3.org/2000/svg";
const INSIDE = "#1c2530"; // letters in boxes, whose colours are light in both themes
const STOPS = [[246, 248, 250], [255, 235, 156], [240, 128, 110]]; // within limits; near; far over
const GREYED_BOX = "#e2e2e2";
const MADE_BOX = "#d64545";

class Graph {
  // options: go(row) shows a row of the table
  constructor(place, head, options) {
    Object.assign(this, { place, options, about: head.graph, scale: 1 });
    this.read(head.tables.calls, head.tables.flows);
    this.whole = !this.about.starts.length;
    this.start = this.about.starts[0] ?? null;
    this.build();
    this.restart();
    onTheme(() => this.draw());
  }

  read(calls, flows) {
    const numbers = (table, title) => table.column(title).numbers;
    const around = numbers(calls, "around");
    const texts = ["label", "layer", "type", "reason"].map((title) => calls.column(title));
    const [pass, failing, made, error, limit, place] = ["pass", "failing", "made", "error", "x limit", "place"].map((title) => numbers(calls, title));
    this.boxes = Array.from({ length: calls.rows }, (_, at) => {
      const [label, layer, type, reason] = texts.map((column) => column.words[column.indices[at]]);
      return { at, label, layer, type, reason, pass: pass[at], around: Number.isNaN(around[at]) ? null : around[at], failing: failing[at], made: made[at] === 1, error: error[at], limit: limit[at], place: place[at], calls: [] };
    });
    for (const box of this.boxes) if (box.around !== null) this.boxes[box.around].calls.push(box);
    const [source, target, error2, fails, own] = ["source", "target", "error", "fails", "own"].map((title) => numbers(flows, title));
    this.flows = Array.from({ length: flows.rows }, (_, at) => ({ source: this.boxes[source[at]], target: this.boxes[target[at]], error: error2[at], fails: fails[at] === 1, own: own[at] === 1 }));
    for (const box of this.boxes) box.flows = [];
    for (const flow of this.flows) flow.source.flows.push(flow);
    this.pass = (this.boxes[this.about.starts[0]?.box] ?? this.boxes[0]).pass;
  }

  build() {
    const button = (text, title, onclick) => make("button", { type: "button", title, onclick }, text);
    this.passes = make("select", { ariaLabel: "Part of the run", hidden: this.about.passes.length < 2 }, ...this.about.passes.map((each, at) => make("option", { value: String(at), selected: at === this.pass }, `step ${each.step}, rank ${each.rank}, ${each.stage}`)));
    this.passes.addEventListener("change", () => this.show(Number(this.passes.value)));
    this.ways = make("button", { type: "button", id: "graph-way", onclick: () => this.turn() });
    this.told = make("p", { id: "graph-told" });
    this.scroll = make("div", { className: "graph", tabIndex: 0, role: "group", ariaLabel: "Graph of the calls" });
    this.scroll.addEventListener("wheel", (event) => event.ctrlKey && (event.preventDefault(), this.zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2)), { passive: false });
    const tools = make("div", { className: "tools" }, this.passes, this.ways, button("fold all", "Fold every box", () => this.fold()), button("open all", "Open boxes, as far as they can be drawn", () => this.openAll()), button("−", "Smaller", () => this.zoom(1 / 1.2)), button("+", "Larger", () => this.zoom(1.2)), button("save as SVG", "Save the drawing as a file, for a report", () => this.save()));
    this.place.replaceChildren(tools, this.told, this.scroll);
  }

  show(pass) {
    this.pass = pass;
    this.start = this.about.starts.find((start) => this.boxes[start.box].pass === pass) ?? this.firstFailing(pass);
    this.whole = !this.start;
    this.restart();
  }

  // Where a pass without a culprit fails first.
  firstFailing(pass) {
    const box = this.boxes.find((each) => each.pass === pass && each.failing && !each.calls.length);
    return box ? { box: box.at, enters: true, culprit: false } : null;
  }

  // Marks where the way begins; glue before a call made what it was given wrong.
  startWords() {
    if (!this.start.culprit) return " ◀ first";
    return this.start.enters ? " ◀ culprit: the code before it" : " ◀ culprit";
  }

  // Draws only what an error went through, or everything.
  turn() {
    this.whole = !this.whole || !this.start;
    this.restart();
  }

  restart() {
    this.reached = this.start ? this.reach(this.start) : null;
    this.ways.hidden = !this.start;
    this.ways.textContent = this.whole ? "only what the error went through" : "the whole model";
    const outermost = this.boxes.filter((box) => box.pass === this.pass && box.around === null);
    this.root = { label: "", parent: null, open: true, id: "root", outer: true };
    this.nodeOf = new Map();
    this.root.inside = this.gathered(outermost, this.root);
    if (this.root.inside.length === 1) this.root.inside[0].open = this.root.inside[0].inside.length > 0;
    if (this.start) this.reveal(this.nodeOf.get(this.boxes[this.start.box]));
    this.chosen = this.start ? this.boxes[this.start.box] : null;
    this.tell();
    this.draw();
    this.showStart();
  }

  // Not by scrollIntoView, which moves the page, too.
  showStart() {
    const start = this.scroll.querySelector(".start")?.getBoundingClientRect();
    if (!start) return;
    const view = this.scroll.getBoundingClientRect();
    this.scroll.scrollLeft += start.left - view.left + (start.width - view.width) / 2;
    this.scroll.scrollTop += start.top - view.top + (start.height - view.height) / 2;
  }

  reveal(node) {
    for (let each = node?.parent; each; each = each.parent) each.open = true;
  }

  // Nodes of some calls, put together where they are too many.
  gathered(calls, parent) {
    const shownCalls = this.whole ? calls : calls.filter((box) => this.reached.boxes.has(box));
    let nodes = shownCalls.map((box) => {
      const node = { box, label: box.label, parent, open: false, id: `call${box.at}` };
      this.nodeOf.set(box, node);
      node.inside = this.gathered(box.calls, node);
      return node;
    });
    while (nodes.length > MOST_IN_BOX) {
      const groups = [];
      for (let at = 0; at < nodes.length; at += MOST_IN_BOX) groups.push(this.group(nodes.slice(at, at + MOST_IN_BOX), parent));
      nodes = groups;
    }
    return nodes;
  }

  group(inside, parent) {
    if (inside.length === 1) return inside[0];
    const ends = [inside[0], inside.at(-1)].map((node) => node.label.split(" … "));
    const node = { label: `${ends[0][0]} … ${ends[1].at(-1)}`, parent, open: false, inside, id: `from${inside[0].id}` };
    for (const each of inside) each.parent = node;
    return node;
  }

  // The boxes that a value which starts here flows into, whatever was made of it, with those around them; and the flows. A
  // value enters a box and leaves it on two sides, which are two places.
  reach(start) {
    const [boxes, flows] = [new Set(), new Set()];
    const seen = { in: new Set(), out: new Set() };
    const first = this.boxes[start.box];
    const queue = [[first, start.enters || !first.calls.length ? "in" : "out"]];
    for (const [box, side] of queue) {
      if (seen[side].has(box)) continue;
      seen[side].add(box);
      for (let each = box; each; each = this.boxes[each.around]) boxes.add(each);
      const leaf = !box.calls.length;
      for (const flow of box.flows) {
        const inner = this.holds(box, flow.target); // from its entrance to what is inside
        if (!leaf && inner !== (side === "in")) continue;
        flows.add(flow);
        queue.push([flow.target, this.holds(flow.target, box) ? "out" : "in"]);
      }
    }
    return { boxes, flows };
  }

  holds(box, other) {
    for (let each = this.boxes[other.around]; each; each = this.boxes[each.around]) if (each === box) return true;
    return false;
  }

  // What the error of the chosen box went through, in words: the boxes beside it and beside those around it.
  tell() {
    const box = this.chosen;
    if (!box) {
      return void this.told.replaceChildren(this.start ? "" : "Nothing fails here. A click on a box shows what its value went through.");
    }
    const way = this.way(box);
    const parts = way.slice(0, MOST_TOLD).flatMap((each, at) => [at ? " → " : "", make("b", { dir: "auto", className: each.failing ? "bad" : "" }, `${each.layer}${at || !each.made ? "" : " (made here)"}`), ` ${shown({ format: "scientific" }, Number.isNaN(each.error) ? null : each.error)}`]);
    const row = Number.isNaN(box.place) ? null : make("button", { type: "button", className: "link", onclick: () => this.options.go(box.place) }, "its rows");
    const only = make("button", { type: "button", className: "link", id: "graph-only", onclick: () => this.follow(box) }, "draw only this way");
    const more = way.length > MOST_TOLD ? ` → … ${way.length - MOST_TOLD} more` : "";
    const fed = this.about.fed ? "Each call was given golden's values, so errors do not pass on; this is where its value goes: " : "What its error went through: ";
    this.told.replaceChildren(fed, ...parts, more, ". ", ...(row ? [row, " · "] : []), only);
    return undefined;
  }

  way(box) {
    const reached = this.reach({ box: box.at, enters: false });
    const around = new Set();
    for (let each = this.boxes[box.around]; each; each = this.boxes[each.around]) around.add(each);
    const beside = [...reached.boxes].filter((each) => each.pass === box.pass && each !== box && !around.has(each) && (each.around === null || around.has(this.boxes[each.around])));
    const outermost = [...around].at(-1);
    return [box, ...beside.sort((one, other) => one.at - other.at), ...(outermost && outermost !== box ? [outermost] : [])];
  }

  // The box of a row of the table; undefined where it is not drawn.
  boxOf(row, table, phases) {
    const [role, step, rank, call] = ["role", "step", "rank", "call"].map((title) => table.value(title, row));
    const stage = phases.find((phase) => phase.roles.includes(role))?.title;
    const pass = this.about.passes.findIndex((each) => each.step === step && each.rank === rank && each.stage === stage);
    const name = `${table.value("layer", row)}${call ? ` call ${call}` : ""}`;
    return pass < 0 ? undefined : this.boxes.find((box) => box.pass === pass && box.layer === name);
  }

  follow(box) {
    this.pass = box.pass;
    this.passes.value = String(box.pass);
    this.start = { box: box.at, enters: false, culprit: box.made };
    this.whole = false;
    this.restart();
  }

  choose(node) {
    if (!node.box) return this.toggle(node);
    this.chosen = this.chosen === node.box ? null : node.box;
    this.tell();
    return this.draw();
  }

  toggle(node) {
    if (!node.inside.length) return;
    node.open = !node.open;
    this.draw(node.id);
  }

  fold() {
    const close = (node) => node.inside.forEach((each) => ((each.open = false), close(each)));
    close(this.root);
    this.draw();
  }

  openAll() {
    let left = MOST_OPENED;
    for (const queue = [this.root]; queue.length && left > 0; ) {
      const node = queue.shift();
      if (!node.inside.length) continue;
      left -= node.inside.length;
      node.open = left > 0 || node === this.root;
      queue.push(...node.inside);
    }
    this.draw();
  }

  zoom(factor) {
    this.scale = Math.min(3, Math.max(0.1, this.scale * factor));
    this.size();
  }

  size() {
    const svg = this.scroll.firstElementChild;
    svg.setAttribute("width", Math.ceil(this.wide * this.scale));
    svg.setAttribute("height", Math.ceil(this.high * this.scale));
  }

  // The nodes that are drawn, from the outermost in: each box's own, unless it is folded.
  chain(box) {
    const nodes = [];
    for (let node = this.nodeOf.get(box); node && !node.outer; node = node.parent) nodes.push(node);
    nodes.reverse();
    const folded = nodes.findIndex((node) => !node.open);
    return folded < 0 ? nodes : nodes.slice(0, folded + 1);
  }

  // The edges within each open box, by the node of that box: flows between what is drawn in it, or over its border.
  edges() {
    const found = new Map();
    const add = (node, from, to, flow) => {
      if (from === to) return;
      if (!found.has(node)) found.set(node, new Map());
      const own = found.get(node);
      const key = `${from.id ?? from} ${to.id ?? to}`;
      const edge = own.get(key) ?? { from, to, error: NaN, fails: false, own: true, count: 0, way: false };
      if (!(edge.error >= flow.error)) edge.error = flow.error;
      edge.fails ||= flow.fails;
      edge.own &&= flow.own;
      edge.way ||= Boolean(this.lit?.flows.has(flow));
      edge.count++;
      own.set(key, edge);
    };
    for (const flow of this.flows) {
      if (flow.source.pass !== this.pass || !this.nodeOf.has(flow.source) || !this.nodeOf.has(flow.target)) continue;
      if (!this.whole && !this.reached.flows.has(flow)) continue;
      const [one, other] = [this.chain(flow.source), this.chain(flow.target)];
      let depth = 0;
      while (depth < one.length && one[depth] === other[depth]) depth++;
      if (depth && depth === one.length && depth === other.length) continue; // both in one folded box
      const common = depth ? one[depth - 1] : this.root;
      const from = one[depth] ?? "in";
      const to = other[depth] ?? "out";
      add(common, from, to, flow);
      for (let at = depth; at + 1 < one.length; at++) add(one[at], one[at + 1], "out", flow);
      for (let at = depth; at + 1 < other.length; at++) add(other[at], "in", other[at + 1], flow);
    }
    return found;
  }

  // Sizes and places of what is in a node, from the innermost out.
  lay(node, edges) {
    const text = Math.max(node.label.length + (this.start && node.box && this.boxes[this.start.box] === node.box ? this.startWords().length : 0), this.second(node).length * 0.9) * LINE.letter + 2 * LINE.pad + (node.inside.length ? 16 : 0);
    if (!node.open || !node.inside.length) return Object.assign(node, { wide: Math.min(Math.max(text, 70), 320), high: LINE.high });
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 24, edgesep: 8, marginx: LINE.pad, marginy: LINE.pad });
    for (const each of node.inside) {
      this.lay(each, edges);
      graph.setNode(each.id, { width: each.wide, height: each.high });
    }
    const own = [...(edges.get(node)?.values() ?? [])];
    for (const port of ["in", "out"]) if (own.some((edge) => edge.from === port || edge.to === port)) graph.setNode(port, { width: 1, height: 1 });
    for (const edge of own) graph.setEdge(edge.from.id ?? edge.from, edge.to.id ?? edge.to, {});
    dagre.layout(graph);
    node.edges = own.map((edge) => ({ ...edge, points: graph.edge(edge.from.id ?? edge.from, edge.to.id ?? edge.to).points }));
    let [left, right] = [LINE.pad, graph.graph().width - LINE.pad]; // dagre counts boxes only: edges may lie beside them
    for (const edge of node.edges) for (const point of edge.points) [left, right] = [Math.min(left, point.x), Math.max(right, point.x)];
    const aside = LINE.pad - left;
    for (const edge of node.edges) {
      edge.points = edge.points.map((point) => ({ x: point.x + aside, y: point.y }));
      if (edge.from === "in") edge.points[0].y = -4; // at the border, which is no node of dagre's
      if (edge.to === "out") edge.points.at(-1).y = graph.graph().height;
    }
    for (const each of node.inside) {
      const at = graph.node(each.id);
      Object.assign(each, { x: at.x - each.wide / 2 + aside, y: at.y - each.high / 2 + LINE.head });
    }
    return Object.assign(node, { wide: Math.max(right + aside + LINE.pad, Math.min(text, 320)), high: graph.graph().height + LINE.head });
  }

  // The second line of a box: its class, its error, how many calls it holds.
  second(node) {
    const { box } = node;
    if (!box) return `${this.held(node).toLocaleString("en-US")} calls`;
    const error = Number.isNaN(box.error) ? box.reason : shown({ format: "scientific" }, box.error);
    return [box.type, error, box.made ? box.reason : ""].filter(Boolean).join(" · ");
  }

  held(node) {
    return node.inside.reduce((sum, each) => sum + (each.box ? 1 : this.held(each)), 0);
  }

  // The worst of the boxes in a node.
  worst(node) {
    if (node.box && !node.inside.length) return node.box;
    if (node.worstBox === undefined) {
      const all = [...(node.box ? [node.box] : []), ...node.inside.map((each) => this.worst(each))];
      const size = (box) => (box.failing ? 1e6 : 0) + (box.limit > 0 ? Math.min(box.limit, 1e5) : 0);
      node.worstBox = all.reduce((most, box) => (size(box) > size(most) ? box : most), all[0]);
    }
    return node.worstBox;
  }

  fill(node) {
    const box = node.open ? node.box ?? this.worst(node) : this.worst(node);
    if (!box) return "#ffffff";
    if (box.made) return MADE_BOX;
    if (!box.failing) return Number.isNaN(box.limit) && Number.isNaN(box.error) ? GREYED_BOX : blend(box.limit > 0 ? 0.5 * Math.min(box.limit, 1) : 0);
    return blend(0.6 + 0.4 * Math.min(1, box.limit > 1 ? Math.log10(box.limit) / 3 : 1));
  }

  draw(focus) {
    this.lit = this.chosen ? this.reach({ box: this.chosen.at, enters: this.start?.box === this.chosen.at && this.start.enters }) : null;
    this.drawnCount = 0;
    const svg = this.drawing(color("ink"), color("card"));
    this.scroll.replaceChildren(svg);
    this.size();
    if (focus) this.scroll.querySelector(`[data-id="${focus}"]`)?.focus({ preventScroll: true });
  }

  drawing(ink, ground) {
    this.lay(this.root, this.edges());
    [this.wide, this.high] = [this.root.wide, this.root.high];
    const svg = shape("svg", { xmlns: SVG, viewBox: `0 0 ${this.wide} ${this.high}`, "font-family": "system-ui, sans-serif" });
    svg.append(shape("rect", { width: this.wide, height: this.high, fill: ground }));
    const marker = (id, fill) => {
      const each = shape("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 9, markerHeight: 9, markerUnits: "userSpaceOnUse", orient: "auto" });
      each.append(shape("path", { d: "M0 0 L8 4 L0 8 z", fill }));
      return each;
    };
    const defs = shape("defs");
    defs.append(marker("arrow", "#7a8794"), marker("arrow-fails", MADE_BOX));
    svg.append(defs);
    this.paint(this.root, svg, 0, 0, ink);
    return svg;
  }

  paint(node, into, x, y, ink) {
    for (const each of node.inside ?? []) {
      if (!node.open) break;
      this.box(each, into, x + each.x, y + each.y);
      this.paint(each, into, x + each.x, y + each.y, ink);
    }
    for (const edge of (node.open && node.edges) || []) {
      const stroke = edge.fails ? MADE_BOX : "#7a8794";
      const points = edge.points.map((point) => `${(x + point.x).toFixed(1)} ${(y + point.y + LINE.head).toFixed(1)}`);
      const line = shape("path", { d: `M${points.join(" L")}`, fill: "none", stroke, "stroke-width": edge.way ? 3 : 1.2, "stroke-linejoin": "round", "marker-end": `url(#${edge.fails ? "arrow-fails" : "arrow"})`, class: "flow" });
      if (edge.own) line.setAttribute("stroke-dasharray", "4 3");
      const about = edge.own ? "made by the module's own code between its calls" : `${edge.count} tensor${edge.count === 1 ? "" : "s"}`;
      line.append(titled(`${about}${Number.isNaN(edge.error) ? "" : `, relative L2 ${shown({ format: "scientific" }, edge.error)}`}`));
      into.append(line);
    }
  }

  box(node, into, x, y) {
    this.drawnCount++;
    const { box } = node;
    const chosen = box && box === this.chosen;
    const lit = box && this.lit?.boxes.has(box);
    const start = box && this.start && this.boxes[this.start.box] === box;
    const group = shape("g", { class: `box${start ? " start" : ""}${chosen ? " chosen" : ""}${box?.failing ? " fails" : ""}`, tabindex: 0, role: "button", "data-id": node.id, "aria-label": `${box?.layer ?? node.label}, ${this.second(node)}` });
    if (node.inside.length) group.setAttribute("aria-expanded", String(node.open));
    const border = chosen ? "#1b5faa" : start ? "#8c1515" : lit && box.failing ? MADE_BOX : "#9aa5b1";
    const rect = shape("rect", { x, y, width: node.wide, height: node.high, rx: 5, fill: node.open ? "#ffffff" : this.fill(node), "fill-opacity": node.open ? 0.05 : 1, stroke: border, "stroke-width": chosen || start ? 3 : lit ? 2 : 1 });
    const head = node.open ? shape("rect", { x, y, width: node.wide, height: LINE.head - 4, rx: 5, fill: this.fill(node) }) : null;
    const letters = (text, dy, more) => {
      const room = Math.floor((node.wide - 2 * LINE.pad) / (more["font-weight"] ? LINE.letter : 0.86 * LINE.letter)) + 1;
      const each = shape("text", { x: x + LINE.pad, y: y + dy, "font-size": 11, fill: INSIDE, ...more });
      each.textContent = text.length > room ? `${text.slice(0, room - 1)}…` : text;
      return each;
    };
    const mark = node.inside.length ? (node.open ? "▾ " : "▸ ") : "";
    const whole = `${box?.layer ?? node.label}\n${this.second(node)}${box && !Number.isNaN(box.limit) ? `\nx limit ${shown({ format: "excess" }, box.limit)}` : ""}`;
    group.append(...[rect, head, letters(`${mark}${node.label}${start ? this.startWords() : ""}`, LINE.title, { "font-weight": 600, class: "name" }), node.open ? null : letters(this.second(node), LINE.title + 15, { "font-size": 10 }), titled(whole)].filter(Boolean));
    group.addEventListener("click", (event) => (event.target.classList.contains("name") && node.inside.length ? this.toggle(node) : this.choose(node)));
    group.addEventListener("dblclick", () => this.toggle(node));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") this.choose(node);
      else if ((event.key === "ArrowRight" && !node.open) || (event.key === "ArrowLeft" && node.open)) this.toggle(node);
      else return;
      event.preventDefault();
    });
    into.append(group);
  }

  // The drawing as a file that stands alone, on white.
  svg() {
    return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(this.drawing(INSIDE, "#ffffff"))}`;
  }

  save() {
    const url = URL.createObjectURL(new Blob([this.svg()], { type: "image/svg+xml" }));
    make("a", { href: url, download: "graph.svg" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }
}

function shape(tag, given = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(given)) if (name !== "xmlns") element.setAttribute(name, value);
  return element;
}

function titled(text) {
  const title = shape("title");
  title.textContent = text;
  return title;
}

// A colour between those of STOPS.
function blend(share) {
  const at = Math.min(Math.max(share, 0), 1) * (STOPS.length - 1);
  const low = Math.min(Math.floor(at), STOPS.length - 2);
  const mixed = STOPS[low].map((value, index) => Math.round(value + (at - low) * (STOPS[low + 1][index] - value)));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}
