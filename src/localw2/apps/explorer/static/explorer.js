"use strict";
// The explorer's page: it turns inputs into questions, and answers into numbers and charts. It asks no other host.

const find = (id) => document.getElementById(id);
const state = { about: null, x: [], output: 0, distribution: null, pair: [0, 1], joint: null, sweep: null, sweptFor: null, test: null, curves: null, version: null };

// Four digits, or all digits before the point, as a person would write them.
function shown(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (value === 0) return "0";
  const plain = size < 1e6 && size >= 1e-4;
  const text = !plain ? value.toExponential(3) : String(size >= 1e3 ? Math.round(value) : Number(value.toPrecision(4)));
  return text.replace(/^-/, "−");
}

// Names as they are: Plotly takes tags such as <a href> in its texts for markup.
function plain(text) {
  return String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
}

// What is wrong, by the kind of question: an answer to one must not hide that another failed.
const problems = {};
function complain(kind, text) {
  problems[kind] = text;
  const all = [...new Set(Object.values(problems))].filter(Boolean).join(" ");
  find("problem").textContent = all;
  find("problem").hidden = all === "";
}

async function ask(path, body, signal) {
  const options = body === undefined ? { signal } : {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
  };
  const response = await fetch(path, { ...options, credentials: "same-origin" });
  const answer = await response.json();
  if (!response.ok) {
    const detail = answer.detail;
    throw new Error(Array.isArray(detail) ? detail.map((each) => each.msg).join("; ") : detail);
  }
  return answer;
}

// One question of a kind at a time; while it waits for its answer, only the latest of those that follow is kept.
function latest(kind, work) {
  let busy = false, next = null;
  return async function start(...values) {
    if (busy) { next = values; return; }
    busy = true;
    try {
      await work(...values);
      complain(kind, "");
    } catch (error) {
      complain(kind, error instanceof TypeError ? "The server does not respond. Is it still running?" : error.message);
    } finally {
      busy = false;
      if (next !== null) { const follow = next; next = null; start(...follow); }
    }
  };
}

// ---- charts

const config = { displayModeBar: false, responsive: true, scrollZoom: false, doubleClick: false };

function layout(more) {
  const axis = { gridcolor: css("grid"), linecolor: css("line"), zeroline: false, fixedrange: true, automargin: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("text"), size: 12, family: "inherit" },
    margin: { l: 8, r: 10, t: 26, b: 36 }, dragmode: false, hovermode: "closest",
    legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", font: { size: 11 } },
    ...more, xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
  };
}

function vertical(x, color, dash, width) {
  return { type: "line", x0: x, x1: x, yref: "paper", y0: 0, y1: 1, line: { color, dash, width } };
}

function bars(values, low, high) {
  const n = Math.max(6, Math.min(30, Math.round(2 * Math.sqrt(values.length))));
  const width = (high - low) / n;
  const counts = new Array(n).fill(0);
  for (const v of values) counts[Math.min(n - 1, Math.floor((v - low) / width))] += 1;
  return { x: counts.map((_, i) => low + (i + 0.5) * width), y: counts.map((c) => c / (values.length * width)), width };
}

function span(values) {
  return values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
}

// Classes one below the other: their probabilities, and their shares in the observed rows nearby.
function drawClasses(answer, law, about) {
  const traces = [], names = about.classes.map(shorten).map(plain), y = names.map((_, k) => k);
  const bar = (x, name, color, width) => ({ type: "bar", orientation: "h", x, y, width, name, marker: { color }, text: names, textposition: "none", hovertemplate: "%{text}: %{x:.3f}<extra></extra>" });
  traces.push(bar(law.probabilities, "model", css("model"), 0.5));
  if (answer.neighbours !== null) {
    const seen = answer.neighbours.y[state.output];
    traces.unshift(bar(y.map((k) => seen.filter((code) => code === k).length / seen.length), `${seen.length} observed rows`, css("bars"), 0.85));
  }
  Plotly.react("density", traces, layout({
    xaxis: { range: [0, 1.02], title: { text: `probability of ${plain(about.name)}`, standoff: 6 } },
    yaxis: { tickvals: y, ticktext: names, range: [names.length - 0.4, -0.6], showgrid: false },
    shapes: [], annotations: [], barmode: "overlay", showlegend: true,
  }), config);
}

