"use strict";
// The explorer's page: it turns inputs into questions, and answers into numbers and charts. It asks no other host.

const find = (id) => document.getElementById(id);
const state = { about: null, x: [], output: 0, distribution: null, sweep: null, sweptFor: null, test: null, curves: null, version: null };

// Four digits, or all digits before the point, as a person would write them.
function shown(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (value === 0) return "0";
  const plain = size < 1e6 && size >= 1e-4;
  const text = !plain ? value.toExponential(3) : String(size >= 1e3 ? Math.round(value) : Number(value.toPrecision(4)));
  return text.replace(/^-/, "−");
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

function drawDensity() {
  const answer = state.distribution;
  if (answer === null) return;
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
    xaxis: { range: [low - pad, high + pad], title: { text: about.name, standoff: 6 }, nticks: narrow ? 5 : 10 },
    yaxis: { range: [-0.1 * (top || 1), 1.06 * (top || 1)], showticklabels: false, showgrid: false, ticks: "" },
    shapes: marks, annotations: words, bargap: 0, barmode: "overlay", showlegend: true,
  }), config);
}

function drawNumbers() {
  const answer = state.distribution;
  if (answer === null) return;
  const law = answer.outputs[state.output], name = state.about.outputs[state.output].name;
  const quantile = (level) => law.quantiles[answer.levels.indexOf(level)];
  for (const [id, value] of [["mean", law.mean], ["std", law.std], ["q05", quantile(0.05)], ["q50", quantile(0.5)], ["q95", quantile(0.95)]]) {
    find(id).textContent = shown(value);
  }
  const outside = answer.outside.length > 0;
  find("warning").textContent = outside ? `Extrapolation: ${answer.outside.join("; ")}.` : "";
  find("warning").classList.toggle("shown", outside);
  const near = answer.neighbours;
  let text = near === null ? "No observed rows were given." :
    `Bars and ticks: the ${near.y[0].length} nearest observed rows, at distances ${shown(near.nearest)} to ${shown(near.farthest)} in the model’s norm` +
    (near.usual === null ? "." : ` (99 % of all rows have theirs within ${shown(near.usual)}).`);
  if (answer.interval !== null) {
    const [low, high] = answer.interval[state.output];
    text += ` Calibrated 90 % interval: ${shown(low)} to ${shown(high)}.`;
  }
  find("neighbours").textContent = text;
  const summary = `${name}: mean ${shown(law.mean)}, standard deviation ${shown(law.std)}, 90 % between ${shown(quantile(0.05))} and ${shown(quantile(0.95))}.`;
  find("density").setAttribute("aria-label", `Density of ${summary}`);
  speak(summary + (outside ? " Extrapolation." : ""));
}

// A screen reader would otherwise read every step of a slider.
let speaking = 0;
function speak(text) {
  clearTimeout(speaking);
  speaking = setTimeout(() => { find("spoken").textContent = text; }, 500);
}

function drawSweep() {
  const answer = state.sweep;
  if (answer === null) return;
  const j = state.sweptFor.input, name = state.about.inputs[j].name, target = state.about.outputs[state.output].name;
  const bounds = answer.quantiles[state.output], ends = [...answer.x, ...[...answer.x].reverse()];
  const band = (low, high, color, label) => ({
    type: "scatter", mode: "lines", x: ends, y: [...bounds[answer.levels.indexOf(high)], ...[...bounds[answer.levels.indexOf(low)]].reverse()],
    fill: "toself", fillcolor: color, line: { width: 0 }, name: label, hoverinfo: "skip",
  });
  const traces = [
    band(0.05, 0.95, css("band"), "90 % interval"), band(0.25, 0.75, css("deep"), "50 % interval"),
    { type: "scatter", mode: "lines", x: answer.x, y: answer.mean[state.output], name: "mean", line: { color: css("model"), width: 2 }, hovertemplate: "%{x:.4~g}: mean %{y:.4~g}<extra></extra>" },
  ];
  let note = "";
  if (answer.rows !== null) {
    traces.splice(2, 0, {
      type: "scatter", mode: "markers", x: answer.rows.x, y: answer.rows.y[state.output], name: "observed", marker: { size: 5, color: css("data"), opacity: 0.75 },
      hovertemplate: "observed %{x:.4~g}, %{y:.4~g}<extra></extra>",
    });
    note = state.about.inputs.length > 1 ? `Dots: the ${answer.rows.x.length} observed rows closest in the other inputs. Dashed line: the current input.` : "Dots: observed rows. Dashed line: the current input.";
  }
  find("swept-rows").textContent = note;
  Plotly.react("bands", traces, layout({
    xaxis: { title: { text: name, standoff: 6 }, nticks: find("bands").clientWidth < 520 ? 5 : 10, range: span([...answer.x, state.x[j]]) }, yaxis: { title: { text: target, standoff: 10 } },
    shapes: [vertical(state.x[j], css("text"), "dash", 1)], margin: { l: 8, r: 10, t: find("bands").clientWidth < 520 ? 46 : 26, b: 36 },
  }), config);
  find("bands").setAttribute("aria-label", `${target} along ${name}: mean, 50 % and 90 % intervals`);
}

