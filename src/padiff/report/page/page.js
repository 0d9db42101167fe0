// The page: puts the parts in their places and follows mouse and keys.

const state = { step: report.steps[0] || 0, phase: "forward", alone: false, query: "", filter: "all", chosen: null };
const folded = new Set();
const FILTERS = { all: "all calls", different: "what differs", start: "where it starts", agrees: "what agrees" };
for (const phase of report.phases) if (rows.some((row) => row.phase === phase)) FILTERS[phase] = `differs in ${phase}`;

// ---- theme

const THEMES = ["auto", "light", "dark"];
const system = matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";
try { theme = THEMES.includes(localStorage.getItem("padiff-theme")) ? localStorage.getItem("padiff-theme") : "auto"; } catch { /* no storage here */ }

function applyTheme() {
  document.documentElement.dataset.theme = theme === "auto" ? (system.matches ? "dark" : "light") : theme;
  $("theme").textContent = `Theme: ${theme}`;
  if (plot.rows) plot.redraw();
  if (state.chosen) showDetail();
  drawPlace();
}
system.addEventListener("change", applyTheme);
$("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  try { localStorage.setItem("padiff-theme", theme); } catch { /* not kept, then */ }
  applyTheme();
});

// ---- overview

const SIGN_OF = { aligned: "✓", diverged: "✗", unsure: "?" };
$("badge").textContent = `${SIGN_OF[report.verdict]} ${report.headline}`;
$("badge").classList.add(report.verdict);
const named = (side) => `${side.name} (${side.framework}${side.version ? ` ${side.version}` : ""})`;
$("names").textContent = `${named(report.base)} and ${named(report.raw)}`;
const KNOWN = ["device", "device name", "parameters", "mode"];
for (const side of ["base", "raw"]) {
  const told = KNOWN.map((name) => report[side].environment[name]).filter(Boolean);
  if (told.length) $("sides").append(make("dt", {}, side), make("dd", {}, told.join(", ")));
}
const shares = Object.entries(report.coverage);
if (shares.length) $("sides").append(make("dt", {}, "compared"), make("dd", {}, shares.map(([what, share]) => `${percent(share)} of raw's ${what}`).join(", ")));
$("tally").textContent = `${report.tally}.`;
$("notes").append(...report.notes.map((note) => make("li", {}, note)));
$("notes").hidden = !report.notes.length;

function drawPlace() {
  if (!report.divergences.length) return;
  $("place").hidden = false;
  $("place").className = "start";
  $("place").replaceChildren(...placeCard(0, "h2").filter(Boolean));
}

if (report.divergences.length > 1) {
  $("further").hidden = false;
  $("further").append(
    make("h2", { id: "further-title" }, `${report.divergences.length - 1} further ${report.divergences.length === 2 ? "place goes" : "places go"} wrong by itself`.replace("go wrong by itself", "go wrong by themselves")),
    make("ul", {}, report.divergences.slice(1, 51).map((one) => make("li", {},
      make("button", { type: "button", onclick: () => chooseItem(one.item, true) }, both(one.base_path, one.raw_path)),
      ` ${one.where}${one.causes.length ? ` · ${one.causes[0].name}: ${one.causes[0].evidence}` : ""}`))));
}

// ---- plot

$("phase-title").textContent = report.phases.filter((phase) => rows.some((row) => row.phase === phase)).map((phase) => LETTERS[phase]).join(" ");
$("letters").append(" · ", report.phases.filter((phase) => rows.some((row) => row.phase === phase)).map((phase) => `${LETTERS[phase]} ${NAMES[phase].toLowerCase()}`).join(", "));
const plot = new DepthPlot($("plot"), $("plot-text"), (row) => chooseItem(row.item, true));
const phases = report.phases.filter((phase) => rows.some((row) => row.phase === phase));
if (report.divergences.length) {
  state.step = report.divergences[0].step;
  if (phases.includes(report.divergences[0].phase)) state.phase = report.divergences[0].phase;
} else if (!phases.includes(state.phase) && phases.length) state.phase = phases[0];