function shorten(name) {
  return name.length > 20 ? name.slice(0, 19) + "…" : name;
}

// Where values of an output stand on an axis, with the axis: numbers as they are, classes side by side.
function placeOutput(about, values) {
  if (about.classes === null) return { values, axis: {} };
  const names = about.classes.map(shorten).map(plain);
  return { values: apart(values), axis: { tickvals: names.map((_, k) => k), ticktext: names, range: [-0.6, names.length - 0.4], showgrid: false } };
}

function drawDensity() {
  const answer = state.distribution;
  if (answer === null) return;
  if (answer.outputs[state.output].probabilities !== null) {
    drawClasses(answer, answer.outputs[state.output], state.about.outputs[state.output]);
    return;
  }
  const law = answer.outputs[state.output], about = state.about.outputs[state.output];
  const narrow = find("density").clientWidth < 520;
  const traces = [];
  let [low, high] = law.y.length ? span(law.y) : [law.mean - 1, law.mean + 1];
  let top = Math.max(0, ...law.density);
  if (answer.neighbours !== null) {
    const values = answer.neighbours.y[state.output];
    const [least, most] = span(values);
    if (most > least) {
      const h = bars(values, least, most);
      top = Math.max(top, ...h.y);
      traces.push({ type: "bar", x: h.x, y: h.y, width: h.width, marker: { color: css("bars") }, name: `${values.length} observed rows${find("shifted").checked ? ", shifted" : ""}`, hoverinfo: "skip" });
    }
    low = Math.min(low, least); high = Math.max(high, most);
    traces.push({
      type: "scatter", mode: "markers", x: values, y: values.map(() => -0.05 * (top || 1)), showlegend: false, cliponaxis: false,
      marker: { symbol: "line-ns-open", size: narrow ? 7 : 9, color: css("data"), line: { width: 1 } }, hovertemplate: "observed %{x:.4~g}<extra></extra>",
    });
  }
  if (!find("zoom").checked && about.low !== null) { low = Math.min(low, about.low); high = Math.max(high, about.high); }
  if (law.y.length) {
    traces.push({
      type: "scatter", mode: "lines", x: law.y, y: law.density, name: "model", fill: "tozeroy", fillcolor: css("band"),
      line: { color: css("model"), width: 2, simplify: false }, hovertemplate: "%{x:.4~g}<extra></extra>",
    });
  }
  const quantile = (level) => law.quantiles[answer.levels.indexOf(level)];
  const marks = [vertical(law.mean, css("model"), "solid", 2)];
  for (const level of [0.05, 0.5, 0.95]) marks.push(vertical(quantile(level), css("model"), "dot", 1));
  const words = [[0.05, "5 %", "right"], [0.95, "95 %", "left"]].map(([level, text, xanchor]) => ({
    x: quantile(level), y: 1, yref: "paper", yanchor: "top", xanchor, text, showarrow: false, font: { size: 11, color: css("model") },
  }));
  const pad = 0.02 * (high - low);
  Plotly.react("density", traces, layout({
    xaxis: { range: [low - pad, high + pad], title: { text: plain(about.name), standoff: 6 }, nticks: narrow ? 5 : 10 },
    yaxis: { range: [-0.1 * (top || 1), 1.06 * (top || 1)], showticklabels: false, showgrid: false, ticks: "" },
    shapes: marks, annotations: words, bargap: 0, barmode: "overlay", showlegend: true,
  }), config);
}