function drawMap() {
  const answer = state.test;
  if (answer === null) return;
  const across = Number(find("map-x").value), up = find("map-y").value;
  const x = answer.centers[across], flat = up === "z";
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
      type: "scatter", mode: "markers", x, y: answer.centers[Number(up)], text: answer.z.map((z) => z.toPrecision(3)), hovertemplate: "z %{text}<extra></extra>", showlegend: false,
      marker: { size: 9, color: answer.z, cmin: -far, cmax: far, colorscale: "RdBu", reversescale: true, line: { color: css("text"), width: answer.rejected.map((r) => (r ? 2 : 0.3)) }, colorbar: { title: { text: "z" }, thickness: 12 } },
    });
  }
  Plotly.react("map", traces, layout({
    xaxis: { title: { text: state.about.inputs[across].name, standoff: 6 }, nticks: find("map").clientWidth < 520 ? 5 : 10 },
    yaxis: { title: { text: flat ? "z of each ball" : state.about.inputs[Number(up)].name, standoff: 10 } }, shapes, annotations,
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
  drawNumbers(); drawDensity(); drawSweep(); drawMap(); drawCurves();
}

// ---- questions

const askDistribution = latest("distribution", async (began) => {
  const k = find("k").validity.valid && find("k").value ? Number(find("k").value) : null;
  const x = [...state.x]; // the inputs may move on before the answer comes
  state.distribution = await ask("/api/distribution", { x, k, shifted: find("shifted").checked });
  drawNumbers();
  drawDensity();
  // For the tests and the benchmark of this page.
  document.body.dataset.redraw = String(performance.now() - began);
  document.body.dataset.drawn = JSON.stringify(x);
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
    if (state.about.inputs.length === 2) { find("map-x").value = "0"; find("map-y").value = "1"; }
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

function addInput(input, j) {
  const box = element("div", { class: "input" });
  const number = element("input", { type: "number", id: `number-${j}`, step: "any", inputmode: "decimal", "aria-describedby": `ends-${j}` });
  const slider = element("input", { type: "range", id: `slider-${j}`, min: input.low, max: input.high, step: input.step, "aria-label": `${input.name}, slider` });
  const ends = element("div", { class: "ends", id: `ends-${j}` });
  ends.append(element("span", {}, shown(input.low)), element("span", { class: "unseen" }, " to "), element("span", {}, shown(input.high)));
  box.append(element("label", { for: `number-${j}` }, input.name), number, slider, ends);
  find("sliders").append(box);
  const mark = () => box.classList.toggle("outside", state.x[j] < input.low || state.x[j] > input.high);
  const set = (value) => {
    state.x[j] = value;
    number.value = String(value);
    slider.value = String(value);
    mark();
  };
  slider.addEventListener("input", () => {
    // A slider counts its steps from its lower end; people count from zero.
    const raw = Number(slider.value), nice = Number((Math.round(raw / input.step) * input.step).toFixed(decimals(input.step)));
    state.x[j] = Math.min(input.high, Math.max(input.low, nice));
    number.value = String(state.x[j]);
    mark();
    changed();
  });
  number.addEventListener("input", () => {
    if (number.value === "" || !Number.isFinite(Number(number.value))) return;
    state.x[j] = Number(number.value);
    slider.value = number.value;
    mark();
    changed();
  });
  // An emptied box goes back to the value that the charts show.
  number.addEventListener("change", () => { number.value = String(state.x[j]); });
  // By default, arrow keys change a number by 1, whatever its range.
  number.addEventListener("keydown", (event) => {
    const direction = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (direction === undefined) return;
    event.preventDefault();
    set(Number((state.x[j] + direction * input.step).toFixed(decimals(input.step) + 2)));
    changed();
  });
  set(input.start);
  return set;
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
  about.inputs.forEach((input, j) => { find("swept").append(option(j, input.name)); find("map-x").append(option(j, input.name)); });
  find("map-y").append(option("z", "z of each ball"), ...about.inputs.map((input, j) => option(j, input.name)));
  about.outputs.forEach((output, j) => find("output").append(option(j, output.name)));
  find("output-choice").hidden = about.outputs.length < 2;
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
  find("zoom").addEventListener("change", drawDensity);
  find("reset").addEventListener("click", () => { setters.forEach((set, j) => set(about.inputs[j].start)); changed(); });
  find("run-test").addEventListener("click", runTest);
  for (const id of ["map-x", "map-y"]) find(id).addEventListener("change", drawMap);
  askDistribution(performance.now());
  askSweep();
}

begin().catch((error) => complain("start", `The page could not start: ${error.message}`));
