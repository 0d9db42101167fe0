// Error along depth: each tensor's relative error in the order of computation, over what rounding explains.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const NAMES = { forward: "Forward", backward: "Backward", gradient: "Gradients", weight: "Weights", buffer: "Buffers" };
const LETTERS = { forward: "F", backward: "B", gradient: "G", weight: "W", buffer: "S" };

class DepthPlot {
  constructor(box, line, choose) {
    this.box = box;
    this.line = line;
    this.choose = choose;
    this.at = -1;
    this.chart = null;
    new ResizeObserver(() => this.fit()).observe(box);
    box.addEventListener("keydown", (event) => this.key(event));
  }

  show(phase, step, alone) {
    const wanted = (row) => row.phase === phase && row.step === step && (phase !== "forward" || row.role === "output" || (row.role === "loss" && row.verdict === "different"));
    this.rows = (alone ? local : rows).filter(wanted);
    this.phase = phase;
    this.at = -1;
    this.redraw();
  }

  redraw() {
    if (this.chart) this.chart.destroy();
    this.chart = null;
    this.box.replaceChildren();
    const positive = this.rows.flatMap((row) => [row.relative, row.predicted, row.allowed]).filter((v) => v > 0 && Number.isFinite(v));
    if (!this.rows.length) {
      this.box.append(make("p", { class: "quiet" }, "Nothing was compared here."));
      this.line.textContent = "";
      return;
    }
    const low = 10 ** Math.floor(Math.log10(Math.min(...(positive.length ? [least(positive)] : [1e-8]))) - 0.3);
    // What is no number stands above everything that is one, on a line of its own.
    const odd = this.rows.some((row) => (row.relative === null ? row.verdict === "different" : !Number.isFinite(row.relative)));
    const high = 10 ** (Math.ceil(Math.log10(positive.length ? most(positive) : 1) + 0.3) + (odd ? 1 : 0));
    // Zero has no place on this scale and stands at its foot; what is no number stands at its top.
    const put = (v) => (v === null || v === undefined ? null : Number.isNaN(v) || v > high ? high : v < low ? low : v);
    const error = this.rows.map((row) => (row.relative === null ? (row.verdict === "different" ? high : null) : put(row.relative)));
    const data = [
      this.rows.map((_, i) => i),
      this.rows.map(() => low),
      this.rows.map((row) => put(row.predicted)),
      this.rows.map((row) => put(row.allowed)),
      error.map((v, i) => (this.rows[i].verdict === "different" ? null : v)),
      error.map((v, i) => (this.rows[i].verdict === "different" ? v : null)),
    ];
    this.error = error;
    const predicted = data[2].some((v) => v !== null);
    const allowed = data[3].some((v) => v !== null);
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
    this.chart = new uPlot({
      width: this.box.clientWidth || 600, height: 280, padding: [20, 22, 0, 0],
      scales: { x: { time: false }, y: { distr: 3, range: [low, high] } },
      axes: [
        { ...axis, label: "order of computation", labelSize: 22, labelFont: "12px system-ui", values: (u, ticks) => ticks.map((t) => (Number.isInteger(t) ? String(t) : "")) },
        { ...axis, size: 62, filter: decades, grid: { ...axis.grid, filter: decades }, ticks: { ...axis.ticks, filter: decades }, values: (u, ticks) => ticks.map((t) => (t === null ? "" : odd && t > high * 0.5 ? "none" : t.toExponential(0))) },
      ],
      cursor: { points: { show: false }, drag: { x: true, y: false } },
      legend: { live: false },
      series: [
        { label: "order" },
        { label: "floor", stroke: "transparent", points: { show: false } },
        { label: "what rounding explains", show: predicted, stroke: colour("--noise-line"), fill: undefined, width: 1, points: { show: false }, spanGaps: true },
        { label: "╌ allowed", show: allowed, stroke: colour("--quiet"), dash: [5, 4], width: 1, points: { show: false }, spanGaps: true },
        { label: "● agrees", stroke: colour("--good"), width: 0, paths: () => null, points: { show: true, size: 5, fill: colour("--good"), stroke: colour("--good") } },
        { label: "■ differs", stroke: colour("--bad"), width: 0, paths: () => null, points: { show: true, paths: squares, fill: colour("--bad"), stroke: colour("--bad") } },
      ],
      bands: predicted ? [{ series: [2, 1], fill: colour("--noise") }] : [],
      hooks: {
        draw: [(u) => { this.through(u); this.flag(u); }],
        setCursor: [(u) => this.tell(u.cursor.idx)],
        ready: [(u) => u.over.addEventListener("click", () => { if (this.at >= 0) this.choose(this.rows[this.at]); })],
      },
    }, data, this.box);
    hideLegend(this.chart, ["order", "floor"].concat(predicted ? [] : ["what rounding explains"], allowed ? [] : ["╌ allowed"]), odd);
    const wrong = this.rows.filter((row) => row.verdict === "different").length;
    this.box.setAttribute("aria-label", `${NAMES[this.phase]}: relative error of ${this.rows.length} tensors in the order of computation, ${wrong} differ. Left and right move, Enter chooses.`);
    this.tell(null);
  }