function drawNumbers() {
  const answer = state.distribution;
  if (answer === null) return;
  const law = answer.outputs[state.output], name = state.about.outputs[state.output].name;
  const quantile = (level) => law.quantiles[answer.levels.indexOf(level)];
  const classes = state.about.outputs[state.output].classes;
  for (const id of ["std", "q05", "q50", "q95"]) find(id).parentElement.hidden = classes !== null;
  find("mean").previousElementSibling.textContent = classes === null ? "mean" : "most probable";
  for (const [id, value] of [["mean", law.mean], ["std", law.std], ["q05", quantile(0.05)], ["q50", quantile(0.5)], ["q95", quantile(0.95)]]) {
    find(id).textContent = shown(value);
  }
  const best = classes === null ? 0 : law.probabilities.indexOf(Math.max(...law.probabilities));
  if (classes !== null) find("mean").textContent = `${shorten(classes[best])} (${shown(Number((100 * law.probabilities[best]).toFixed(1)))} %)`;
  const outside = answer.outside.length > 0;
  find("warning").textContent = outside ? `Extrapolation: ${answer.outside.join("; ")}.` : "";
  find("warning").classList.toggle("shown", outside);
  const near = answer.neighbours;
  let text = near === null ? "No observed rows were given." :
    `Bars and ticks: the ${near.y[0].length} nearest observed rows, at distances ${shown(near.nearest)} to ${shown(near.farthest)} in ${state.about.distance.replace("'", "’")}` +
    (near.usual === null ? "." : ` (99 % of all rows have theirs within ${shown(near.usual)}).`);
  if (classes !== null && near !== null) text = text.replace("Bars and ticks", "Wide bars");
  if (answer.interval !== null) {
    const [low, high] = answer.interval[state.output];
    text += ` Calibrated 90 % interval: ${shown(low)} to ${shown(high)}.`;
  }
  find("neighbours").textContent = text;
  const summary = classes === null ?
    `${name}: mean ${shown(law.mean)}, standard deviation ${shown(law.std)}, 90 % between ${shown(quantile(0.05))} and ${shown(quantile(0.95))}.` :
    `${name}: ${classes.map((word, k) => `${word} ${shown(Number((100 * law.probabilities[k]).toFixed(1)))} %`).join(", ")}.`;
  find("density").setAttribute("aria-label", `${classes === null ? "Density" : "Probabilities"} of ${summary}`);
  speak(summary + (outside ? " Extrapolation." : ""));
}

// Draws of two outputs at the input, and the observed rows near it.
function drawJoint() {
  const answer = state.joint;
  if (answer === null) return;
  const [across, up] = answer.outputs.map((j) => state.about.outputs[j]), narrow = find("cloud").clientWidth < 520;
  const far = (i, about) => {
    let [low, high] = span(answer.rows === null ? answer.draws[i] : [...answer.draws[i], ...answer.rows.y[i]]);
    if (!find("zoom").checked && about.low !== null) { low = Math.min(low, about.low); high = Math.max(high, about.high); }
    const pad = 0.04 * (high - low) || Math.max(1, 0.01 * Math.abs(low));
    return [low - pad, high + pad];
  };
  const axes = [across, up].map((about, i) => placeOutput(about, answer.draws[i]).axis);
  const hover = across.classes === null && up.classes === null ? { hovertemplate: "%{x:.4~g}, %{y:.4~g}<extra></extra>" } : { hoverinfo: "skip" };
  const dots = (values, name, marker) => ({ type: "scatter", mode: "markers", x: placeOutput(across, values[0]).values, y: scatter(placeOutput(up, values[1]).values, up), name, marker, ...hover });
  const traces = [dots(answer.draws, `${answer.draws[0].length} draws`, { size: narrow ? 3.5 : 4.5, color: css("model"), opacity: 0.45 })];
  const digits = (value) => (value === null ? "–" : value.toFixed(2).replace(/^-0\.00$/, "0.00").replace(/^-/, "−"));
  const numeric = across.classes === null && up.classes === null;
  let text = `Draws: ${numeric ? `correlation ${digits(answer.correlation)}, ` : ""}distance correlation ${digits(answer.distance)} (0 for independent outputs only).`;
  if (answer.rows !== null) {
    const name = `${answer.rows.y[0].length} observed rows${answer.shifted ? ", shifted" : ""}`;
    traces.push(dots(answer.rows.y, name, { size: narrow ? 6 : 7, color: css("card"), line: { color: css("text"), width: 1.5 } }));
    if (numeric) text += ` Observed rows: correlation ${digits(answer.rows.correlation)} ± ${digits(answer.rows.error)}.`;
  }
  find("dependence").textContent = text;
  Plotly.react("cloud", traces, layout({
    xaxis: { range: far(0, across), title: { text: plain(across.name), standoff: 6 }, nticks: narrow ? 5 : 10, ...axes[0] },
    yaxis: { range: far(1, up), title: { text: plain(up.name), standoff: 10 }, ...axes[1] }, showlegend: true,
  }), config);
  find("cloud").setAttribute("aria-label", `Draws of ${across.name} and ${up.name}. ${text}`);
}

