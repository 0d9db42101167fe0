// How things are said, and how elements are made: only ever as text, so that no name of a model becomes markup.

const $ = (id) => document.getElementById(id);

function make(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const place = (path) => path || "(the model itself)";
const both = (base, raw) => (base === raw ? place(raw) : `${place(base)} vs ${place(raw)}`);
const last = (path) => path.slice(path.lastIndexOf(".") + 1);

// Numbers that JSON cannot hold come as words.
const numeric = (value) => (value === "inf" ? Infinity : value === "nan" ? NaN : value);

function short(value) {
  const number = numeric(value);
  if (number === null || number === undefined) return "–";
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "∞" : "-∞";
  return number === 0 ? "0" : number.toExponential(1);
}

function many(value) {
  const number = numeric(value);
  if (number === null || number === undefined) return "–";
  if (!Number.isFinite(number)) return "∞";
  if (number >= 1e6) return number.toExponential(1);
  return number >= 10 ? Math.round(number).toLocaleString("en-US") : String(Number(number.toPrecision(2)));
}

// An element as it was seen: numbers in full, whatever they are.
function seen(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `(${value.map(seen).join(", ")}${value.length === 1 ? "," : ""})`;
  if (typeof value !== "number") return String(value);
  const short = Number(value.toPrecision(9));
  return short !== 0 && Math.abs(short) < 1e-3 ? short.toExponential() : String(short);
}

const SIGNS = { equal: "=", rounding: "✓", precision: "✓", different: "✗" };
const percent = (share) => `${(100 * share).toFixed(share === 0 || share === 1 || (share >= 0.005 && share < 0.995) ? 0 : 1)} %`;
