// A table with filter, sorting, choice of columns and keyboard; only rows in view are in the document.

const ROW = 24; // pixels, as in page.css
const MOST_PIXELS = 8e6; // browsers draw nothing beyond some 17 million
const SPARE = 8; // rows above and below those in view
const PRINTED = 400;

class Grid {
  // options: titles (of the columns that are shown at first), keep(row), look(row), bars (titles), choose(row), what (a row is called)
  constructor(place, table, options = {}) {
    this.place = place;
    this.table = table;
    this.options = options;
    this.sorted = null; // {column, down}
    this.current = -1; // the chosen row
    this.printed = 0; // how many rows are on paper
    this.view = new Uint32Array(0);
    this.columns = table.columns.filter((column) => (options.titles ? options.titles.has(column.title) : !column.folded && !column.empty));
    this.build();
    this.refresh();
    new ResizeObserver(() => this.draw()).observe(this.scroller);
    addEventListener("beforeprint", () => this.print(PRINTED));
    addEventListener("afterprint", () => this.print(0));
  }

  build() {
    this.search = make("input", { type: "search", placeholder: "filter by name, type, reason …", ariaLabel: "Filter", oninput: () => this.refresh() });
    this.regex = make("input", { type: "checkbox", onchange: () => this.refresh() });
    this.count = make("output", { className: "count" });
    this.menu = make("div", { className: "choices" });
    this.tools = make(
      "div",
      { className: "tools" },
      this.search,
      make("label", { title: "The filter is a regular expression" }, this.regex, " regex"),
      make("details", { className: "menu" }, make("summary", {}, "Columns"), this.menu),
      this.count,
    );
    this.header = make("div", { className: "line header", role: "row" });
    this.body = make("div", { className: "lines", role: "rowgroup" });
    this.scroller = make("div", { className: "scroller", tabIndex: 0, role: "grid", ariaLabel: this.options.what ?? "rows", onscroll: () => this.draw() }, this.header, this.body);
    this.scroller.addEventListener("keydown", (event) => this.key(event));
    this.body.addEventListener("click", (event) => {
      const line = event.target.closest(".line");
      if (line) this.choose(Number(line.dataset.row));
    });
    this.place.append(this.tools, this.scroller);
    for (const column of this.table.columns) {
      const box = make("input", { type: "checkbox", checked: this.columns.includes(column), onchange: () => this.show(column, box.checked) });
      this.menu.append(make("label", {}, box, ` ${column.title || "outcome"}`));
    }
    this.title();
  }

  show(column, on) {
    const shownNow = new Set(this.columns);
    if (on) shownNow.add(column);
    else shownNow.delete(column);
    this.columns = this.table.columns.filter((each) => shownNow.has(each));
    this.title();
    this.draw();
  }

  title() {
    this.header.replaceChildren(
      ...this.columns.map((column) => {
        const up = this.sorted?.column === column ? (this.sorted.down ? " ▾" : " ▴") : "";
        const sort = up ? (this.sorted.down ? "descending" : "ascending") : "none";
        const button = make("button", { type: "button", title: `Sort by ${column.title}`, onclick: () => this.sort(column) }, column.title + up);
        return make("div", { className: column.isText ? "cell" : "cell right", role: "columnheader", ariaSort: sort }, button);
      }),
    );
    const pixels = this.columns.map((column) => {
      const most = column.isText ? Math.min(column.width || 46, 70) : 20;
      const characters = Math.max(Math.min(this.longest(column), most), column.title.length + 2);
      const wide = ["reason", "result"].includes(column.title) ? 9.4 : column.isText ? 7.9 : 8.4; // those are bold
      return Math.round(characters * wide + 14);
    });
    this.scroller.style.setProperty("--columns", pixels.map((width) => `${width}px`).join(" "));
    this.scroller.style.setProperty("--all", `${pixels.reduce((sum, width) => sum + width, 0)}px`);
  }

  // Characters of a column's longest value; for numbers, of the first ones.
  longest(column) {
    if (column.longest === undefined) {
      const few = Math.min(this.table.rows, 200);
      const texts = column.isText ? column.words : Array.from({ length: few }, (_, row) => shown(column, column.value(row)));
      column.longest = texts.reduce((most, text) => Math.max(most, text.length), 0);
    }
    return column.longest;
  }

  sort(column) {
    const same = this.sorted?.column === column;
    const first = !column.isText; // numbers begin with the largest, texts with the first letter
    if (!same) this.sorted = { column, down: first };
    else this.sorted = this.sorted.down === first ? { column, down: !first } : null;
    this.title();
    this.refresh();
  }

  // Which rows are shown, and in which order.
  refresh() {
    const matches = this.matcher();
    const keep = this.options.keep;
    const found = new Uint32Array(this.table.rows);
    let count = 0;
    if (matches) for (let row = 0; row < this.table.rows; row++) if ((!keep || keep(row)) && matches(row)) found[count++] = row;
    this.view = found.subarray(0, count);
    if (this.sorted) this.order();
    const all = this.table.rows.toLocaleString("en-US");
    this.count.textContent = count === this.table.rows ? `${all} rows` : `${count.toLocaleString("en-US")} of ${all} rows`;
    this.scroller.setAttribute("aria-rowcount", count + 1);
    this.scroller.scrollTop = 0;
    this.draw();
  }