// Classes on both axes: spread out in another order, so that points fill a square and not a line.
function scatter(values, about) {
  return about.classes === null ? values : values.map((value, i) => Math.round(value) + 0.5 * (((i * 0.755) % 1) - 0.5));
}

// A screen reader would otherwise read every step of a slider.
let speaking = 0;
function speak(text) {
  clearTimeout(speaking);
  speaking = setTimeout(() => { find("spoken").textContent = text; }, 500);
}

// Where values of an input stand on an axis: categories side by side, those that occur, in the order of the chooser.
function place(input, values) {
  if (input.kind !== "category") {
    const whole = input.step === 1 && input.kind === "number" && input.high - input.low <= 8; // no ticks between years
    return { x: values, axis: { type: input.kind === "date" ? "date" : "linear", ...(whole ? { dtick: 1 } : {}) } };
  }
  const found = new Set(values), names = [...input.values, null].filter((name) => found.has(name));
  const numbers = new Map(names.map((name, i) => [name, i]));
  const text = names.map((name) => (name === null ? "missing" : name.length > 20 ? name.slice(0, 19) + "…" : name)).map(plain);
  return { x: values.map((name) => numbers.get(name)), numbers, axis: { type: "linear", tickvals: names.map((_, i) => i), ticktext: text, range: [-0.6, names.length - 0.4], showgrid: false } };
}

// Points of a category side by side, in the same way every time.
function apart(x) {
  return x.map((value, i) => value + 0.5 * (((i * 0.618) % 1) - 0.5));
}

// Mean, intervals and observed rows along numbers or dates, or for every category.
function drawSweep() {
  const answer = state.sweep;
  if (answer === null) return;
  const input = state.about.inputs[state.sweptFor.input], now = state.x[state.sweptFor.input];
  const target = state.about.outputs[state.output].name, narrow = find("bands").clientWidth < 520;
  const along = input.kind === "category", { x, numbers, axis } = place(input, answer.x);
  const classes = state.about.outputs[state.output].classes;
  const bounds = (level) => answer.quantiles[state.output][answer.levels.indexOf(level)];
  const band = (low, high, color, name) => along ?
    { type: "bar", x, y: bounds(high).map((end, i) => end - bounds(low)[i]), base: bounds(low), width: 0.55, marker: { color }, name, hoverinfo: "skip" } :
    { type: "scatter", mode: "lines", x: [...x, ...[...x].reverse()], y: [...bounds(high), ...[...bounds(low)].reverse()], fill: "toself", fillcolor: color, line: { width: 0 }, name, hoverinfo: "skip" };
  const label = along ? "%{text}" : input.kind === "date" ? "%{x|%Y-%m-%d}" : "%{x}";
  const mean = { type: "scatter", x, y: answer.mean[state.output], text: axis.ticktext, name: "mean", hovertemplate: `${label}: mean %{y:.4~g}<extra></extra>` };
  const traces = classes === null ? [band(0.05, 0.95, css("band"), "90 % interval"), band(0.25, 0.75, css("deep"), "50 % interval")] :
    answer.probabilities[state.output].map((p, k) => ({
      type: "scatter", x, y: p, mode: along ? "markers" : "lines", name: plain(shorten(classes[k])), line: { width: 2 }, marker: { size: 9 }, hovertemplate: `${plain(shorten(classes[k]))}: %{y:.3f}<extra></extra>`,
    }));
  let note = "";
  if (answer.rows !== null && classes === null) {
    const known = answer.rows.x.map((_, i) => i).filter((i) => !along || numbers.has(answer.rows.x[i]));
    const at = known.map((i) => (along ? numbers.get(answer.rows.x[i]) : answer.rows.x[i]));
    traces.push({
      type: "scatter", mode: "markers", x: along ? apart(at) : at, y: known.map((i) => answer.rows.y[state.output][i]), name: "observed",
      marker: { size: 5, color: css("data"), opacity: 0.75 }, hovertemplate: along ? "observed %{y:.4~g}<extra></extra>" : `observed ${label}, %{y:.4~g}<extra></extra>`,
    });
    note = state.about.inputs.length > 1 ? `Dots: the ${known.length} observed rows closest in the other inputs.` : "Dots: observed rows.";
  }
  if (classes === null) traces.push(along ? { ...mean, mode: "markers", marker: { symbol: "line-ew-open", size: 26, color: css("model"), line: { width: 3 } } } : { ...mean, mode: "lines", line: { color: css("model"), width: 2 } });
  const current = along ? numbers.get(now) : now;
  const shapes = [];
  if (current !== undefined && current !== null) {
    note += along ? " Shaded: the current category." : " Dashed line: the current input.";
    shapes.push(along ? { type: "rect", x0: current - 0.42, x1: current + 0.42, yref: "paper", y0: 0, y1: 1, fillcolor: css("grid"), line: { width: 0 }, layer: "below" } : vertical(current, css("text"), "dash", 1));
    if (input.kind === "number") axis.range = span([...x, current]);
    if (input.kind === "date") axis.range = [...x, current].sort().filter((_, i, all) => i === 0 || i === all.length - 1);
  }
  find("swept-rows").textContent = note.trim();
  Plotly.react("bands", traces, layout({
    xaxis: { title: { text: plain(input.name), standoff: 6 }, nticks: narrow ? 5 : 10, ...axis }, yaxis: { title: { text: classes === null ? plain(target) : `probability of ${plain(target)}`, standoff: 10 }, ...(classes === null ? {} : { range: [-0.02, 1.02] }) },
    shapes, barmode: "overlay", margin: { l: 8, r: 10, t: narrow ? 46 : 26, b: 36 },
  }), config);
  find("bands").setAttribute("aria-label", `${target} ${along ? "by" : "along"} ${input.name}: ${classes === null ? "mean, 50 % and 90 % intervals" : "probabilities"}`);
}

