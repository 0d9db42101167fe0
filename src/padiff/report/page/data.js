// The report, from columns back to calls with their tensors.

const report = JSON.parse($("data").textContent);
const text = (number) => report.texts[number];
const modules = { base: new Map(), raw: new Map() };
for (const side of ["base", "raw"])
  for (const [path, line, settings, tensors] of report[side].modules) modules[side].set(text(path), { line: text(line), settings, tensors });
const facts = (number) => (text(number) ? JSON.parse(text(number)) : {});

const rows = unfold(report.rows);
const local = unfold(report.local);

function unfold(columns) {
  const names = Object.keys(columns).filter((name) => Array.isArray(columns[name]));
  return columns.phase.map((_, i) => {
    const row = { at: i };
    for (const name of names) row[name] = columns[name][i];
    row.phase = report.phases[row.phase];
    row.role = report.roles[row.role];
    row.verdict = report.verdicts[row.verdict];
    row.name = text(row.name);
    row.forms = text(row.forms);
    row.message = row.message < 0 ? "" : text(row.message);
    row.relative = numeric(row.relative);
    row.tensor = row.name && row.name !== row.role ? `${row.role} ${row.name}` : row.role;
    if (columns.paths[i]) {
      row.paths = columns.paths[i].map(text);
      row.kinds = columns.kinds[i].map(text);
    }
    if (columns.sources[i] !== undefined) row.sources = text(columns.sources[i]);
    row.picture = columns.pictures[i] === undefined ? -1 : columns.pictures[i];
    row.numbers = columns.numbers[i] ? unfoldNumbers(columns.numbers[i]) : null;
    return row;
  });
}

function unfoldNumbers(list) {
  const names = ["rmse", "base_rms", "max_abs", "mean_abs", "allowed", "predicted", "max_rel", "max_ulp", "size", "mismatched", "cosine", "worst", "base_worst", "raw_worst", "layout"];
  return Object.fromEntries(names.map((name, i) => [name, list[i]]));
}

// One item for each pair of calls of a step, in the order in which calls began: parents before what is inside.
const items = new Map(report.steps.map((step) => [step, itemsOf(step)]));

function itemsOf(step) {
  const calls = report.calls;
  const found = [];
  calls.step.forEach((of, i) => {
    if (of !== step) return;
    found.push({
      id: `c${step}-${calls.raw[i]}`, step, call: calls.raw[i], parent: calls.parent[i],
      paths: calls.paths[i].map(text), kinds: calls.kinds[i].map(text), occurrence: calls.occurrence[i],
      stacks: calls.stacks[i], rows: [], local: [], places: [], children: 0, depth: 0,
    });
  });
  found.sort((a, b) => a.call - b.call);
  const byCall = new Map(found.map((item) => [item.call, item]));
  const byPath = new Map();
  for (const item of found) {
    if (!byPath.has(item.paths[1])) byPath.set(item.paths[1], item);
    const parent = byCall.get(item.parent);
    item.around = parent || null;
    item.depth = parent ? parent.depth + 1 : 0;
    if (parent) parent.children += 1;
  }
  // What belongs to a module and not to a call goes to the module's first call, or stands by itself.
  const home = (row) => {
    if (row.call >= 0 && byCall.has(row.call)) return byCall.get(row.call);
    const paths = row.paths || ["", ""];
    if (!byPath.has(paths[1])) {
      const item = {
        id: `m${step}-${found.length}`, step, call: -1, parent: -1, paths, kinds: row.kinds || ["", ""], occurrence: 0,
        stacks: [-1, -1], rows: [], local: [], places: [], children: 0, depth: 0, around: null,
      };
      byPath.set(paths[1], item);
      found.push(item);
    }
    return byPath.get(paths[1]);
  };
  for (const row of rows) if (row.step === step) { row.item = home(row); row.item.rows.push(row); }
  for (const row of local) if (row.step === step) { row.item = home(row); row.item.local.push(row); }
  report.divergences.forEach((one, i) => {
    if (one.step !== step) return;
    const item = byCall.get(one.raw_call) || byPath.get(one.raw_path) || found[0];
    if (item) item.places.push(i);
    one.item = item;
  });
  found.forEach((item, i) => { item.index = i; judge(item); });
  return found;
}

// The worst verdict and the largest error of each phase; what the call was given is not its own doing.
function judge(item) {
  item.marks = {};
  item.errors = {};
  item.differs = false;
  for (const row of item.rows) {
    const rank = report.verdicts.indexOf(row.verdict);
    const known = item.marks[row.phase];
    if (row.role === "input" && row.phase === "forward" && item.around) continue;
    if (known === undefined || rank > report.verdicts.indexOf(known)) item.marks[row.phase] = row.verdict;
    if (row.verdict === "different") item.differs = true;
    const error = row.relative === null && row.verdict === "different" ? Infinity : row.relative;
    const worse = item.errors[row.phase];
    if (error !== null && (worse === undefined || !(error <= worse))) item.errors[row.phase] = error;
  }
}