  // Each distinct text is tried once; a row matches if one of its texts does.
  matcher() {
    const text = this.search.value;
    this.search.setCustomValidity("");
    this.search.title = "";
    if (!text) return () => true;
    let test;
    if (this.regex.checked) {
      try {
        const pattern = new RegExp(text, "i");
        test = (word) => pattern.test(word);
      } catch (error) {
        this.search.setCustomValidity(error.message);
        this.search.title = error.message;
        return null;
      }
    } else {
      const small = text.toLowerCase();
      test = (word) => word.toLowerCase().includes(small);
    }
    const searched = this.table.columns.filter((column) => column.isText).map((column) => [column.indices, column.words.map(test)]);
    const useful = searched.filter(([, hits]) => hits.includes(true));
    return (row) => useful.some(([indices, hits]) => hits[indices[row]]);
  }

  order() {
    const { column, down } = this.sorted;
    const last = down ? -Infinity : Infinity; // missing values come last in either direction
    let keys;
    if (column.isText) {
      const places = column.words.map((word, index) => index).sort((one, other) => (column.words[one] < column.words[other] ? -1 : 1));
      const rank = new Float64Array(places.length);
      places.forEach((index, place) => (rank[index] = column.words[index] === "" ? last : place));
      keys = Float64Array.from(column.indices, (index) => rank[index]);
    } else {
      // NaN and infinities sort above all numbers: they are what people look for.
      const most = (number) => (number < 0 ? -Number.MAX_VALUE : Number.MAX_VALUE);
      keys = column.numbers.map((number, row) => (column.high[row] === MISSING ? last : Number.isFinite(number) ? number : most(number)));
    }
    const sign = down ? -1 : 1;
    this.view = this.view.slice().sort((one, other) => sign * (keys[one] - keys[other]) || one - other);
  }

  get inView() {
    return Math.max(1, Math.floor((this.scroller.clientHeight - this.header.offsetHeight) / ROW));
  }

  // The first row in view. If the table is taller than browsers can scroll, the scroll position stands for a share of all rows.
  get first() {
    const height = this.view.length * ROW;
    if (height <= MOST_PIXELS) return Math.floor(this.scroller.scrollTop / ROW);
    const free = MOST_PIXELS - this.inView * ROW;
    return Math.round((this.scroller.scrollTop / free) * (this.view.length - this.inView));
  }

  // Paper does not scroll: for printing, the first rows are all put into the document.
  print(rows) {
    this.printed = rows;
    this.draw();
  }

  draw() {
    const { printed } = this;
    const total = this.view.length;
    const high = Math.min(total * ROW, MOST_PIXELS);
    this.body.style.height = printed ? "auto" : `${high}px`;
    const from = printed ? 0 : Math.max(0, this.first - SPARE);
    const to = Math.min(total, printed || this.first + this.inView + 2 * SPARE);
    const top = total * ROW <= MOST_PIXELS ? from * ROW : Math.max(0, this.scroller.scrollTop - (this.first - from) * ROW);
    const lines = [];
    for (let place = from; place < to; place++) lines.push(this.line(this.view[place], place, printed ? -1 : top + (place - from) * ROW));
    const left = this.search.validity.valid ? "No row is left by the filter." : `The filter is no regular expression: ${this.search.title}`;
    if (!total) lines.push(make("p", { className: "muted nothing" }, this.table.rows ? left : "There are none."));
    this.body.replaceChildren(...lines);
  }

  line(row, place, top) {
    const look = this.options.look?.(row) ?? "";
    const line = make("div", { className: `line ${look}${row === this.current ? " current" : ""}`, role: "row", ariaRowIndex: place + 2 });
    line.dataset.row = row;
    if (top >= 0) line.style.transform = `translateY(${top}px)`;
    for (const column of this.columns) {
      const value = column.value(row);
      const text = shown(column, value);
      const cell = make("div", { className: column.isText ? "cell" : "cell right", role: "gridcell", dir: column.isText ? "auto" : "ltr" }, text);
      if (text.length > 20) cell.title = text;
      if (this.options.bars?.has(column.title) && value !== null) {
        cell.classList.add("bar");
        cell.style.setProperty("--level", heat(value));
      }
      if (column.title === "reason" || column.title === "result") {
        cell.replaceChildren(make("span", { className: "reason" }, text));
        cell.firstChild.dataset.reason = text;
      }
      line.append(cell);
    }
    return line;
  }

  choose(row, scroll = false) {
    this.current = row;
    if (scroll) this.reveal(row);
    this.draw();
    this.options.choose?.(row);
  }

  // Scrolls a row into view, unless it is filtered out.
  reveal(row) {
    const place = this.view.indexOf(row);
    if (place < 0) return false;
    if (place < this.first || place >= this.first + this.inView - 1) {
      const height = this.view.length * ROW;
      const target = Math.max(0, place - Math.floor(this.inView / 2));
      const share = target / Math.max(1, this.view.length - this.inView);
      this.scroller.scrollTop = height <= MOST_PIXELS ? target * ROW : share * (MOST_PIXELS - this.inView * ROW);
    }
    return true;
  }

  key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: this.inView, PageUp: -this.inView, Home: -Infinity, End: Infinity };
    if (event.target !== this.scroller || !(event.key in steps) || !this.view.length) return;
    event.preventDefault();
    const place = this.view.indexOf(this.current);
    const next = Math.min(Math.max((place < 0 ? -1 : place) + steps[event.key], 0), this.view.length - 1);
    this.choose(this.view[next], true);
  }
}
