// The page of a fit: the curve, its runs, and blocks by their share of the error.

class FitPage {
  constructor(head) {
    this.head = head;
    const { runs, blocks } = head.tables;
    new Grid(byId("runs"), runs, { what: "runs", look: (row) => (row === head.proof ? "chosen" : "") });
    if (blocks.rows) new Grid(byId("blocks"), blocks, { what: "blocks" });
    for (const [name, table] of [["runs", runs], ["blocks", blocks]]) byId(name)?.style.setProperty("--rows", Math.min(Math.max(table.rows, 1), 16));
    this.draw();
    onTheme(() => this.draw());
  }

  draw() {
    const table = this.head.tables.curve;
    const [share, expected, run, limit] = table.columns;
    const rows = [...Array(table.rows).keys()];
    const of = (column) => rows.map((row) => column.value(row));
    const [xs, estimates, runs, limits] = [share, expected, run, limit].map(of);
    const [low, high] = decades([estimates, runs, limits]);
    const onAxis = (value) => (value === null ? null : Math.min(Math.max(value, low), high));
    const series = [
      { title: "estimate", color: "curve", values: estimates.map(onAxis), spanned: true, width: 1.5 },
      { title: "run", color: "candidate", values: runs.map(onAxis), points: true },
    ];
    if (limits.some((value) => value !== null)) series.push({ title: "tolerance", color: "limit", values: limits, dashed: true, spanned: true, width: 1.25 });
    const place = (index) => {
      const lines = [];
      if (runs[index] !== null) lines.push(`run: relative L2 ${shown(run, runs[index])}`);
      if (estimates[index] !== null) lines.push(`estimate ${shown(expected, estimates[index])}`);
      return { title: `${Number(xs[index].toPrecision(3))} % of the ${this.head.of}`, lines };
    };
    new LineChart(byId("curve"), xs, series, { logarithmic: true, bounds: [low, high], place, height: 340, label: `error against the ${this.head.of} in float32, percent` });
  }
}