function drawControls() {
  const pressed = (name, on, act) => make("button", { type: "button", "aria-pressed": String(on), onclick: act }, name);
  const parts = phases.map((phase) => pressed(NAMES[phase], phase === state.phase, () => { state.phase = phase; drawDepth(); drawTree(); }));
  if (report.steps.length > 1) {
    const select = make("select", { id: "step", onchange: (event) => { state.step = Number(event.target.value); drawDepth(); drawTree(); } },
      report.steps.map((step) => make("option", { value: step, selected: step === state.step }, step)));
    parts.push(make("label", {}, "Step ", select));
  }
  if (local.some((row) => row.phase === state.phase && row.step === state.step))
    parts.push(pressed("Each call by itself", state.alone, () => { state.alone = !state.alone; drawDepth(); }));
  const focused = document.activeElement && document.activeElement.parentElement === $("depth-controls") ? document.activeElement.textContent : null;
  $("depth-controls").replaceChildren(...parts);
  if (focused) [...$("depth-controls").querySelectorAll("button")].find((button) => button.textContent === focused)?.focus();
}

function drawDepth() {
  const alone = state.alone && local.some((row) => row.phase === state.phase && row.step === state.step);
  drawControls();
  plot.show(state.phase, state.step, alone);
}

// ---- the tree of calls

const tree = new LongList($("tree"), 30, drawRow);
let visible = [];

function fits(item) {
  if (state.query && !`${item.paths[0]}\n${item.paths[1]}\n${item.kinds[0]}\n${item.kinds[1]}`.toLowerCase().includes(state.query)) return false;
  if (state.filter === "all") return true;
  if (state.filter === "different") return item.differs;
  if (state.filter === "agrees") return !item.differs && item.rows.length > 0;
  if (state.filter === "start") return item.places.length > 0;
  return item.marks[state.filter] === "different";
}

function drawTree() {
  $("error-title").textContent = state.phase === "forward" ? "error" : `in ${state.phase}`;
  const all = items.get(state.step) || [];
  const narrowed = state.query !== "" || state.filter !== "all";
  const wanted = new Set();
  let count = 0;
  for (const item of all) {
    item.fits = fits(item);
    if (!item.fits) continue;
    count += 1;
    for (let one = item; one && !wanted.has(one); one = one.around) wanted.add(one);
  }
  const hidden = new Set();
  visible = all.filter((item) => {
    if (narrowed) return wanted.has(item);
    if (item.around && (hidden.has(item.around) || folded.has(item.around))) { hidden.add(item); return false; }
    return true;
  });
  $("shown").textContent = narrowed ? `${count.toLocaleString("en-US")} of ${all.length.toLocaleString("en-US")} calls` : `${all.length.toLocaleString("en-US")} calls`;
  tree.show(visible);
  markActive();
}

function drawRow(item) {
  const [base, raw] = item.paths;
  const name = item.around ? raw.startsWith(`${item.around.paths[1]}.`) ? raw.slice(item.around.paths[1].length + 1) : place(raw) : place(raw);
  const open = !folded.has(item);
  const marks = phases.map((phase) => (item.marks[phase] ? SIGNS[item.marks[phase]] : "·")).join(" ");
  const differs = item.marks[state.phase] === "different";
  const element = make("div", {
    class: `row${item === state.chosen ? " chosen" : ""}${item.places.length ? " startrow" : ""}${item.fits ? "" : " context"}`,
    role: "treeitem", id: item.id, "aria-level": item.depth + 1, "aria-selected": String(item === state.chosen),
    "aria-expanded": item.children ? String(open) : null,
    "aria-label": `${both(base, raw)}, ${item.kinds[1]}${item.places.length ? ", a difference starts here" : ""}, ${spoken(item)}`,
  },
    make("span", { class: "name" },
      make("span", { class: "twist" }, item.children ? (open ? "▾" : "▸") : ""),
      item.places.length ? make("span", { class: "flag" }, "▶ ") : "",
      make("span", { class: differs ? "different" : "" }, name), " ",
      item.places.length ? make("span", { class: "flag" }, "starts here ") : "",
      make("span", { class: "kind" }, item.kinds[1]),
      base !== raw ? make("span", { class: "other" }, ` ⇄ ${place(base)}`) : ""),
    make("span", { class: `error ${differs ? "different" : ""}` }, short(item.errors[state.phase])),
    make("span", { class: `marks ${item.differs ? "different" : ""}`, title: spoken(item) }, marks));
  element.querySelector(".name").style.paddingLeft = `${Math.min(item.depth, 14) * 14}px`;
  element.addEventListener("click", (event) => {
    if (event.target.classList.contains("twist") && item.children) fold(item);
    else chooseItem(item, false);
  });
  return element;
}

