// The place where a difference starts: what, how bad, why, and the lines of both sides.

function placeCard(i, heading) {
  const one = report.divergences[i];
  const outcome = one.comparison.outcome;
  const kinds = one.base_kind === one.raw_kind ? one.raw_kind : `${one.base_kind} vs ${one.raw_kind}`;
  return [
    make(heading, { class: "big", id: heading === "h2" ? "place-title" : null }, "It starts at ", make("code", {}, both(one.base_path, one.raw_path))),
    make("p", { class: "lead" }, `${kinds}, in ${one.where}${one.bad ? ` · ${one.bad}` : ""}`),
    one.note ? make("p", {}, one.note) : null,
    make("div", { class: "cols" },
      make("div", {},
        make("h3", {}, one.causes.length ? "What to try" : "What is known"),
        one.causes.length
          ? one.causes.slice(0, 4).map((cause, k) => make("div", { class: "cause" },
              make("b", {}, cause.name), `: ${cause.evidence} `, make("span", { class: "quiet" }, `(${one.sure[k]})`)))
          : make("p", { class: "quiet" }, one.phase === "forward" && one.role === "output" ? "No known cause fits. What the module was given agrees with base, what it returns does not: read its lines on both sides." : "No known cause fits."),
        one.settings.length ? settingsTable(one.settings) : null),
      make("div", {},
        make("h3", {}, "What was found"),
        make("p", {}, outcome.message),
        numbersList(one)),
    ),
    one.source.some((stack) => stack.length)
      ? make("div", { class: "cols" }, ...["base", "raw"].map((side, k) => sourceBlock(side, one.source[k], one.marked[k])))
      : null,
    pictures(one.comparison.picture),
  ];
}

function settingsTable(settings) {
  const head = make("tr", {}, ...["setting", "base", "raw"].map((name) => make("th", { scope: "col" }, name)));
  const lines = settings.map(([name, base, raw]) => make("tr", {}, make("td", {}, name), ...[base, raw].map((value) => make("td", { class: "mono" }, seen(value)))));
  return make("div", {}, make("h4", {}, "Built differently"), make("table", {}, make("thead", {}, head), make("tbody", {}, lines)));
}

function numbersList(one) {
  const { outcome, forms } = one.comparison;
  const numbers = outcome.numbers;
  const list = make("dl");
  const add = (name, value) => value !== null && value !== "" && list.append(make("dt", {}, name), make("dd", {}, value));
  add("tensor", one.tensor);
  if (forms[0] || forms[1]) add("form", forms[0] === forms[1] || !forms[0] ? forms[1] : `base ${forms[0]}, raw ${forms[1] || "unknown"}`);
  add("layout", outcome.layout);
  if (numbers) {
    const odd = outcome.reason === "nonfinite";
    if (!odd) add("relative error", short(one.relative));
    else if (one.comparison.picture) add("no number", `${one.comparison.picture.nonfinite.toLocaleString("en-US")} of ${numbers.size.toLocaleString("en-US")} elements, on one side`);
    add(odd ? "rms error elsewhere" : "rms error", short(numbers.rmse));
    if (outcome.allowed !== null) add("allowed", `${short(outcome.allowed)} (${report.tolerance})`);
    if (outcome.predicted !== null) add("rounding explains", short(outcome.predicted));
    if (odd) return list;
    add("largest", `${short(numbers.max_abs)}${numbers.worst && numbers.base_worst !== null ? ` at [${numbers.worst.join(", ")}]: base ${seen(numbers.base_worst)}, raw ${seen(numbers.raw_worst)}` : ""}`);
    if (numbers.mismatched !== null) add("elements", `${numbers.mismatched.toLocaleString("en-US")} of ${numbers.size.toLocaleString("en-US")} differ`);
    add("cosine", typeof numbers.cosine === "number" ? numbers.cosine.toFixed(9) : numbers.cosine);
  }
  return list;
}

function sourceBlock(side, stack, marked) {
  const title = `${side[0].toUpperCase()}${side.slice(1)}`;
  if (!stack.length) return make("div", {}, make("h3", {}, title), make("p", { class: "quiet" }, "source not known"));
  const line = stack[stack.length - 1];
  return make("div", {}, make("h3", {}, title), make("p", { class: "file" }, `${shorter(line.file)}:${line.line} in ${line.function}`), codeLines(line.file, marked, line));
}

function shorter(file) {
  const parts = file.split(/[\\/]/);
  return parts.length <= 4 ? file : `…/${parts.slice(-3).join("/")}`;
}

