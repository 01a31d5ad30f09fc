// The model as a tree by the parts of its names: each module with the largest error inside, and how many of its rows fail.

const ROOT = "(root)";
const MOST_LINES = 500; // of one module's own

class Tree {
  // options: keep(row), colored(row) (whether its error gives colour), choose(name), first (the row where it first parts)
  constructor(place, table, options) {
    Object.assign(this, { place, table, options });
    this.open = new Set([ROOT]);
    this.place.addEventListener("keydown", (event) => this.key(event));
    this.place.setAttribute("role", "tree");
    this.place.setAttribute("aria-label", "modules");
    this.refresh(true);
  }

  // Sums up the kept rows by module, and into the modules around it.
  refresh(open = false) {
    const layer = this.table.column("layer");
    const [error, status] = [this.table.column("relative L2"), this.table.column("status")];
    const glue = this.table.column("glue of"); // the module whose own code made this row's input
    const failing = status.words.indexOf("fail");
    this.root = { name: ROOT, label: ROOT, inside: new Map(), worst: null, fails: 0, rows: 0, first: false };
    const nodes = layer.words.map((name) => this.node(name));
    for (let row = 0; row < this.table.rows; row++) {
      if (!this.options.keep(row)) continue;
      const path = nodes[layer.indices[row]];
      const value = this.options.colored(row) ? error.value(row) : null;
      const fails = status.indices[row] === failing;
      for (const node of path) {
        node.rows++;
        if (value !== null && (node.worst === null || Number.isNaN(value) || value > node.worst)) node.worst = value;
        if (row === this.options.first) node.first = true;
      }
      if (fails) for (const node of glue.words[glue.indices[row]] ? this.node(glue.words[glue.indices[row]]) : path) node.fails++;
    }
    if (open) this.unfold(nodes);
    const sizes = nodes.map((path) => path.at(-1).worst).filter((value) => value > 0 && value < Infinity);
    this.most = sizes.reduce((most, value) => Math.max(most, value), 1e-300);
    this.least = sizes.reduce((least, value) => Math.min(least, value), this.most / 30);
    this.draw();
  }

  // How hot a module's square is: its error relative to this model's, and always hotter where a row fails.
  level(node) {
    const { worst, fails } = node;
    const among = worst > this.least ? Math.min(Math.log(worst / this.least) / Math.log(this.most / this.least), 1) : Number(Number.isNaN(worst));
    return fails ? 0.6 + 0.4 * among : 0.55 * among;
  }

  // The nodes from the root to a module; missing ones are made.
  node(name) {
    const path = [this.root];
    if (name === ROOT) return path;
    let own = this.root;
    const parts = name.split(".");
    parts.forEach((part, depth) => {
      if (!own.inside.has(part)) {
        const whole = parts.slice(0, depth + 1).join(".");
        own.inside.set(part, { name: whole, label: part, inside: new Map(), worst: null, fails: 0, rows: 0, first: false });
      }
      own = own.inside.get(part);
      path.push(own);
    });
    return path;
  }

  // Initially open: the way to the first divergence, or else the outermost modules.
  unfold(nodes) {
    const layer = this.table.column("layer");
    const first = this.options.first;
    if (first !== null && first !== undefined) for (const node of nodes[layer.indices[first]]) this.open.add(node.name);
    let only = this.root;
    while (only.inside.size === 1) {
      only = [...only.inside.values()][0];
      this.open.add(only.name);
    }
  }

  draw() {
    const scrolled = this.place.scrollTop;
    const lines = [];
    const add = (node, depth) => {
      if (!node.rows) return;
      lines.push(this.line(node, depth));
      if (!this.open.has(node.name)) return;
      const inside = [...node.inside.values()];
      for (const child of few(inside)) add(child, depth + 1);
      const more = inside.length - MOST_LINES;
      if (more > 0) lines.push(make("div", { className: "muted more" }, `… ${more.toLocaleString("en-US")} more in ${node.name}; the table has all`));
    };
    add(this.root, 0);
    this.place.replaceChildren(...lines);
    this.place.scrollTop = scrolled;
  }

  line(node, depth) {
    const open = this.open.has(node.name);
    const folded = node.inside.size > 0;
    const arrow = make("span", { className: "arrow", ariaHidden: "true" }, folded ? (open ? "▾" : "▸") : "");
    const square = make("i", { className: `square${node.worst === null ? " none" : ""}` });
    square.style.setProperty("--level", this.level(node));
    const fails = node.fails ? make("span", { className: "fails", title: `${node.fails} rows fail` }, String(node.fails)) : null;
    const here = node.first && (!open || !folded || ![...node.inside.values()].some((child) => child.first));
    const mark = here ? make("span", { className: "here", title: "here the two first part" }, "◀ first") : null;
    const error = make("span", { className: "error" }, shown({ format: "scientific" }, node.worst));
    const line = make("div", { className: "node", role: "treeitem", tabIndex: node.name === (this.focus ?? ROOT) ? 0 : -1, ariaLevel: depth + 1 });
    if (folded) line.setAttribute("aria-expanded", open);
    line.setAttribute("aria-selected", node.name === this.chosen);
    line.style.paddingLeft = `${depth * 14 + 4}px`;
    line.append(arrow, square, make("span", { className: "label", dir: "auto", title: node.name }, node.label), ...[mark, fails, error].filter(Boolean));
    line.node = node;
    arrow.addEventListener("click", (event) => {
      event.stopPropagation();
      this.toggle(node);
    });
    line.addEventListener("click", () => this.choose(node));
    line.addEventListener("dblclick", () => this.toggle(node));
    return line;
  }

  toggle(node, open = !this.open.has(node.name)) {
    if (open) this.open.add(node.name);
    else this.open.delete(node.name);
    this.move(node.name);
  }

  choose(node) {
    this.chosen = this.chosen === node.name || node.name === ROOT ? null : node.name;
    if (this.chosen) this.open.add(node.name);
    this.move(node.name);
    this.options.choose(this.chosen);
  }

  move(name) {
    this.focus = name;
    this.draw();
    [...this.place.children].find((line) => line.node?.name === name)?.focus({ preventScroll: false });
  }

  key(event) {
    const lines = [...this.place.children].filter((line) => line.node);
    const at = lines.indexOf(document.activeElement);
    if (at < 0) return;
    const node = lines[at].node;
    const go = (to) => lines[to] && this.move(lines[to].node.name);
    const actions = {
      ArrowDown: () => go(at + 1),
      ArrowUp: () => go(at - 1),
      Home: () => go(0),
      End: () => go(lines.length - 1),
      ArrowRight: () => (node.inside.size && !this.open.has(node.name) ? this.toggle(node, true) : go(at + 1)),
      ArrowLeft: () => (node.inside.size && this.open.has(node.name) ? this.toggle(node, false) : this.up(lines, at)),
      Enter: () => this.choose(node),
      " ": () => this.choose(node),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  up(lines, at) {
    const depth = (line) => Number(line.getAttribute("aria-level"));
    for (let before = at - 1; before >= 0; before--) if (depth(lines[before]) < depth(lines[at])) return this.move(lines[before].node.name);
    return undefined;
  }
}

// Of very many modules in one those that are shown: the first divergence, failing ones, then the others, in their order.
function few(nodes) {
  if (nodes.length <= MOST_LINES) return nodes;
  const kept = new Set([...nodes.filter((node) => node.first), ...nodes.filter((node) => node.fails), ...nodes.slice(0, MOST_LINES)]);
  const shownNodes = new Set([...kept].slice(0, MOST_LINES));
  return nodes.filter((node) => shownNodes.has(node));
}
