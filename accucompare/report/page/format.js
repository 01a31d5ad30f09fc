// Numbers as every report shows them.

const FORMATS = {
  scientific: (value) => exponent(value, 2),
  number: (value) => exponent(value, 5),
  percent: (value) => (value < 1e-4 ? exponent(value, 1) : `${(100 * value).toFixed(2)} %`),
  excess: (value) => (value < 1000 ? value.toFixed(2) : exponent(value, 1)),
  count: (value) => value.toLocaleString("en-US"),
  general: (value) => String(Number(value.toPrecision(7))),
};

function exponent(value, digits) {
  return value.toExponential(digits).replace(/e([+-])(\d)$/, "e$10$2");
}

function shown(column, value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  return value === 0 ? "0" : FORMATS[column.format](value);
}

// An error on a logarithmic scale from 0 (1e-9 or less) to 1 (1 or more, or no number); null for none.
function heat(error) {
  if (error === null) return null;
  if (!(error < 1)) return 1;
  return error <= 1e-9 ? 0 : 1 + Math.log10(error) / 9;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// An element with attributes, properties and children; texts become text, never HTML.
function make(tag, given = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria")) element.setAttribute(`aria-${name.slice(4).toLowerCase()}`, value);
    else if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}