// The marked lines and two around each; a gap is shown as one.
function codeLines(file, marked, line) {
  const known = report.code[file] || {};
  const numbers = Object.keys(known).map(Number).filter((n) => marked.some((m) => Math.abs(m - n) <= 2)).sort((a, b) => a - b);
  while (numbers.length && !known[numbers[numbers.length - 1]].trim()) numbers.pop();
  while (numbers.length && !known[numbers[0]].trim()) numbers.shift();
  if (!numbers.length) return make("pre", {}, make("span", { class: "marked" }, `> ${line.line}  ${line.text || ""}`));
  const indent = Math.min(...numbers.map((n) => known[n]).filter((t) => t.trim()).map((t) => t.length - t.trimStart().length));
  const widest = String(numbers[numbers.length - 1]).length;
  return make("pre", { tabindex: "0", "aria-label": `code of ${file}` }, numbers.map((n) => {
    const here = marked.includes(n);
    return make("span", { class: here ? "marked" : "" }, `${here ? ">" : " "} ${String(n).padStart(widest)}  ${known[n].slice(indent)}`);
  }));
}

// ---- the error of one tensor: how large, where, the first elements

function pictures(picture) {
  if (!picture) return null;
  return make("div", { class: "pictures" }, histogram(picture), heatMap(picture), firstOnes(picture));
}

function histogram(picture) {
  if (!picture.counts.length) return null;
  if (picture.counts.length === 1)
    return make("div", {}, make("h4", {}, "Absolute error"), make("p", {}, `about ${short(10 ** picture.high)} wherever they differ`), make("p", { class: "quiet" }, rest(picture)));
  const box = make("div", { role: "img", "aria-label": `Histogram of absolute errors from ${short(10 ** picture.low)} to ${short(10 ** picture.high)}` });
  const step = (picture.high - picture.low) / picture.counts.length || 0.1;
  const axis = { stroke: colour("--quiet"), grid: { show: false }, ticks: { stroke: colour("--line"), width: 1 }, font: "11px system-ui" };
  new uPlot({
    width: 310, height: 170, legend: { show: false }, cursor: { show: false },
    scales: { x: { time: false, range: [picture.low - step * 0.5, picture.high + step * 0.5] }, y: { range: (u, min, max) => [0, max || 1] } },
    axes: [{ ...axis, space: 60, values: (u, ticks) => ticks.map((t) => (10 ** t).toExponential(0)) }, { ...axis, size: 54 }],
    series: [{}, { stroke: colour("--accent"), fill: colour("--noise"), width: 1, paths: uPlot.paths.bars({ size: [1, 100], align: 1 }), points: { show: false } }],
  }, [picture.counts.map((_, i) => picture.low + i * step), picture.counts], box);
  return make("div", {}, make("h4", {}, "Absolute error, elements by size"), box, make("p", { class: "quiet" }, rest(picture)));
}

const rest = ({ size, equal, nonfinite }) =>
  [`${size.toLocaleString("en-US")} elements`, equal ? `${equal.toLocaleString("en-US")} without error` : "", nonfinite ? `${nonfinite.toLocaleString("en-US")} no number on one side` : ""].filter(Boolean).join(", ");

function heatMap(picture) {
  const values = picture.cells.flat().map(numeric);
  const finite = values.filter((v) => Number.isFinite(v) && v > 0);
  const high = finite.length ? Math.log10(most(finite)) : 0;
  const low = Math.max(finite.length ? Math.log10(least(finite)) : 0, high - 6);
  const [down, across] = picture.axes.length > 1 ? picture.axes : [null, picture.axes[0]];
  const extent = picture.extent;
  const words = down === null ? `axis ${across} (${extent[0]}) across` : `axis ${down} (${extent[0]}) down, axis ${across} (${extent[1]}) across`;
  const table = make("table", { class: picture.cells.length <= 8 && picture.cells[0].length <= 10 ? "heat few" : "heat", role: "img", "aria-label": `Largest absolute error by place, ${words}` },
    picture.cells.map((line) => make("tr", {}, line.map((cell) => {
      const v = numeric(cell);
      const td = make("td", { class: Number.isFinite(v) ? "" : "odd", title: Number.isFinite(v) ? short(v) : "not a number" }, Number.isFinite(v) ? "" : "!");
      const share = v > 0 && Number.isFinite(v) ? 0.15 + 0.85 * (high > low ? Math.max(0, (Math.log10(v) - low) / (high - low)) : 1) : Number.isFinite(v) ? 0 : 1;
      if (share) td.style.background = `rgba(${colour("--heat")}, ${share.toFixed(2)})`;
      return td;
    }))));
  return make("div", {}, make("h4", {}, "Where it differs"), table, make("p", { class: "quiet" }, `${words}; stronger is larger${finite.length ? `, up to ${short(10 ** high)}` : ""}${values.some((v) => !Number.isFinite(v)) ? "; ! is no number" : ""}`));
}

function firstOnes(picture) {
  if (!picture.first.length) return null;
  const head = make("tr", {}, ...["index", "base", "raw"].map((name, i) => make("th", { scope: "col", class: i ? "number" : "" }, name)));
  const lines = picture.first.map((one) => make("tr", {}, make("td", { class: "mono" }, `[${one.index.join(", ")}]`), ...[one.base, one.raw].map((value) => make("td", { class: "mono number" }, seen(value)))));
  return make("div", {}, make("h4", {}, "First elements that differ"), make("table", {}, make("thead", {}, head), make("tbody", {}, lines)));
}
