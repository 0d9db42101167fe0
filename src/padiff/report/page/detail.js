// The details of one pair of calls: its tensors, the error of one of them, what both were built with, their sources.

function detailOf(item) {
  const [base, raw] = item.paths;
  const times = item.occurrence ? ` · call ${item.occurrence + 1} of this module` : "";
  const kinds = item.kinds[0] === item.kinds[1] ? item.kinds[1] : `${item.kinds[0]} vs ${item.kinds[1]}`;
  const parts = [
    make("h3", { id: "detail-title" }, make("code", {}, both(base, raw))),
    make("p", { class: "quiet" }, `${kinds}${times}${report.steps.length > 1 ? ` · step ${item.step}` : ""}`),
  ];
  for (const place of item.places) {
    if (place === 0) parts.push(make("p", { class: "different" }, "▶ The difference starts here: ", make("a", { href: "#place" }, "cause and what to try"), "."));
    else parts.push(make("div", { class: "here" }, placeCard(place, "h3")));
  }
  const one = make("div", { id: "tensor", role: "region", "aria-label": "The chosen tensor", "aria-live": "polite" });
  const choose = (row) => {
    for (const button of parts.table.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.row === row));
    one.replaceChildren(...tensorCard(row, twinOf(item, row)).filter(Boolean));
  };
  parts.table = tensorTable(item, choose);
  parts.push(make("h4", {}, "Tensors"), parts.table);
  const first = telling(item);
  if (first) {
    parts.push(one);
    choose(first);
  }
  parts.push(...attributes(base, raw));
  if (item.stacks.some((stack) => stack >= 0 && report.stacks[stack].length)) {
    parts.push(make("h4", {}, "Source: called from"), make("div", { class: "cols" }, ["base", "raw"].map((side, i) => {
      const stack = framesOf(item.stacks[i]);
      return sourceBlock(side, stack, stack.length ? [stack[stack.length - 1].line] : []);
    })));
  }
  return parts;
}

function framesOf(stack) {
  if (stack < 0) return [];
  return report.stacks[stack].map((frame) => {
    const [file, line, name] = report.frames[frame];
    return { file: text(file), line, function: text(name), text: "" };
  });
}

// ---- tensors

const sameTensor = (one) => `${one.phase} ${one.tensor}`;
const twinOf = (item, row) => (item.rows.includes(row) ? item.local.find((one) => sameTensor(one) === sameTensor(row)) : undefined);

// Of a call's tensors, the one that tells most: what differs in the phase that is looked at, the output before the input.
function telling(item) {
  const weight = (row) => (row.verdict === "different" ? 8 : 0) + (row.phase === state.phase ? 4 : 0) + (row.role === "input" ? 0 : 2) + (row.picture >= 0 ? 1 : 0);
  return [...item.rows, ...item.local].reduce((best, row) => (best === null || weight(row) > weight(best) ? row : best), null);
}

function tensorTable(item, choose) {
  if (!item.rows.length && !item.local.length) return make("p", { class: "quiet" }, "None of its tensors was compared.");
  const alone = item.local.length > 0;
  const known = new Set(item.rows.map(sameTensor));
  const names = ["tensor", "dtype and shape", "verdict", "rel. error", "× noise", "× allowed"].concat(alone ? ["by itself"] : []);
  const head = make("tr", {}, names.map((name, i) => make("th", { scope: "col", class: i > 2 ? "number" : "" }, name)));
  const lines = item.rows.map((row) => tensorLine(row, alone ? alsoAlone(twinOf(item, row)) : null, choose));
  for (const row of item.local)
    if (!known.has(sameTensor(row))) lines.push(tensorLine(row, alsoAlone(row), choose, true));
  return make("div", { class: "wide" }, make("table", { class: "tensors" }, make("thead", {}, head), make("tbody", {}, lines)));
}

const alsoAlone = (row) => (row ? `${SIGNS[row.verdict]} ${short(row.relative)}` : "–");

function called(row) {
  if (row.phase === "gradient") return `gradient of ${row.name}`;
  if (row.phase === "weight") return `${row.name} after the step`;
  return row.phase === "buffer" ? `buffer ${row.name}` : `${row.phase} ${row.tensor}`;
}

function tensorLine(row, alone, choose, only) {
  const button = make("button", { type: "button", class: "plain", "aria-pressed": "false", onclick: () => choose(row) }, called(row));
  button.row = row;
  return make("tr", {},
    make("td", {}, button), make("td", { class: "mono" }, row.forms ? row.forms.split(" / ").join(" ⇄ ") : "–"),
    make("td", { class: only ? "" : row.verdict }, only ? "–" : `${SIGNS[row.verdict]} ${row.verdict}`),
    ...(only ? ["–", "–", "–"] : [short(row.relative), many(row.ratio), many(row.excess)]).concat(alone === null ? [] : [alone]).map((value) => make("td", { class: "number" }, value)));
}

// One tensor: its numbers and its picture, as raw ran and, where that was tried, fed with base's tensors.
function tensorCard(row, twin) {
  const alone = local.includes(row);
  return [
    make("h4", {}, `${called(row)}${alone ? ", fed with base's tensors" : ""}`),
    row.message ? make("p", {}, row.message) : null,
    row.sources ? make("p", { class: "quiet" }, `held against base's ${row.sources}`) : null,
    numbersOf(row),
    ...errorOf(row),
    twin && (twin.picture >= 0 || twin.verdict === "different") ? make("details", {},
      make("summary", {}, `The same, fed with base's tensors: ${SIGNS[twin.verdict]} ${twin.verdict}`),
      twin.message ? make("p", {}, twin.message) : null,
      numbersOf(twin),
      ...errorOf(twin)) : null,
  ];
}

