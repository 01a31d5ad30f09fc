// Assembles the page of a comparison, of a trend, of a fit or of a watch's log.

addEventListener("DOMContentLoaded", async () => {
  try {
    const { head, bytes } = await unpack();
    if (head.kind === "comparison") new ComparisonPage(head, bytes);
    else if (head.kind === "fit") new FitPage(head);
    else if (head.kind === "trend") new TrendPage(head, bytes);
    else new LogPage(head, bytes);
    byId("only-different")?.addEventListener("change", (event) => byId("section-environment").classList.toggle("differing", event.target.checked));
    document.body.offsetHeight; // the browser lays it out now
    document.documentElement.dataset.ready = String(performance.now()); // milliseconds since it began to load
  } catch (error) {
    byId("trouble").hidden = false;
    byId("trouble").textContent = `The tables cannot be shown (${error.message}). This page needs a browser of 2023 or newer.`;
    throw error;
  } finally {
    byId("waiting").hidden = true;
  }
});

function byId(id) {
  return document.getElementById(id);
}

// Redraws when the system switches between light and dark: charts have their own colours.
function onTheme(draw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

function menu(title, boxes) {
  return make("details", { className: "menu" }, make("summary", {}, title), make("div", { className: "choices" }, ...boxes));
}

class ComparisonPage {
  constructor(head, bytes) {
    this.head = head;
    this.bytes = bytes;
    this.table = head.tables.rows;
    this.step = this.rank = null; // null: all of them
    this.module = null;
    this.hidden = { status: new Set(), role: new Set() };
    onTheme(() => this.drawTraining());
    this.drawTraining();
    onTheme(() => this.drawHeats());
    this.drawHeats();
    for (const name of ["layer", "rank", "step"]) this.summary(name, head.tables[`by ${name}`]);
    if (this.table.rows) this.showRows(head);
    if (head.graph) this.showGraph(head);
    else byId("link-graph")?.remove();
  }

  showGraph(head) {
    byId("section-graph").hidden = false;
    this.graph = new Graph(byId("graph"), head, { go: (row) => this.go(row) });
    document.documentElement.graph = this.graph; // for the console
  }

  showRows(head) {
    this.switches();
    this.phase = head.phases.find((phase) => this.inPhase(head.first, phase)) ?? head.phases.find((phase) => this.has(phase)) ?? head.phases[0];
    this.tree = new Tree(byId("tree"), this.table, { 
      keep: (row) => this.kept(row),
      colored: (row) => this.inPhase(row, this.phase),
      choose: (name) => this.inside(name),
      first: head.first,
    });
    this.grid = new Grid(byId("rows"), this.table, {
      what: "rows of the comparison",
      titles: this.titles(),
      bars: new Set(["relative L2"]),
      keep: (row) => this.shown(row),
      look: (row) => this.look(row),
      choose: (row) => this.details(row),
    });
    this.boxes();
    this.drawPhases();
    onTheme(() => this.drawChart());
    addEventListener("hashchange", () => this.follow());
    addEventListener("keydown", (event) => this.key(event));
    this.follow();
  }

  drawHeats() {
    if (this.head.heats.length) byId("heats").replaceChildren();
    for (const about of this.head.heats) new HeatMap(byId("heats"), this.bytes, about, about.layers);
  }

  // Summaries of all rows by layer, rank or step.
  summary(name, table) {
    if (!table) return;
    const box = byId(`by-${name}`);
    const failing = table.column("failing");
    const grid = new Grid(box, table, { what: `rows by ${name}`, look: (row) => (failing.value(row) ? "fail" : "") });
    if (name === "layer") grid.sort(table.column("worst x limit"));
    box.style.setProperty("--rows", Math.min(Math.max(table.rows, 1), 16));
  }

  titles() {
    const usual = this.table.columns.filter((column) => !column.folded && !(["excess", "x limit"].includes(column.title) && column.empty));
    const several = ["step", "rank"].filter((title) => this.values(title).length > 1);
    return new Set([...usual.map((column) => column.title), ...several]);
  }

  // The values that a column of numbers has.
  values(title) {
    const column = this.table.column(title);
    return [...new Set(column.numbers)].filter((number) => !Number.isNaN(number)).sort((one, other) => one - other);
  }

  switches() {
    for (const title of ["step", "rank"]) {
      const values = this.values(title);
      if (values.length < 2) continue;
      const options = [make("option", { value: "" }, "all"), ...values.map((value) => make("option", { value: String(value) }, String(value)))];
      const select = make("select", { id: `switch-${title}` }, ...options);
      select.addEventListener("change", () => this.switch(title, select.value === "" ? null : Number(select.value)));
      byId("switches").append(make("label", {}, `${title} `, select));
    }
  }

  switch(title, value) {
    this[title] = value;
    this.tree.refresh();
    this.grid.refresh();
    this.drawChart();
    if (title === "rank") this.drawTraining();
  }

  // Whether a row is of the chosen step and rank.
  kept(row) {
    const is = (title, value) => value === null || this.table.column(title).numbers[row] === value;
    return is("step", this.step) && is("rank", this.rank);
  }

  shown(row) {
    if (!this.kept(row)) return false;
    for (const title of ["status", "role"]) if (this.hidden[title].size && this.hidden[title].has(this.table.column(title).indices[row])) return false;
    return this.members === undefined || this.members === null || this.members[this.table.column("layer").indices[row]] === 1;
  }

  // Shows only the rows of a module and of those inside it; null for all.
  inside(name) {
    this.module = name;
    const words = this.table.column("layer").words;
    this.members = name === null ? null : Uint8Array.from(words, (word) => Number(word === name || word.startsWith(`${name}.`)));
    this.chip.hidden = name === null;
    this.chip.textContent = name === null ? "" : `in ${name} ×`;
    this.grid.refresh();
  }

  look(row) {
    const reason = this.table.value("reason", row);
    const status = this.table.value("status", row);
    if (reason === "non-finite") return "nonfinite";
    if (status === "fail") return ["missing", "extra"].includes(reason) ? "alone" : "fail";
    if (status !== "pass") return reason === "not deterministic" ? "near" : "alone";
    return reason === "over-precise" || this.table.column("x limit").numbers[row] > this.head.near ? "near" : "";
  }

  boxes() {
    for (const title of ["status", "role"]) {
      const column = this.table.column(title);
      const boxes = column.words.map((word, index) => {
        const box = make("input", { type: "checkbox", checked: true, value: word });
        box.addEventListener("change", () => {
          if (box.checked) this.hidden[title].delete(index);
          else this.hidden[title].add(index);
          this.grid.refresh();
        });
        return make("label", {}, box, ` ${word || "none"}`);
      });
      const own = menu(title[0].toUpperCase() + title.slice(1), boxes);
      own.dataset.of = title;
      this.grid.tools.insertBefore(own, this.grid.tools.querySelector(".menu:last-of-type"));
    }
    this.chip = make("button", { type: "button", className: "chip", hidden: true, onclick: () => this.tree.choose({ name: this.module }) });
    this.grid.tools.insertBefore(this.chip, this.grid.count);
  }

  has(phase) {
    return this.table.column("role").words.some((role) => phase.roles.includes(role));
  }

  inPhase(row, phase) {
    return row !== null && phase.roles.includes(this.table.value("role", row));
  }

  drawPhases() {
    const draw = () => {
      const there = this.head.phases.filter((phase) => this.has(phase));
      byId("phases").replaceChildren(
        ...(there.length < 2 ? [] : there).map((phase) => {
          const choose = () => {
            this.phase = phase;
            this.tree.refresh();
            draw();
          };
          return make("button", { type: "button", role: "tab", ariaSelected: String(phase === this.phase), onclick: choose }, phase.title);
        }),
      );
      this.drawChart();
    };
    draw();
  }

  drawChart() {
    this.chart?.destroy();
    this.chart = divergence(byId("divergence"), byId("divergence-note"), this.table, this.phase, (row) => this.kept(row), (row) => this.go(row));
  }

  drawTraining() {
    const steps = this.head.tables.steps;
    if (!steps) return;
    const box = byId("charts");
    box.replaceChildren();
    const ranks = steps.column("rank");
    const first = ranks ? ranks.numbers[0] : null;
    const keep = ranks ? (row) => ranks.numbers[row] === (this.rank ?? first) : undefined;
    const marks = this.head.parting === null ? [] : [{ at: this.head.parting, color: "over", title: "the runs part" }];
    for (const chart of this.head.charts) stepChart(box, steps, chart, { keep, marks });
    byId("steps-box").ontoggle = () => (this.steps ??= new Grid(byId("steps"), steps, { what: "steps" }));
  }

  // Shows a row in the table, without the filter if that hides it, and its details.
  go(row) {
    this.unfilter(row);
    this.grid.choose(row, true);
    byId("section-model").scrollIntoView({ block: "start" });
  }

  unfilter(row) {
    if (this.grid.view.indexOf(row) >= 0) return;
    for (const set of Object.values(this.hidden)) set.clear();
    for (const box of this.grid.tools.querySelectorAll(".menu[data-of] input")) box.checked = true;
    this.grid.search.value = "";
    for (const title of ["step", "rank"]) {
      if (this[title] !== null && this.table.value(title, row) !== this[title]) {
        byId(`switch-${title}`).value = "";
        this.switch(title, null);
      }
    }
    if (this.module !== null) this.tree.choose({ name: this.module });
    this.grid.refresh();
  }

  details(row) {
    linkTo(anchorOf(this.table, row));
    showDetails(byId("details"), this.table, row, this.head.meanings, () => this.close());
    const box = this.graph?.boxOf(row, this.table, this.head.phases);
    if (!box) return;
    const follow = () => {
      this.graph.follow(box);
      byId("section-graph").scrollIntoView({ block: "start" });
    };
    byId("details").querySelector("h3").after(make("button", { type: "button", className: "link", id: "to-graph", onclick: follow }, "what its error went through"));
  }

  close() {
    byId("details").hidden = true;
    this.grid.current = -1;
    this.grid.draw();
    this.grid.scroller.focus();
  }

  follow() {
    const row = rowOf(this.table, location.hash.slice(1)); // -1 for a link to a part of the page
    if (row >= 0) this.go(row);
  }

  key(event) {
    if (event.key === "Escape" && !byId("details").hidden) this.close();
    else if (event.key === "/" && !["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement.tagName)) {
      event.preventDefault();
      this.grid.search.focus();
    }
  }
}

// Puts what is shown into the address, without a history entry per row; browsers refuse frequent changes.
let linking;
function linkTo(anchor) {
  clearTimeout(linking);
  linking = setTimeout(() => window.history.replaceState(null, "", `#${anchor}`), 150);
}

class LogPage {
  constructor(head, bytes) {
    this.head = head;
    this.bytes = bytes;
    for (const [title, table] of Object.entries(head.tables)) this.section(title, table);
    this.draw();
    onTheme(() => this.draw());
  }

  section(title, table) {
    const box = byId(title);
    if (!box) return;
    if (title === "checklist" && table.rows) {
      const result = table.column("result");
      new Grid(box, table, { what: title, look: (row) => ({ FAIL: "fail", WARN: "near" })[result.value(row)] ?? "" });
    } else if (title === "findings") {
      const begins = table.column("begins here");
      new Grid(box, table, { what: title, look: (row) => (begins.value(row) === "origin" ? "fail" : "") });
    } else if (title === "frames") {
      const not = ["NaN", "Inf"].map((name) => table.column(name));
      new Grid(box, table, { what: title, look: (row) => (not.some((column) => column.numbers[row] > 0) ? "near" : "") });
    } else if (title === "steps") {
      const finite = table.column("finite");
      new Grid(box, table, { what: title, look: (row) => (finite.value(row) === "no" ? "fail" : "") });
    } else new Grid(box, table, { what: title });
    if (box.closest("details")) return;
    box.style.setProperty("--rows", Math.min(Math.max(table.rows, 1), 16));
  }

  draw() {
    const steps = this.head.tables.steps;
    const charts = byId("charts");
    charts.replaceChildren();
    const rank = steps.column("rank");
    const keep = rank ? (row) => rank.numbers[row] === this.head.rank : undefined;
    const marks = this.head.found.map((step) => ({ at: step, color: "over", title: "found" }));
    for (const chart of this.head.charts) stepChart(charts, steps, chart, { keep, marks });
    const heats = byId("heats");
    heats.replaceChildren();
    const maps = this.head.heats.map((about) => new HeatMap(heats, this.bytes, about, this.head.layers, (row) => this.curves(maps, row)));
    if (!maps.length) return;
    this.layer = { caption: make("figcaption"), box: make("div", { className: "chart" }) };
    byId("curves").replaceChildren(make("figure", {}, this.layer.caption, this.layer.box));
    this.curves(maps, 0);
  }

  // One line of all heat maps as curves over the steps.
  curves(maps, row) {
    const steps = [...new Set(maps.flatMap((map) => map.about.steps))].sort((one, other) => one - other);
    const numbers = maps.map((map) => steps.map((step) => map.value(row, step)));
    const look = (at) => ["curve", "scale", "limit"][at % 3];
    const series = maps.map((map, at) => ({
      title: map.about.title, color: look(at), values: numbers[at].map((value) => (value > 0 && value < Infinity ? value : null)), spanned: true,
    }));
    const place = (index) => ({
      title: `step ${steps[index]}`,
      lines: maps.map((map, at) => `${map.about.title}: ${numbers[at][index] === null ? "not looked at" : shown({ format: "number" }, numbers[at][index])}`),
    });
    this.layer.caption.replaceChildren(make("b", { dir: "auto" }, this.head.layers[row]), " (logarithmic; a click on a heat map chooses another parameter)");
    this.layer.chart?.destroy();
    this.layer.chart = new LineChart(this.layer.box, steps, series, { logarithmic: true, place, height: 190, label: `curves of ${this.head.layers[row]}` });
  }
}