function drawMap() {
  const answer = state.test;
  if (answer === null) return;
  const across = state.about.inputs[Number(find("map-x").value)], up = find("map-y").value, flat = up === "z";
  const spread = (input, j) => {
    const { x, axis } = place(input, answer.centers[j]);
    return { x: input.kind === "category" ? apart(x) : x, axis };
  };
  const { x, axis } = spread(across, Number(find("map-x").value));
  const other = flat ? null : spread(state.about.inputs[Number(up)], Number(up));
  const traces = [], shapes = [], annotations = [];
  if (flat) {
    for (const [flag, color, name] of [[false, "model", "ball"], [true, "alert", "rejected ball"]]) {
      const chosen = answer.z.map((_, i) => i).filter((i) => answer.rejected[i] === flag);
      if (chosen.length) traces.push({ type: "scatter", mode: "markers", x: chosen.map((i) => x[i]), y: chosen.map((i) => answer.z[i]), name, showlegend: true, marker: { size: 6, opacity: 0.75, color: css(color) }, hovertemplate: "z %{y:.3~g}<extra></extra>" });
    }
    if (answer.limit !== null) annotations.push({ xref: "paper", x: 1, xanchor: "right", y: answer.limit, yanchor: "top", text: "joint limit for all balls", showarrow: false, font: { size: 11, color: css("soft") } });
    if (answer.limit !== null) shapes.push({ type: "line", xref: "paper", x0: 0, x1: 1, y0: answer.limit, y1: answer.limit, line: { color: css("soft"), dash: "dash", width: 1 } });
  } else {
    const far = Math.max(1, answer.limit ?? 0, ...answer.z.map(Math.abs));
    traces.push({
      type: "scatter", mode: "markers", x, y: other.x, text: answer.z.map((z) => z.toPrecision(3)), hovertemplate: "z %{text}<extra></extra>", showlegend: false,
      marker: { size: 9, color: answer.z, cmin: -far, cmax: far, colorscale: "RdBu", reversescale: true, line: { color: css("text"), width: answer.rejected.map((r) => (r ? 2 : 0.3)) }, colorbar: { title: { text: "z" }, thickness: 12 } },
    });
  }
  Plotly.react("map", traces, layout({
    xaxis: { title: { text: plain(across.name), standoff: 6 }, nticks: find("map").clientWidth < 520 ? 5 : 10, ...axis },
    yaxis: { title: { text: flat ? "z of each ball" : plain(state.about.inputs[Number(up)].name), standoff: 10 }, type: "linear", ...(flat ? {} : other.axis) }, shapes, annotations,
  }), config);
}

