// The details of one pair of calls.

function detailOf(item) {
  const [base, raw] = item.paths;
  const times = item.occurrence ? ` · call ${item.occurrence + 1} of this module` : "";
  const kinds = item.kinds[0] === item.kinds[1] ? item.kinds[1] : `${item.kinds[0]} vs ${item.kinds[1]}`;
  const parts = [
    make("h3", { id: "detail-title" }, make("code", {}, both(base, raw))),
    make("p", { class: "quiet" }, `${kinds}${times}${report.steps.length > 1 ? ` · step ${item.step}` : ""}`),
  ];
  for (const place of item.places) {
    if (place === 0) parts.push(make("p", { class: "different" }, "▶ The difference starts here: ", make("a", { href: "#place" }, "cause, numbers and lines of both sides"), "."));
    else parts.push(make("div", { class: "here" }, placeCard(place, "h3")));
  }
  parts.push(make("h4", {}, "Tensors"), tensorTable(item));
  const told = [...item.rows, ...item.local].filter((row) => row.message);
  if (told.length)
    parts.push(make("details", {}, make("summary", {}, "In words"), told.map((row) =>
      make("p", { class: "quiet" }, `${row.phase} ${row.tensor}${item.local.includes(row) ? ", by itself" : ""}: ${row.message}`))));
  for (const row of [...item.rows, ...item.local]) {
    if (row.picture) parts.push(make("h4", {}, `${row.phase} ${row.tensor}`), pictures(row.picture));
  }
  const printedBoth = [printed.base.get(base), printed.raw.get(raw)];
  if (printedBoth.some(Boolean)) {
    const rowsOf = ["base", "raw"].map((side, i) => make("tr", {}, make("th", { scope: "row" }, `${side}, ${report[side].framework}`), make("td", { class: "mono" }, printedBoth[i] || "not known")));
    parts.push(make("h4", {}, "As its framework prints it"), make("table", { class: "sides" }, make("tbody", {}, rowsOf)));
  }
  if (!item.places.length && item.stacks.some((stack) => stack >= 0 && report.stacks[stack].length)) {
    parts.push(make("h4", {}, "Called from"), make("div", { class: "cols" }, ["base", "raw"].map((side, i) => {
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

function tensorTable(item) {
  if (!item.rows.length && !item.local.length) return make("p", { class: "quiet" }, "None of its tensors was compared.");
  const byItself = new Map(item.local.map((row) => [`${row.phase} ${row.tensor}`, row]));
  const names = ["tensor", "dtype and shape", "verdict", "rel. error", "× noise", "× allowed"].concat(item.local.length ? ["by itself"] : []);
  const head = make("tr", {}, names.map((name, i) => make("th", { scope: "col", class: i > 2 ? "number" : "" }, name)));
  const lines = item.rows.map((row) => {
    const alone = byItself.get(`${row.phase} ${row.tensor}`);
    byItself.delete(`${row.phase} ${row.tensor}`);
    return tensorLine(row, item.local.length ? (alone ? `${SIGNS[alone.verdict]} ${short(alone.relative)}` : "–") : null);
  });
  for (const row of byItself.values()) lines.push(tensorLine({ ...row, relative: null, ratio: null, excess: null }, `${SIGNS[row.verdict]} ${short(row.relative)}`));
  return make("div", { class: "wide" }, make("table", { class: "tensors" }, make("thead", {}, head), make("tbody", {}, lines)));
}

function called(row) {
  if (row.phase === "gradient") return `gradient of ${row.name}`;
  if (row.phase === "weight") return `${row.name} after the step`;
  return row.phase === "buffer" ? `buffer ${row.name}` : `${row.phase} ${row.tensor}`;
}

function tensorLine(row, alone) {
  return make("tr", {},
    make("td", {}, called(row)), make("td", { class: "mono" }, row.forms ? row.forms.split(" / ").join(" ⇄ ") : "–"),
    make("td", { class: row.verdict }, `${SIGNS[row.verdict]} ${row.verdict}`),
    ...[short(row.relative), many(row.ratio), many(row.excess)].concat(alone === null ? [] : [alone]).map((value) => make("td", { class: "number" }, value)));
}
