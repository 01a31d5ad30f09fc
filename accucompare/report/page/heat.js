// Heat maps, layer by step or by rank: how large a number is on a logarithmic scale, from dark (small) over green to
// yellow (large); with a limit, blue below it and red over it.

const RAMP = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const LIMIT_SPAN = 1000; // how far around a limit colours differ at most
const HEAD = 14; // pixels above the cells, for the numbers of the columns
const MOST_HIGH = 14000; // pixels of a canvas

function ramp(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const from = RAMP[Math.min(Math.floor(at), RAMP.length - 2)];
  const to = RAMP[Math.min(Math.floor(at), RAMP.length - 2) + 1];
  const part = at - Math.min(Math.floor(at), RAMP.length - 2);
  return from.map((value, index) => Math.round(value + part * (to[index] - value)));
}

class HeatMap {
  // choose(row): what a click on a line does.
  constructor(box, bytes, about, names, choose) {
    const count = names.length * about.steps.length;
    const high = new Uint32Array(count);
    unplane(bytes, about.at, count, 3, high, high, 0);
    Object.assign(this, { high, values: toNumbers(high, new Uint32Array(count)), about, names });
    this.row = Math.max(1, Math.min(14, Math.floor(MOST_HIGH / names.length)));
    const [low, top] = this.bounds();
    [this.low, this.top] = [Math.log10(low), Math.log10(top)];
    this.canvas = make("canvas", { role: "img", ariaLabel: `${about.title}, layer by ${about.across ?? "step"}` });
    this.tip = make("div", { className: "tip", hidden: true });
    this.scroll = make("div", { className: "heat" }, this.canvas);
    const scale = make("span", { className: about.limit ? "scale limit" : "scale" }, exponent(low, 0), make("i"), exponent(top, 0));
    const endless = about.limit ? "fails without a number" : "not finite";
    const caption = make("figcaption", {}, about.title, scale);
    if (this.values.some((value, at) => high[at] !== MISSING && !(value < Infinity))) caption.append(make("span", { className: "notfinite" }, endless));
    this.figure = make("figure", {}, caption, this.scroll, this.tip);
    box.append(this.figure);
    this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    this.canvas.addEventListener("mouseleave", () => (this.tip.hidden = true));
    if (choose) this.canvas.addEventListener("click", (event) => names[this.rowAt(event)] !== undefined && choose(this.rowAt(event)));
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.scroll);
  }

  rowAt(event) {
    return Math.floor((event.offsetY - HEAD) / this.row);
  }

  // The number of a line in a step; null where there is none.
  value(row, step) {
    const column = this.about.steps.indexOf(step);
    const at = row * this.about.steps.length + column;
    return column < 0 || this.high[at] === MISSING ? null : this.values[at];
  }

  bounds() {
    let [low, high] = [Infinity, 0];
    for (const value of this.values) {
      if (!(value > 0 && value < Infinity)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    const limit = this.about.limit;
    if (!limit) return high ? [low, high] : [1e-8, 1];
    const least = Math.max(Math.min(10 ** Math.floor(Math.log10(low)), limit / 10), limit / LIMIT_SPAN);
    return [least, Math.min(Math.max(10 ** Math.ceil(Math.log10(high || 1)), limit * 10), limit * LIMIT_SPAN)];
  }

  draw() {
    const wide = this.scroll.clientWidth;
    if (!wide || wide === this.drawn) return;
    this.drawn = wide;
    const labelled = this.row >= 11;
    this.left = labelled ? Math.min(230, Math.round(wide * 0.35)) : 0;
    const [columns, rows] = [this.about.steps.length, this.names.length];
    const high = HEAD + rows * this.row;
    const ratio = high * devicePixelRatio < 16000 ? devicePixelRatio : 1;
    this.canvas.width = wide * ratio;
    this.canvas.height = high * ratio;
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${high}px`;
    const ctx = this.canvas.getContext("2d");
    ctx.scale(ratio, ratio);
    ctx.font = "10px system-ui";
    ctx.textBaseline = "middle";
    const widest = Math.max(...this.about.steps.map((step) => ctx.measureText(step).width));
    this.cell = Math.min((wide - this.left) / columns, Math.max(60, widest + 8));
    this.numbers(ctx);
    for (let row = 0; row < rows; row++) {
      const y = HEAD + row * this.row;
      for (let column = 0; column < columns; column++) {
        const fill = this.fill(row * columns + column);
        if (fill === null) continue;
        ctx.fillStyle = fill;
        const gap = this.cell > 4 && this.row > 4 ? 1 : 0;
        ctx.fillRect(this.left + column * this.cell, y, Math.max(this.cell - gap, 1), this.row - gap);
      }
      if (!labelled) continue;
      ctx.fillStyle = color("ink");
      ctx.fillText(shortened(ctx, this.names[row], this.left - 8), 0, y + this.row / 2);
    }
    const over = this.about.limit ? this.values.findIndex((value) => value > this.about.limit) : -1;
    if (over >= 0) this.scroll.scrollTop = Math.max(0, (Math.floor(over / columns) - 3) * this.row);
  }

  // The columns' numbers above the cells, as many as fit.
  numbers(ctx) {
    ctx.fillStyle = color("muted");
    let free = 0;
    this.about.steps.forEach((step, column) => {
      const x = this.left + column * this.cell;
      if (x < free) return;
      ctx.fillText(step, x, HEAD / 2);
      free = x + ctx.measureText(step).width + 8;
    });
  }

  fill(at) {
    if (this.high[at] === MISSING) return null;
    const value = this.values[at];
    if (!Number.isFinite(value)) return color("over");
    if (value <= 0) return color("grid");
    const at10 = Math.log10(value);
    if (!this.about.limit) return `rgb(${ramp((at10 - this.low) / Math.max(this.top - this.low, 1e-9)).join(" ")})`;
    const limit = Math.log10(this.about.limit);
    const far = Math.min((at10 - limit) / ((at10 > limit ? this.top : this.low) - limit), 1) * 100; // how far from the limit, on either side
    return value > this.about.limit
      ? `color-mix(in oklab, ${color("heat-over")} ${far}%, ${color("heat-at")})`
      : `color-mix(in oklab, ${color("heat-under")} ${far}%, ${color("heat-near")})`;
  }

  hover(event) {
    const column = Math.floor((event.offsetX - this.left) / this.cell);
    const row = this.rowAt(event);
    const name = this.names[row];
    const step = this.about.steps[column];
    if (name === undefined || step === undefined || column < 0) return void (this.tip.hidden = true);
    const at = row * this.about.steps.length + column;
    const value = this.high[at] === MISSING ? "not looked at" : shown({ format: "number" }, this.values[at]);
    this.tip.replaceChildren(make("b", { dir: "auto" }, name), make("div", {}, `${this.about.across ?? "step"} ${step}: ${value}`));
    this.tip.hidden = false;
    const box = this.figure.getBoundingClientRect();
    this.tip.style.left = `${Math.min(event.clientX - box.left + 14, box.width - this.tip.offsetWidth - 4)}px`;
    this.tip.style.top = `${event.clientY - box.top + 14}px`;
    return undefined;
  }
}

// A name cut in the middle to the available width.
function shortened(ctx, name, room) {
  if (ctx.measureText(name).width <= room) return name;
  let kept = name.length;
  while (kept > 4 && ctx.measureText(`${name.slice(0, kept >> 1)}…${name.slice(-(kept >> 1))}`).width > room) kept -= 2;
  return `${name.slice(0, kept >> 1)}…${name.slice(-(kept >> 1))}`;
}