function drawCurves() {
  const answer = state.curves;
  if (answer === null || answer.epoch.length === 0) return;
  const line = { type: "scatter", mode: answer.epoch.length > 1 ? "lines" : "markers" };
  const traces = [{ ...line, x: answer.epoch, y: answer.loss, name: "loss", line: { color: css("model"), width: 1.5 } }];
  if (answer.score.length) traces.push({ ...line, x: answer.score_epoch, y: answer.score, name: "held-out score", line: { color: css("edge"), width: 2 } });
  Plotly.react("curves", traces, layout({ xaxis: { title: { text: "epoch", standoff: 6 } }, yaxis: { title: { text: "loss", standoff: 10 } } }), config);
}

function drawAll() {
  drawNumbers(); drawDensity(); drawJoint(); drawSweep(); drawMap(); drawCurves();
}

// ---- questions

// How many observed rows to show; null, for as many as usual, while the box is half typed.
function count() {
  return find("k").validity.valid && find("k").value ? Number(find("k").value) : null;
}

const askDistribution = latest("distribution", async (began) => {
  const k = count();
  const x = [...state.x]; // the inputs may move on before the answer comes
  state.distribution = await ask("/api/distribution", { x, k, shifted: find("shifted").checked });
  drawNumbers();
  drawDensity();
  // For the tests and the benchmark of this page.
  document.body.dataset.redraw = String(performance.now() - began);
  document.body.dataset.drawn = JSON.stringify(x);
});

const askJoint = latest("joint", async () => {
  if (state.about.outputs.length < 2) return;
  const x = [...state.x], outputs = [...state.pair], shifted = find("shifted").checked;
  const answer = await ask("/api/joint", { x, outputs, k: count(), shifted });
  state.joint = { ...answer, outputs, shifted };
  drawJoint();
  document.body.dataset.joint = JSON.stringify([x, outputs]); // for the tests of this page
});

const askSweep = latest("sweep", async () => {
  const input = Number(find("swept").value);
  // Along its own input a sweep stays as it is: only the line moves.
  const others = state.x.filter((_, j) => j !== input);
  const key = JSON.stringify([input, others]);
  if (state.sweptFor === null || state.sweptFor.key !== key) {
    state.sweep = await ask("/api/sweep", { x: state.x, input });
    state.sweptFor = { input, key };
  }
  drawSweep();
});

let settling = 0;
function changed() {
  askDistribution(performance.now());
  askJoint();
  // A sweep costs more than a distribution: it follows when the slider rests.
  clearTimeout(settling);
  settling = setTimeout(askSweep, 120);
}

async function runTest() {
  const button = find("run-test");
  button.disabled = true;
  find("verdict").textContent = "The test is running; it takes a few seconds …";
  try {
    const answer = state.test = await ask("/api/test", {});
    const caution = answer.trained_on !== null;
    const result = `${answer.verdict} (p = ${shown(answer.pvalue)}; ${answer.n_rows} rows, ${answer.ball} per ball)`;
    find("verdict").textContent = (caution ? `Not valid, because the model was trained on ${shown(100 * answer.trained_on)} % of these rows. ` : "") + result;
    find("verdict").classList.toggle("caution", caution);
    find("map-x").value = String(answer.strongest);
    if (state.about.inputs.length === 2 && state.about.inputs.every((input) => input.kind !== "category")) { find("map-x").value = "0"; find("map-y").value = "1"; }
    find("map-area").hidden = false;
    drawMap();
  } catch (error) {
    find("verdict").textContent = error.message;
  } finally {
    button.disabled = false;
  }
}

function trainingState(answer) {
  const n = answer.epoch.length, last = n ? `epoch ${answer.epoch[n - 1]}, loss ${shown(answer.loss[n - 1])}` : "no epoch yet";
  const said = !answer.live && answer.version === 0 ? "Waiting for a fit: no epoch yet." :
    !answer.live ? `The model on display: ${last}.` :
    answer.running ? `A fit is running: ${last}.` : `A fit has stopped reporting: ${last}.`;
  return said + (answer.problem ? ` The new model in the file cannot be shown: ${answer.problem}` : "");
}

