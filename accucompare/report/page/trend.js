// The page of a trend: heat maps of layers by runs, the error of one layer over the runs, and the tables.

const STATE_LOOKS = { "fell out": "fail", "fails from the first": "fail", "came back": "near" };

class TrendPage {
  constructor(head, bytes) {
    Object.assign(this, { head, bytes, line: 0 });
    const { layers, runs } = head.tables;
    if (layers.rows) this.line = Math.max(0, head.layers.indexOf(layers.value("layer", 0))); // what fell out last
    this.table("layers", layers, "state", (value) => STATE_LOOKS[value] ?? "", (row) => this.chooseLayer(layers.value("layer", row)));
    this.table("runs", runs, "failing", (value) => (value ? "fail" : ""));
    this.draw();
    onTheme(() => this.draw());
  }

  table(id, table, title, look, choose) {
    const box = byId(id);
    const column = table.column(title);
    new Grid(box, table, { what: id, look: (row) => look(column.value(row)), choose });
    box.style.setProperty("--rows", Math.min(Math.max(table.rows, 1), 20));
  }

  draw() {
    const heats = byId("heats");
    heats.replaceChildren();
    if (!this.head.layers.length) return void heats.append(make("p", { className: "muted" }, "Nothing was compared."));
    this.maps = this.head.heats.map((about) => new HeatMap(heats, this.bytes, about, this.head.layers, (row) => this.curves(row)));
    this.caption = make("figcaption");
    this.box = make("div", { className: "chart" });
    byId("curves").replaceChildren(make("figure", {}, this.caption, this.box));
    this.curves(this.line);
    return undefined;
  }

  chooseLayer(name) {
    const row = this.head.layers.indexOf(name);
    if (row >= 0) this.curves(row);
  }

  // One layer's error over the runs, and its limit as far as it is known.
  curves(row) {
    this.line = row;
    const [limits, errors] = this.maps;
    const runs = limits.about.steps;
    const error = runs.map((run) => errors.value(row, run));
    const over = runs.map((run) => limits.value(row, run));
    const [low, high] = decades([error, over]);
    const drawn = (value) => (value === null ? null : Number.isNaN(value) ? high : Math.min(Math.max(value, low), high));
    const beyond = [...error, ...over].filter((value) => value !== null);
    const notes = [];
    if (beyond.some((value) => value < low)) notes.push(`no difference is drawn at ${exponent(low, 0)}`);
    if (beyond.some((value) => !(value <= high))) notes.push(`NaN and infinities at ${exponent(high, 0)}`);
    const series = [
      { title: "relative L2 error", color: "curve", values: error.map(drawn), spanned: true },
      { title: "x limit (over 1 fails)", color: "limit", values: over.map(drawn), spanned: true, dashed: true },
    ];
    const told = (value) => (value === null ? "not compared" : shown({ format: "number" }, value));
    const place = (index) => ({ title: runs[index], lines: [`relative L2: ${told(error[index])}`, `x limit: ${told(over[index])}`] });
    this.caption.replaceChildren(make("b", { dir: "auto" }, this.head.layers[row]), ` over the runs, logarithmic${notes.map((note) => `; ${note}`).join("")}`);
    this.chart?.destroy();
    this.chart = new LineChart(this.box, runs.map((_, index) => index + 1), series, { logarithmic: true, bounds: [low, high], named: runs, place, height: 190, label: `errors of ${this.head.layers[row]}` });
  }
}