function spoken(item) {
  const parts = report.phases.filter((phase) => item.marks[phase]).map((phase) => `${phase} ${item.marks[phase]}`);
  return parts.length ? parts.join(", ") : "not compared";
}

function fold(item, how) {
  const now = how === undefined ? !folded.has(item) : how;
  if (now) folded.add(item);
  else folded.delete(item);
  drawTree();
}

function markActive() {
  const shown = state.chosen && visible.includes(state.chosen);
  if (shown) $("tree").setAttribute("aria-activedescendant", state.chosen.id);
  else $("tree").removeAttribute("aria-activedescendant");
}

function showDetail() {
  $("detail").replaceChildren(...detailOf(state.chosen).filter(Boolean));
}

function chooseItem(item, reveal) {
  if (!item) return;
  state.chosen = item;
  if (item.step !== state.step) { state.step = item.step; drawDepth(); }
  if (reveal) {
    state.query = "";
    state.filter = "all";
    $("search").value = "";
    $("filter").value = "all";
    for (let one = item.around; one; one = one.around) folded.delete(one);
    drawTree();
    tree.reveal(visible.indexOf(item));
    $("calls").scrollIntoView({ block: "nearest" });
  } else tree.now();
  markActive();
  showDetail();
  $("detail").scrollTop = 0;
}

function step(by) {
  if (!visible.length) return;
  const at = visible.indexOf(state.chosen);
  const next = at < 0 ? (by > 0 ? 0 : visible.length - 1) : Math.min(visible.length - 1, Math.max(0, at + by));
  chooseItem(visible[next], false);
  tree.reveal(next);
}

// ---- keys

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "Escape") {
    if (event.target === $("search") && $("search").value) { $("search").value = ""; search(); }
    else $("tree").focus();
    event.preventDefault();
    return;
  }
  if (typing) {
    if (event.target === $("search") && (event.key === "Enter" || event.key === "ArrowDown")) {
      $("tree").focus();
      if (!visible.includes(state.chosen) || !state.chosen.fits) {
        const first = visible.find((item) => item.fits);
        if (first) { chooseItem(first, false); tree.reveal(visible.indexOf(first)); }
      }
      event.preventDefault();
    }
    return;
  }
  const inTree = event.target === $("tree");
  const page = Math.max(1, Math.floor($("tree").clientHeight / 30) - 1);
  const item = state.chosen;
  const acts = {
    "/": () => { $("search").focus(); $("search").select(); },
    j: () => step(1),
    k: () => step(-1),
    ...(inTree ? {
      ArrowDown: () => step(1), ArrowUp: () => step(-1), PageDown: () => step(page), PageUp: () => step(-page),
      Home: () => step(-visible.length), End: () => step(visible.length),
      ArrowLeft: () => { if (item && item.children && !folded.has(item)) fold(item, true); else if (item && item.around) { chooseItem(item.around, false); tree.reveal(visible.indexOf(item.around)); } },
      ArrowRight: () => { if (item && folded.has(item)) fold(item, false); },
      Enter: () => { if (item) { showDetail(); $("detail").focus(); } },
    } : {}),
  };
  if (acts[event.key]) {
    acts[event.key]();
    if (event.key === "j" || event.key === "k") $("tree").focus({ preventScroll: true });
    event.preventDefault();
  }
});

function search() {
  state.query = $("search").value.trim().toLowerCase();
  $("tree").scrollTop = 0;
  drawTree();
}
$("search").addEventListener("input", search);
$("filter").append(...Object.entries(FILTERS).map(([value, name]) => make("option", { value }, name)));
$("filter").addEventListener("change", () => { state.filter = $("filter").value; $("tree").scrollTop = 0; drawTree(); });

// ---- what stayed alone, weights, and where it ran

function section(id, title, ...parts) {
  $(id).hidden = false;
  $(id).append(make("h2", { id: `${id}-title` }, title), ...parts.flat());
}

