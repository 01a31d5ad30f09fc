// The data of the page: one gzip stream in base64, with a head at its end that says where each column lies (see page_data.py).

const MISSING = 0x7ffc0000; // the first bytes of a missing value; NaN has others

async function unpack() {
  const text = document.getElementById("data").textContent.trim();
  let packed;
  if (Uint8Array.fromBase64) packed = Uint8Array.fromBase64(text);
  else {
    const raw = atob(text);
    packed = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) packed[i] = raw.charCodeAt(i);
  }
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  const size = new DataView(bytes.buffer).getUint32(bytes.length - 4, true);
  const head = JSON.parse(decode(bytes, bytes.length - 4 - size, size));
  head.tables = Object.fromEntries(head.tables.map((about) => [about.title, new Table(bytes, about)]));
  return { head, bytes };
}

function decode(bytes, at, length) {
  return new TextDecoder().decode(bytes.subarray(at, at + length));
}

// Restores the upper and lower 32 bits of numbers from their first `count` bytes, stored plane by plane.
function unplane(bytes, at, rows, count, high, low, from) {
  for (let plane = 0; plane < count; plane++) {
    const target = plane < 4 ? high : low;
    const shift = 24 - 8 * (plane % 4);
    for (let i = 0; i < rows; i++) target[from + i] |= bytes[at + plane * rows + i] << shift;
  }
}

function toNumbers(high, low) {
  const halves = new Uint32Array(2 * high.length);
  for (let i = 0; i < high.length; i++) {
    halves[2 * i] = low[i];
    halves[2 * i + 1] = high[i];
  }
  return new Float64Array(halves.buffer);
}

// A table whose columns are unpacked on first use.
class Table {
  constructor(bytes, about) {
    this.bytes = bytes;
    this.rows = about.rows;
    this.at = about.at;
    this.block = about.block;
    this.columns = about.columns.map((column) => new Column(this, column));
    this.width = about.columns.reduce((sum, column) => sum + column.bytes, 0);
    let before = 0;
    for (const column of this.columns) {
      column.before = before;
      before += column.bytes;
    }
    this.byTitle = new Map(this.columns.map((column) => [column.title, column]));
  }

  column(title) {
    return this.byTitle.get(title);
  }

  value(title, row) {
    return this.byTitle.get(title)?.value(row) ?? null;
  }
}

class Column {
  constructor(table, about) {
    Object.assign(this, about);
    this.table = table;
    this.isText = about.format === "text";
  }

  bits() {
    if (this.high) return this;
    const { bytes, rows, at, block, width } = this.table;
    this.high = new Uint32Array(rows);
    this.low = new Uint32Array(rows);
    for (let start = 0; start < rows; start += block) {
      const length = Math.min(block, rows - start);
      unplane(bytes, at + start * width + this.before * length, length, this.bytes, this.high, this.low, start);
    }
    if (this.other) {
      const other = this.table.column(this.other).bits();
      for (let i = 0; i < rows; i++) {
        this.high[i] ^= other.high[i];
        this.low[i] ^= other.low[i];
      }
    }
    return this;
  }

  // A column's numbers; missing ones are NaN.
  get numbers() {
    if (!this.cached) this.cached = toNumbers(this.bits().high, this.low);
    return this.cached;
  }

  // For a column of texts: the index of each row's text.
  get indices() {
    return this.bits().high;
  }

  get words() {
    if (!this.listed) this.listed = JSON.parse(decode(this.table.bytes, ...this.texts));
    return this.listed;
  }

  value(row) {
    if (this.isText) return this.words[this.indices[row]];
    const number = this.numbers[row];
    return this.high[row] === MISSING ? null : number;
  }

  get empty() {
    if (this.isText) return this.words.every((word) => word === "");
    return this.bits().high.every((bits) => bits === MISSING);
  }
}