async function followTraining() {
  let wait = 1000;
  try {
    const answer = await ask("/api/history");
    // Another model has replaced this one, or the first one has arrived.
    if (state.version !== null && answer.version !== state.version) { location.reload(); return; }
    const grown = state.curves === null || JSON.stringify(answer) !== JSON.stringify(state.curves);
    state.curves = answer;
    state.version = answer.version;
    document.body.classList.toggle("waiting", answer.version === 0); // before the chart takes its width
    find("training").hidden = !answer.live && answer.version > 0 && answer.epoch.length === 0;
    find("training-state").textContent = trainingState(answer);
    if (grown) drawCurves();
    if (!answer.followed) return;
    if (!answer.running && answer.version > 0) wait = 3000;
  } catch {
    wait = 5000;
  }
  setTimeout(followTraining, wait);
}

// ---- the page

function option(value, text) {
  const made = document.createElement("option");
  made.value = String(value);
  made.textContent = text;
  return made;
}

function element(tag, attributes, text) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function decimals(step) {
  return Math.max(0, Math.ceil(-Math.log10(step) - 1e-9));
}

// A date is a number of days on its slider and text everywhere else.
const DAY = 86400000;
function days(text) {
  return Date.parse(text.length > 10 ? `${text}Z` : text) / DAY;
}
function date(value, timed) {
  return new Date(60000 * Math.round((value * DAY) / 60000)).toISOString().slice(0, timed ? 16 : 10);
}

function addInput(input, j) {
  const box = element("div", { class: `input ${input.kind}` });
  find("sliders").append(box);
  const set = input.kind === "category" ? addChooser(box, input, j) : addSlider(box, input, j);
  set(input.start);
  return set;
}

function addChooser(box, input, j) {
  const chooser = element("select", { id: `choice-${j}` });
  chooser.append(...input.values.map((name, i) => option(i, name)), ...(input.missing ? [option(-1, "missing")] : []));
  box.append(element("label", { for: `choice-${j}` }, input.name), chooser);
  chooser.addEventListener("change", () => {
    const chosen = Number(chooser.value);
    state.x[j] = chosen < 0 ? null : input.values[chosen];
    changed();
  });
  return (value) => {
    state.x[j] = value;
    chooser.value = String(value === null ? -1 : input.values.indexOf(value));
  };
}

function addSlider(box, input, j) {
  const dated = input.kind === "date", timed = dated && input.step < 1;
  const read = (value) => (dated ? days(value) : value), write = (number) => (dated ? date(number, timed) : number);
  const low = read(input.low), high = read(input.high);
  const type = dated ? (timed ? "datetime-local" : "date") : "number";
  const number = element("input", { type, id: `number-${j}`, step: "any", inputmode: "decimal", "aria-describedby": `ends-${j}` });
  const slider = element("input", { type: "range", id: `slider-${j}`, min: low, max: high, step: input.step, "aria-label": `${input.name}, slider` });
  const ends = element("div", { class: "ends", id: `ends-${j}` });
  const end = (value) => element("span", {}, dated ? value.replace("T", " ") : shown(value));
  const gap = element("input", { type: "checkbox", id: `missing-${j}` });
  ends.append(end(input.low), element("span", { class: "unseen" }, " to "));
  if (input.missing) {
    const label = element("label", { class: "gap" });
    label.append(gap, " missing");
    ends.append(label);
  }
  ends.append(end(input.high));
  box.append(element("label", { for: `number-${j}` }, input.name), number, slider, ends);
  let last = input.start; // the value to go back to from a missing one
  const keep = (value) => {
    state.x[j] = value;
    if (value !== null) last = value;
    gap.checked = value === null;
    number.disabled = slider.disabled = value === null;
    box.classList.toggle("outside", value !== null && (read(value) < low || read(value) > high));
  };
  const set = (value) => {
    keep(value);
    number.value = String(last);
    slider.value = String(read(last));
  };
  slider.addEventListener("input", () => {
    // A slider counts its steps from its lower end; people count from zero.
    const raw = Number(slider.value), nice = Number((Math.round(raw / input.step) * input.step).toFixed(decimals(input.step)));
    keep(write(Math.min(high, Math.max(low, timed ? raw : nice))));
    number.value = String(last);
    changed();
  });
  number.addEventListener("input", () => {
    const value = dated ? number.value : Number(number.value);
    if (number.value === "" || !Number.isFinite(read(value))) return;
    keep(value);
    slider.value = String(read(value));
    changed();
  });
  gap.addEventListener("change", () => { set(gap.checked ? null : last); changed(); });
  // An emptied box goes back to the value that the charts show.
  number.addEventListener("change", () => { number.value = String(last); });
  // By default, arrow keys change a number by 1, whatever its range.
  number.addEventListener("keydown", (event) => {
    const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (direction === undefined || dated) return;
    event.preventDefault();
    set(Number((last + direction * input.step).toFixed(decimals(input.step) + 2)));
    changed();
  });
  return set;
}