function lines(box, list, cells) {
  box.style.height = `${Math.min(300, list.length * 30 + 2)}px`;
  new LongList(box, 30, (one) => make("div", { class: "row line" }, cells(one).map((cell) => make("span", { title: cell }, cell)))).show(list);
  return box;
}

const alone = report.unmatched.filter((one) => !one[4]);
const inside = [...new Set(report.unmatched.filter((one) => one[4]).map((one) => one[4]))];
if (report.unmatched.length) {
  const box = make("div", { class: "scroll", tabindex: "0", "aria-label": "What has no partner" });
  section("alone", alone.length ? `Without partner (${alone.length.toLocaleString("en-US")})` : "Compared as one",
    inside.length ? make("p", { class: "quiet" }, `Inside these nothing was compared by itself: ${inside.slice(0, 12).join(", ")}${inside.length > 12 ? ` and ${inside.length - 12} more` : ""}`) : "",
    alone.length ? box : "");
  if (alone.length) lines(box, alone, ([side, path, kind, why]) => [`${side} ${place(path)}`, why, kind]);
}
if (report.weights.length) {
  const box = make("div", { class: "scroll", tabindex: "0", "aria-label": "Where raw's weights come from" });
  const unsure = report.weights.filter((one) => one[4] < 0.95).length;
  section("weights", `Weights (${report.weights.length.toLocaleString("en-US")})`,
    make("p", { class: "quiet" }, `Where each tensor of raw comes from${unsure ? `; ${unsure} unsure, marked ?` : ""}. Raw's tensor, base's, evidence.`), box);
  lines(box, report.weights, ([path, sources, shape, evidence, confidence, copied]) =>
    [`${confidence < 0.95 ? "? " : ""}${path} [${shape.join(", ")}]`, `${copied ? "←" : "= (not written)"} ${sources}`, `${evidence}${confidence < 1 ? ` (${percent(confidence)})` : ""}`]);
}
const about = make("dl");
for (const [name, value] of [["tolerance", report.tolerance], ["padiff", report.environment.padiff],
  ["Python", report.environment.python], ["numpy", report.environment.numpy], ["platform", report.environment.platform], ["written", report.created]])
  if (value) about.append(make("dt", {}, name), make("dd", {}, value));
// Two frameworks have two versions; everything else that differs between the sides may be why they do.
function environments() {
  const [ours, theirs] = ["base", "raw"].map((side) => ({ model: report[side].name, framework: report[side].framework, version: report[side].version, ...report[side].environment }));
  const names = [...new Set([...Object.keys(ours), ...Object.keys(theirs)])].filter((name) => ours[name] || theirs[name]);
  const alike = ["model", "framework"].concat(ours.framework === theirs.framework ? [] : ["version"]);
  return sideTable("", names.map((name) => [name, ours[name] || "–", theirs[name] || "–", Boolean(ours[name] && theirs[name] && ours[name] !== theirs[name] && !alike.includes(name))]));
}
section("about", "Coverage and environment",
  Object.entries(report.coverage).map(([what, share]) => {
    const bar = make("i");
    bar.style.width = `${100 * share}%`;
    return make("div", { class: "meter" }, make("span", {}, `raw's ${what}`), make("div", { "aria-hidden": "true" }, bar), make("span", {}, percent(share)));
  }),
  make("div", { class: "cols" }, make("div", {}, make("h3", {}, "Both sides"), environments()), make("div", {}, make("h3", {}, "This comparison"), about)));

// ---- begin

for (const all of items.values()) {
  if (all.length <= 200) continue;
  for (const item of all) if (item.children && item.depth > 0) folded.add(item);
}
for (const one of report.divergences) for (let item = one.item && one.item.around; item; item = item.around) folded.delete(item);
$("depth").hidden = !rows.length;
$("calls").hidden = ![...items.values()].some((all) => all.length);
applyTheme();
drawDepth();
drawTree();
const begin = report.divergences.length ? report.divergences[0].item : (items.get(state.step) || [])[0];
if (begin) {
  state.chosen = begin;
  tree.centre(Math.max(0, visible.indexOf(begin)));
  showDetail();
  markActive();
}
document.documentElement.dataset.ready = "yes";