function errorOf(row) {
  return [row.picture >= 0 ? pictures(pictureOf(row.picture)) : make("p", { class: "quiet" }, whyNone(row))];
}

const pictureOf = (number) => JSON.parse(report.pictures[number]);

function whyNone(row) {
  if (row.verdict === "equal") return "Equal to the bit: there is no error to draw.";
  if (row.verdict !== "different") return "No picture: it agrees. Only what differs is drawn, and the model's own result, so that comparing costs no more.";
  if (row.relative === null) return "No picture: the two have no elements that could be held against each other.";
  return "No picture: of the many that differ, the first and the worst are drawn.";
}

function numbersOf(row) {
  const n = row.numbers;
  if (!n) return null;
  const list = make("dl", { class: "figures" });
  const add = (name, value) => value !== null && value !== "" && value !== undefined && list.append(make("div", {}, make("dt", {}, name), make("dd", {}, value)));
  const odd = row.relative === Infinity && row.picture >= 0 ? pictureOf(row.picture).nonfinite : 0;
  if (odd) add("no number on one side", `${odd.toLocaleString("en-US")} of ${n.size.toLocaleString("en-US")}`);
  add(odd ? "rms error elsewhere" : "rms error", short(n.rmse));
  if (n.allowed !== null) add("allowed", short(n.allowed));
  if (n.predicted !== null) add("rounding explains", short(n.predicted));
  add("rms of base", short(n.base_rms));
  add("largest error", `${short(n.max_abs)}${n.worst ? ` at [${n.worst.join(", ")}]` : ""}`);
  if (n.worst) add("there", `base ${seen(n.base_worst)}, raw ${seen(n.raw_worst)}`);
  if (odd) return list;
  if (n.mismatched !== null) add("over the bound", `${n.mismatched.toLocaleString("en-US")} of ${n.size.toLocaleString("en-US")}`);
  else add("elements", n.size.toLocaleString("en-US"));
  if (n.max_ulp) add("up to", `${many(n.max_ulp)} ulp`);
  add("cosine", typeof n.cosine === "number" ? n.cosine.toFixed(9) : n.cosine);
  add("layout", n.layout);
  return list;
}

// ---- what both modules were built with

function attributes(base, raw) {
  const pair = [modules.base.get(base), modules.raw.get(raw)];
  if (!pair.some(Boolean)) return [];
  const [ours, theirs] = pair.map((one) => (one ? facts(one.settings) : {}));
  const names = [...new Set([...Object.keys(ours), ...Object.keys(theirs)])];
  const differs = (name) => name in ours && name in theirs && !sameSetting(ours[name], theirs[name]);
  const rank = (name) => (differs(name) ? 0 : name in ours && name in theirs ? 1 : 2);
  names.sort((a, b) => rank(a) - rank(b));
  const count = names.filter(differs).length;
  const parts = [make("h4", {}, `Built with${count ? `: ${count} ${count === 1 ? "attribute differs" : "attributes differ"}` : ""}`)];
  if (names.length) parts.push(sideTable("attribute", names.map((name) => [name, valueOf(ours, name), valueOf(theirs, name), differs(name)])));
  const [held, holds] = pair.map((one) => (one ? facts(one.tensors) : {}));
  const tensors = [...new Set([...Object.keys(held), ...Object.keys(holds)])];
  if (tensors.length) parts.push(sideTable("tensor", tensors.map((name) => [name, held[name] || "–", holds[name] || "–", false])));
  if (!names.length && !tensors.length) parts.push(make("p", { class: "quiet" }, "Neither has attributes or tensors of its own."));
  const lines = pair.map((one) => (one ? one.line : ""));
  if (lines.some(Boolean))
    parts.push(make("details", {}, make("summary", {}, "As their frameworks print them"), ["base", "raw"].map((side, i) => make("p", { class: "mono" }, `${side}: ${lines[i] || "not known"}`))));
  return parts;
}

const valueOf = (settings, name) => (name in settings ? seen(settings[name]) : "–");

function sideTable(title, lines) {
  const head = make("tr", {}, [title, "base", "raw"].map((name) => make("th", { scope: "col" }, name)));
  const body = lines.map(([name, base, raw, differs]) => make("tr", { class: differs ? "changed" : "" },
    make("td", {}, differs ? make("span", { class: "different", title: "differs" }, "≠ ") : "", name, differs ? make("span", { class: "hidden" }, " (differs)") : ""),
    make("td", { class: "mono" }, base), make("td", { class: "mono" }, raw)));
  return make("table", { class: "twosides" }, make("thead", {}, head), make("tbody", {}, body));
}

// Equal, or another spelling of the same: 2 and (2, 2), None and False.
function sameSetting(one, other) {
  const [left, right] = [Array.isArray(one), Array.isArray(other)];
  if (left && right) return one.length === other.length && one.every((value, i) => sameSetting(value, other[i]));
  if (left || right) {
    const [list, single] = left ? [one, other] : [other, one];
    return list.length > 0 && list.every((value) => sameSetting(value, single));
  }
  if ((one === null && other === false) || (one === false && other === null)) return true;
  if (["number", "boolean"].includes(typeof one) && ["number", "boolean"].includes(typeof other)) {
    const [a, b] = [Number(one), Number(other)];
    return a === b || Math.abs(a - b) <= 1e-9 * Math.max(Math.abs(a), Math.abs(b));
  }
  return one === other;
}