// Two different outputs: whoever takes the output of the other axis gives it its own.
function addPair(outputs) {
  const axes = [find("joint-x"), find("joint-y")];
  const show = () => {
    axes.forEach((axis, i) => { axis.value = String(state.pair[i]); });
    find("joint-title").textContent = `${outputs[state.pair[0]].name} and ${outputs[state.pair[1]].name} together`;
  };
  axes.forEach((axis, i) => {
    axis.append(...outputs.map((output, j) => option(j, output.name)));
    axis.addEventListener("change", () => {
      const chosen = Number(axis.value);
      if (state.pair[1 - i] === chosen) state.pair[1 - i] = state.pair[i];
      state.pair[i] = chosen;
      show();
      askJoint();
    });
  });
  find("joint-choice").hidden = outputs.length < 3;
  find("joint").hidden = false;
  show();
}

async function begin() {
  // The token has become a cookie: it need not stay in the address or in the history.
  if (location.search) history.replaceState(null, "", location.pathname);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  await followTraining();
  if (state.version === 0) { // the model is still being fitted
    find("about").textContent = "no model yet; it will appear here when its fit is done";
    return;
  }
  const about = state.about = await ask("/api/model");
  const rows = about.n_rows ? `${about.n_rows} observed rows` : "no observed rows";
  find("about").textContent = `${about.model}: ${about.inputs.length} input${about.inputs.length > 1 ? "s" : ""}, ${rows}`;
  state.x = about.inputs.map((input) => input.start);
  const setters = about.inputs.map(addInput);
  find("left-out").textContent = about.left_out.length ? `Columns that the model does not use: ${about.left_out.map((each) => `${each.name} (${each.reason})`).join(", ")}.` : "";
  find("left-out").hidden = about.left_out.length === 0;
  about.inputs.forEach((input, j) => { find("swept").append(option(j, input.name)); find("map-x").append(option(j, input.name)); });
  find("map-y").append(option("z", "z of each ball"), ...about.inputs.map((input, j) => option(j, input.name)));
  about.outputs.forEach((output, j) => find("output").append(option(j, output.name)));
  find("output-choice").hidden = about.outputs.length < 2;
  if (about.outputs.length > 1) addPair(about.outputs);
  find("k").value = String(about.k);
  find("k").max = String(about.most_k);
  find("k-choice").hidden = find("shifted-choice").hidden = about.n_rows === 0;
  const name = () => document.querySelectorAll(".target").forEach((each) => { each.textContent = about.outputs[state.output].name; });
  name();
  find("test").hidden = !about.can_test;
  if (about.trained_on !== null) {
    find("verdict").textContent = `The model was trained on ${shown(100 * about.trained_on)} % of these rows, so the test would not be valid. Use held-out rows instead.`;
    find("verdict").classList.add("caution");
  } else {
    find("verdict").textContent = "Compares the model’s draws with the observed rows, ball by ball, by an exact test.";
  }
  find("output").addEventListener("change", () => { state.output = Number(find("output").value); name(); drawAll(); });
  find("swept").addEventListener("change", () => askSweep());
  find("k").addEventListener("input", changed);
  find("shifted").addEventListener("change", changed);
  find("zoom").addEventListener("change", () => { drawDensity(); drawJoint(); });
  find("reset").addEventListener("click", () => { setters.forEach((set, j) => set(about.inputs[j].start)); changed(); });
  find("run-test").addEventListener("click", runTest);
  for (const id of ["map-x", "map-y"]) find(id).addEventListener("change", drawMap);
  askDistribution(performance.now());
  askJoint();
  askSweep();
}

begin().catch((error) => complain("start", `The page could not start: ${error.message}`));