  // A thin line through all points, so that growth can be seen at a glance.
  through(u) {
    const { ctx } = u;
    ctx.save();
    ctx.strokeStyle = colour("--quiet");
    ctx.globalAlpha = 0.45;
    ctx.lineWidth = devicePixelRatio;
    ctx.beginPath();
    let begun = false;
    const [from, to] = [u.scales.x.min, u.scales.x.max];
    this.error.forEach((v, i) => {
      if (v === null || i < from || i > to) return;
      const [x, y] = [u.valToPos(i, "x", true), u.valToPos(v, "y", true)];
      if (begun) ctx.lineTo(x, y);
      else ctx.moveTo(x, y);
      begun = true;
    });
    ctx.stroke();
    ctx.restore();
  }

  // Where a difference starts, in words and with a line.
  flag(u) {
    const { ctx } = u;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour("--bad");
    ctx.lineWidth = devicePixelRatio;
    ctx.font = `600 ${12 * devicePixelRatio}px system-ui`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    let free = -Infinity;
    const done = new Set();
    this.rows.forEach((row, i) => {
      if (!row.item || !row.item.places.length || row.role === "input" || done.has(row.item)) return;
      if (!row.item.places.some((place) => report.divergences[place].phase === this.phase)) return;
      done.add(row.item);
      const x = u.valToPos(i, "x", true);
      if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) return;
      ctx.beginPath();
      ctx.moveTo(x, u.bbox.top);
      ctx.lineTo(x, u.bbox.top + u.bbox.height);
      ctx.stroke();
      const label = `starts here: ${place(row.item.paths[1])}`;
      const width = ctx.measureText(label).width;
      const left = Math.max(0, Math.min(x + 6, u.bbox.left + u.bbox.width - width));
      if (left < free) return;
      ctx.fillText(label, left, u.bbox.top - 6 * devicePixelRatio);
      free = left + width + 8;
    });
    ctx.restore();
  }

  tell(i) {
    if (i === null || i === undefined || !this.rows[i]) {
      this.line.textContent = "Hover or use the arrow keys to read a point; drag to zoom, double-click to go back.";
      return;
    }
    this.at = i;
    const row = this.rows[i];
    const noise = row.ratio === null ? "" : `, ${many(row.ratio)} times what rounding explains`;
    this.line.textContent = `${both(...row.item.paths)} · ${row.tensor} · ${SIGNS[row.verdict]} ${row.verdict} · relative error ${short(row.relative)}${noise}`;
  }

  key(event) {
    if (!this.chart || !this.rows.length) return;
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (move) {
      const i = Math.min(this.rows.length - 1, Math.max(0, this.at < 0 ? 0 : this.at + move));
      const y = this.error[i] === null ? 10 : this.chart.valToPos(this.error[i], "y");
      this.chart.setCursor({ left: this.chart.valToPos(i, "x"), top: y });
      this.tell(i);
      event.preventDefault();
      event.stopPropagation();
    } else if (event.key === "Enter" && this.at >= 0) {
      this.choose(this.rows[this.at]);
      event.preventDefault();
      event.stopPropagation();
    }
  }

  fit() {
    const width = this.box.clientWidth;
    if (this.chart && width && width !== this.chart.width) this.chart.setSize({ width, height: 280 });
  }
}

// Spread arguments end at some ten thousand; these don't.
const least = (values) => values.reduce((a, b) => (b < a ? b : a));
const most = (values) => values.reduce((a, b) => (b > a ? b : a));

// Of the marks between powers of ten, none.
function decades(u, ticks) {
  const every = Math.ceil(Math.log10(u.scales.y.max / u.scales.y.min) / 9);
  return ticks.map((t) => {
    const power = Math.log10(t);
    return Math.abs(power - Math.round(power)) < 1e-6 && Math.round(power) % every === 0 ? t : null;
  });
}

function squares(u, series, from, to) {
  const path = new Path2D();
  const size = 7 * devicePixelRatio;
  for (let i = from; i <= to; i++) {
    const value = u.data[series][i];
    if (value === null || value === undefined) continue;
    path.rect(u.valToPos(u.data[0][i], "x", true) - size / 2, u.valToPos(value, "y", true) - size / 2, size, size);
  }
  return { stroke: null, fill: path, clip: null };
}

// What is drawn with a sign of its own needs no coloured square before its name.
function hideLegend(chart, names, odd) {
  for (const line of chart.root.querySelectorAll(".u-series")) {
    const label = line.querySelector(".u-label");
    if (names.includes(label.textContent)) line.style.display = "none";
    if (/^[●■╌]/.test(label.textContent)) line.querySelector(".u-marker").style.display = "none";
    if (label.textContent.startsWith("●")) label.style.color = colour("--good");
    if (label.textContent.startsWith("■")) label.style.color = colour("--bad");
    if (odd && label.textContent.startsWith("■")) label.textContent += " (top line: NaN, Inf or no number)";
  }
}
