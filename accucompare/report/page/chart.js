// Charts, drawn by uPlot: errors over the execution order, and histories of steps.

const CHART_HEIGHT = 260;
const WHOLE = [...Array(9).keys()].flatMap((power) => [1, 2, 5].map((times) => times * 10 ** power)); // distances between lines of the x axis

// series: {title, color, values, dashed, points, width}; named: what stands at 1, 2, … of the x axis; place(index) is what the tooltip says, choose(index) what a click does.
class LineChart {
  constructor(box, xs, series, options = {}) {
    Object.assign(this, { box, xs, series, options });
    box.replaceChildren();
    this.legend = make("div", { className: "legend" });
    for (const each of series) {
      const mark = make("i", { className: each.points ? "dot" : each.dashed ? "dash" : "stroke" });
      mark.style.color = color(each.color);
      this.legend.append(make("span", {}, mark, each.title));
    }
    this.tip = make("div", { className: "tip", hidden: true });
    this.drawn = make("div", { className: "canvas", role: "img", ariaLabel: options.label ?? "chart" });
    box.append(this.legend, this.drawn, this.tip);
    this.plot = new uPlot(this.settings(), [xs, ...series.map((each) => each.values)], this.drawn);
    if (options.choose) {
      this.plot.over.addEventListener("click", () => {
        const index = this.plot.cursor.idx;
        if (index !== null && index !== undefined && xs[index] !== undefined) options.choose(index);
      });
    }
    this.plot.over.addEventListener("mouseleave", () => (this.tip.hidden = true));
    this.observer = new ResizeObserver(() => {
      if (box.clientWidth && box.clientWidth !== this.plot.width) this.plot.setSize({ width: box.clientWidth, height: this.height });
    });
    this.observer.observe(box);
  }

  get height() {
    return this.options.height ?? CHART_HEIGHT;
  }

  settings() {
    const { logarithmic, bounds, named } = this.options;
    const axis = { stroke: color("muted"), grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1 }, font: "11px system-ui" };
    const powers = (plot, splits) => splits.map((value) => (value === null ? "" : exponent(value, 0)));
    const name = (value) => ((each) => (each.length > 14 ? `${each.slice(0, 13)}…` : each))(named[value - 1] ?? "");
    const words = (plot, splits) => splits.map((value) => (value === null ? "" : String(Number(value.toPrecision(6)))));
    return {
      width: this.box.clientWidth || 600,
      height: this.height,
      legend: { show: false },
      cursor: { y: false, drag: { x: true, y: false }, points: { size: 7 } },
      scales: { x: { time: false }, y: logarithmic ? { distr: 3, log: 10, range: bounds ? () => bounds : undefined } : {} },
      axes: [
        { ...axis, size: 34, space: named ? 90 : 50, incrs: WHOLE, values: (plot, splits) => splits.map((value) => (Number.isInteger(value) ? (named ? name(value) : value.toLocaleString("en-US")) : "")) },
        { ...axis, size: 62, values: logarithmic ? powers : words, ...(logarithmic ? { splits: (plot, index, low, high) => lines(low, high) } : {}) },
      ],
      series: [{}, ...this.series.map((each) => this.line(each))],
      hooks: { setCursor: [(plot) => this.hover(plot)], draw: [(plot) => this.marks(plot)] },
    };
  }

  line(each) {
    const stroke = color(each.color);
    if (each.points) return { stroke, width: 0, paths: () => null, points: { show: true, size: 6, fill: stroke, stroke } };
    const few = this.xs.length <= 80;
    return { stroke, width: each.width ?? 1.5, dash: each.dashed ? [6, 4] : undefined, points: { show: few && !each.dashed, size: 4, fill: stroke }, spanGaps: Boolean(each.spanned) };
  }

  // Lines between steps, and where the runs part.
  marks(plot) {
    const { ctx, bbox } = plot;
    let free = bbox.left; // where space for the next title begins
    for (const mark of this.options.marks ?? []) {
      const x = Math.round(plot.valToPos(mark.at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.save();
      ctx.strokeStyle = color(mark.color);
      ctx.setLineDash([2, 3]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillStyle = color(mark.color);
      ctx.font = `${11 * devicePixelRatio}px system-ui`;
      const wide = ctx.measureText(mark.title).width + 8;
      const atRight = x + wide > bbox.left + bbox.width;
      ctx.textAlign = atRight ? "right" : "left";
      ctx.textBaseline = "top";
      if ((atRight ? x - wide : x) >= free) {
        ctx.fillText(mark.title, x + (atRight ? -4 : 4), bbox.top + 2);
        free = atRight ? x : x + wide;
      }
      ctx.restore();
    }
  }

  hover(plot) {
    const index = plot.cursor.idx;
    if (index === null || index === undefined || plot.cursor.left < 0) return (this.tip.hidden = true);
    const said = this.options.place(index);
    if (!said) return (this.tip.hidden = true);
    this.tip.replaceChildren(make("b", { dir: "auto" }, said.title), ...said.lines.map((line) => make("div", {}, line)));
    this.tip.hidden = false;
    const left = plot.cursor.left + 70;
    const room = this.box.clientWidth - this.tip.offsetWidth - 4;
    this.tip.style.left = `${Math.max(0, Math.min(left, room))}px`;
    this.tip.style.top = `${this.drawn.offsetTop + 8}px`;
    return undefined;
  }

  destroy() {
    this.observer.disconnect();
    this.plot.destroy();
  }
}

// Lines of a logarithmic axis: at powers of ten, thinned out if many; over one or two powers, also between.
function lines(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const between = last - first <= 2 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((last - first) / 12));
  const all = [];
  for (let power = first; power <= last; power += every) for (const times of between) all.push(Number(`${times}e${power}`));
  return all.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

// Powers of ten around all positive finite values.
function decades(lists) {
  let low = Infinity;
  let high = 0;
  for (const list of lists) {
    for (const value of list) {
      if (!(value > 0 && value < Infinity)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  if (!high) return [1e-8, 1];
  return [10 ** Math.max(Math.floor(Math.log10(low)) - 1, -300), 10 ** Math.min(Math.floor(Math.log10(high)) + 1, 300)];
}

// The errors of a part of a step: rows whose role is drawn, and those that glue made wrong.
function divergence(box, note, table, phase, keep, choose) {
  const [role, reason, error, limit, baseline] = ["role", "reason", "relative L2", "limit on relative L2", "baseline relative L2"].map((title) => table.column(title));
  const roles = role.words.map((word) => phase.roles.includes(word));
  const drawn = role.words.map((word) => phase.drawn.includes(word));
  const glue = reason.words.indexOf("glue");
  const [step, rank, status] = ["step", "rank", "status"].map((title) => table.column(title));
  const rows = [];
  const marks = [];
  let before = null;
  const severalRanks = rank.numbers.some((number) => number > 0);
  for (let row = 0; row < table.rows; row++) {
    const own = role.indices[row];
    if (!roles[own] || !(drawn[own] || reason.indices[row] === glue) || !keep(row) || error.value(row) === null) continue;
    const part = `${step.value(row)} ${rank.value(row)}`;
    if (before !== null && part !== before) {
      rows.push(-1); // a gap between steps
    }
    if (part !== before) marks.push({ at: Math.max(rows.length - 1, 0), color: "muted", title: severalRanks ? `step ${step.value(row)}, rank ${rank.value(row)}` : `step ${step.value(row)}` });
    before = part;
    rows.push(row);
  }
  if (marks.length === 1) marks.pop(); // one step needs no mark
  if (marks.length > 40) marks.forEach((mark) => (mark.title = ""));
  const get = (column) => rows.map((row) => (row < 0 ? null : column.value(row)));
  const errors = get(error);
  const limits = get(limit);
  const expected = get(baseline);
  const [low, high] = decades([errors, limits, expected]);
  const onAxis = (value) => (value === null ? null : Number.isNaN(value) ? high : Math.min(Math.max(value, low), high));
  const failing = status.words.indexOf("fail");
  const over = rows.map((row, index) => (row >= 0 && status.indices[row] === failing ? onAxis(errors[index]) : null));
  const series = [];
  if (expected.some((value) => value !== null)) series.push({ title: "baseline", color: "baseline", values: expected.map(onAxis), width: 3 });
  series.push({ title: "relative L2", color: "curve", values: errors.map(onAxis), width: 1.25 });
  if (limits.some((value) => value !== null)) series.push({ title: "limit", color: "limit", values: limits.map(onAxis), dashed: true, width: 1.25, spanned: true });
  series.push({ title: "fails", color: "over", values: over, points: true });
  const parts = [`${rows.filter((row) => row >= 0).length.toLocaleString("en-US")} ${phase.title} values.`];
  if (errors.some((value) => value !== null && value < low)) parts.push(`Those without any difference are drawn at ${exponent(low, 0)}.`);
  if (errors.some((value) => value !== null && !(value <= high))) parts.push(`NaN and infinities are drawn at ${exponent(high, 0)}.`);
  note.textContent = rows.length ? parts.join(" ") : "Nothing of this part of a step was measured here.";
  const place = (index) => {
    const row = rows[index];
    if (row === undefined || row < 0) return null;
    const lines = [`relative L2 ${shown(error, errors[index])}`];
    if (limits[index] !== null) lines.push(`limit ${shown(limit, limits[index])}`);
    if (expected[index] !== null) lines.push(`baseline ${shown(baseline, expected[index])}`);
    return { title: placeOf(table, row), lines: [...lines, reason.value(row)] };
  };
  return new LineChart(box, rows.map((row, index) => index), series, {
    logarithmic: true, bounds: [low, high], place, marks, label: `relative L2 error, ${phase.title}`,
    choose: (index) => rows[index] >= 0 && choose(rows[index]),
  });
}

// A history over steps: one chart of a table's columns.
function stepChart(box, table, chart, options = {}) {
  const steps = table.column("step").numbers;
  const chosen = [];
  for (let row = 0; row < table.rows; row++) if (!options.keep || options.keep(row)) chosen.push(row);
  const usable = (value) => (value === null || !Number.isFinite(value) ? null : chart.logarithmic ? Math.abs(value) || null : value);
  const series = [];
  for (const [title, look] of chart.series) {
    const column = table.column(title);
    if (!column) continue;
    const all = chosen.map((row) => column.value(row));
    const values = all.map(usable);
    if (values.every((value) => value === null)) continue;
    series.push({ title, column, color: look === "golden" ? "curve" : look, values, dashed: look === "limit", spanned: true, width: look === "golden" ? 2 : 1.25 });
    const top = values.reduce((most, value) => (value !== null && value > most ? value : most), 0);
    const bad = all.map((value) => (value !== null && !Number.isFinite(value) ? top : null));
    if (bad.some((value) => value !== null)) series.push({ title: `${title}: not finite (at the top)`, color: "over", values: bad, points: true });
  }
  if (!series.some((each) => each.column && !each.dashed)) return null;
  const place = (index) => {
    const row = chosen[index];
    const lines = series.filter((each) => each.column).map((each) => `${each.title} ${shown(each.column, each.column.value(row))}`);
    return { title: `step ${steps[row]}`, lines };
  };
  const card = make("figure", {}, make("figcaption", {}, chart.title + (chart.logarithmic ? " (logarithmic)" : "")));
  const inner = make("div", { className: "chart" });
  card.append(inner);
  box.append(card);
  return new LineChart(inner, chosen.map((row) => steps[row]), series, { ...options, logarithmic: chart.logarithmic, place, height: 190, label: chart.title });
}
