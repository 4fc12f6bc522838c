// The page: state, training, solutions, and one frame after another.

import { logSoftmax } from "./attention.js";
import { createCurve, createNorms, createTokens, matrix, percent, plain } from "./charts.js";
import { maxMargin, product, rowsOf, SUPPORT } from "./margin.js";
import { normById, NORMS } from "./norms.js";
import { createPlane } from "./plane.js";
import { angle, efficiency, FRAMES, Run } from "./run.js";
import { RULES, ruleById } from "./rules.js";
import { copied, EXAMPLES, fromHash, initial, placed, resized, SEQUENCES, shuffled, toHash, TOKENS } from "./state.js";

const $ = (id) => document.getElementById(id);
const calm = matchMedia("(prefers-reduced-motion: reduce)");
const LAST = FRAMES.length - 1;
const BUDGET = 3; // milliseconds of a frame for training, and as many for solving

let state = fromHash(location.hash) ?? initial();
let [run, rows, solutions, curve, widths] = [];
let [frame, playing, held, requested, previous] = [0, true, false, false, 0];
let [allowance, written, later] = [45, 0, 0];

const plane = createPlane($("plane"), { move, choose, hold });
const drawTokens = createTokens($("tokens"));
const drawCurve = createCurve($("curve"));
const drawNorms = createNorms($("norms"), NORMS, (norm) => change({ norm }));

/** Takes over a change of the state. What no longer holds is computed again; the address follows. */
function change(update) {
  const before = state;
  state = { ...state, ...update };
  const same = ["sequences", "fixed"].every((name) => state[name] === before[name]);
  if (!same || !rows) {
    rows = rowsOf(state);
    solutions = new Map();
  }
  if (!same || !run || state.rule !== before.rule || state.lr !== before.lr) {
    run = new Run(state, ruleById[state.rule], state.lr);
    playing = true;
    if (!held && frame >= LAST) frame = same ? 0 : frame;
  }
  curve = null;
  if (!held) remember();
  controls();
  request();
}

/** A change after which the run starts anew. */
function restart(update = {}) {
  frame = 0;
  playing = true;
  change(update);
}

/** Puts a token or, without one, a query where `place` says; `place` is told where it is. */
function move({ sequence, token }, place) {
  const moved = (point) => placed(place(point));
  const sequences = state.sequences.map((one, i) => {
    if (i !== sequence) return one;
    if (token === undefined) return { ...one, query: moved(one.query) };
    return { ...one, tokens: one.tokens.map((x, t) => (t === token ? moved(x) : x)) };
  });
  change({ sequences });
}

function choose({ sequence, token }) {
  if (token === undefined) return;
  change({ sequences: state.sequences.map((one, i) => (i === sequence ? { ...one, answer: token } : one)) });
}

function hold(is) {
  held = is;
  document.body.classList.toggle("held", is);
  if (!is) remember();
  request();
}

/** Writes the state into the address. Browsers allow about 100 changes in 30 s: a held arrow key has to wait. */
function remember() {
  clearTimeout(later);
  const now = performance.now();
  allowance = Math.min(45, allowance + (now - written) / 600);
  written = now;
  if (allowance < 1) {
    later = setTimeout(remember, 600);
    return;
  }
  const hash = toHash(state);
  if (hash === location.hash) return;
  allowance -= 1;
  history.replaceState(null, "", hash);
}

/** Widths are read when they change: reading them in a frame would make the browser lay the page out twice. */
function measure() {
  widths = Object.fromEntries(["plane", "tokens", "curve"].map((id) => [id, $(id).clientWidth]));
}

function request() {
  if (!requested) requestAnimationFrame(tick);
  requested = true;
}

function tick(now) {
  requested = false;
  // A frame lasts 1/60 s on any screen. Without motion the run jumps to its end.
  const passed = Math.min(6, Math.max(1, Math.round((now - previous) * 0.06)));
  previous = now;
  if (playing && !held) frame = calm.matches ? LAST : Math.min(LAST, frame + passed);
  const until = performance.now() + BUDGET;
  while (run.weights.length <= frame && performance.now() < until) run.at(run.weights.length);
  const shown = Math.min(frame, run.weights.length - 1);
  let waiting = shown < frame;
  const chosenFirst = [normById[state.norm], ...NORMS];
  const deadline = performance.now() + BUDGET;
  for (const norm of chosenFirst) {
    if (solutions.has(norm.id)) continue;
    if (solutions.size && performance.now() > deadline) waiting = true;
    else solutions.set(norm.id, maxMargin(rows.map(({ row }) => row), norm));
  }
  if (!(calm.matches && waiting && !held)) draw(shown);
  if (playing && shown === LAST) playing = false;
  controls();
  if (playing || waiting) request();
  else $("status").setAttribute("aria-live", "polite");
}

function draw(shown) {
  const norm = normById[state.norm];
  const solution = solutions.get(norm.id);
  const W = run.at(shown);
  const values = rows.map(({ row }) => row);
  const logs = logSoftmax(state, W);
  const weights = logs.map((one) => one.map(Math.exp));
  const efficiencies = new Map(NORMS.map((n) => [n.id, solutions.has(n.id) ? efficiency(W, values, n, solutions.get(n.id)) : NaN]));
  const support = new Set(rows.filter((_, r) => solution.feasible && solution.multipliers[r] > SUPPORT).map(keyOfRow));
  const size = norm.norm(W);
  const margins = new Map(rows.map((one) => [keyOfRow(one), (product(one.row, W) / size) * solution.lower]));
  curve ??= { angle: [], missing: [] };
  for (let j = curve.angle.length; j <= shown; j++) {
    const at = run.at(j);
    curve.angle.push(solution.feasible ? angle(at, solution.W) : NaN);
    curve.missing.push(100 * (1 - efficiency(at, values, norm, solution)));
  }
  const quiet = !held && (!playing || shown === LAST);
  plane.draw({ state, W, solution, weights, support, width: widths.plane, quiet });
  drawTokens({ state, logs, margins, support, width: widths.tokens });
  const [angles, missing] = [curve.angle, curve.missing].map((values) => values.slice(0, shown + 1));
  drawCurve({ angle: angles, missing, frame: shown, width: widths.curve });
  drawNorms({ state, efficiencies, expected: ruleById[state.rule].norm });
  numbers(shown, W, norm, solution, efficiencies.get(norm.id), weights);
}

const keyOfRow = ({ sequence, token }) => `${sequence}-${token}`;

function numbers(shown, W, norm, solution, share, weights) {
  const degrees = solution.feasible ? angle(W, solution.W) : NaN;
  const picked = weights.filter((s, i) => s[state.sequences[i].answer] > 0.5).length;
  $("step").textContent = FRAMES[shown].toLocaleString("en");
  $("time").value = shown;
  $("share").textContent = percent(share);
  $("degrees").textContent = Number.isFinite(degrees) ? degrees < 1e-5 ? "below 1e−5°" : `${plain(degrees)}°` : "–";
  $("size").textContent = plain(norm.norm(W));
  $("bracket").textContent = solution.feasible ? bracket(solution) : "no solution";
  $("gap").textContent = solution.feasible ? gapText(solution) : "multipliers show that the margins contradict each other";
  const scale = (V) => { const length = norm.norm(V); return length > 0 ? V.map((v) => v / length) : V; };
  matrix($("now"), scale(W));
  matrix($("goal"), solution.feasible ? scale(solution.W) : null);
  const name = state.fixed ? "p" : "W";
  for (const one of document.querySelectorAll(".weights-name")) one.textContent = name;
  $("unique").hidden = norm.strict || !solution.feasible;
  const n = state.sequences.length;
  const answers = `the softmax favours the answer in ${picked} of ${n} sequence${n > 1 ? "s" : ""}`;
  $("status").textContent = !solution.feasible
    ? `No ${name} keeps every answer ahead of its rivals. Drag an answer outwards, or click another token.`
    : shown === 0
      ? `Step 0: ${name} = 0, and every token has the same weight.`
      : `Step ${FRAMES[shown].toLocaleString("en")}: ${answers}. ${name} has ${percent(share)} of the largest ${norm.label} margin.`;
}

/** Both ends of the bracket, rounded outwards, with the digits that they share and one more. */
function bracket({ lower, upper }) {
  const digits = Math.min(11, 1 - Math.floor(Math.log10(Math.max(upper / lower - 1, 1e-11))));
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(upper)));
  const [down, up] = [Math.floor(lower * 10 ** places), Math.ceil(upper * 10 ** places)].map((v) => (v / 10 ** places).toFixed(places));
  return `${down} ≤ ‖${state.fixed ? "p" : "W"}*‖ ≤ ${up}`;
}

function gapText({ lower, upper }) {
  const gap = upper / lower - 1;
  return gap < 1e-15 ? "relative gap below 1e−15" : `relative gap ${gap.toExponential(0).replace("-", "−")}`;
}

function controls() {
  $("play").textContent = playing ? "Pause" : frame >= LAST ? "Replay" : "Play";
  $("rule").value = state.rule;
  $("rate").value = Math.log10(state.lr);
  $("rate-value").textContent = state.lr;
  $("model").value = state.fixed ? "p" : "W";
  $("sequences").value = state.sequences.length;
  $("per-sequence").value = state.sequences[0].tokens.length;
  if (playing) $("status").setAttribute("aria-live", "off");
}

function options(select, entries) {
  select.append(...entries.map(([value, label]) => new Option(label, value)));
}

const range = ({ least, most }) => Array.from({ length: most - least + 1 }, (_, i) => [least + i, least + i]);
options($("rule"), RULES.map(({ id, label }) => [id, label]));
options($("sequences"), range(SEQUENCES));
options($("per-sequence"), range(TOKENS));
options($("example"), Object.entries(EXAMPLES).map(([id, { label }]) => [id, label]));
$("time").max = LAST;

$("play").onclick = () => {
  if (!playing && frame >= LAST) return restart();
  playing = !playing;
  controls();
  request();
};
$("restart").onclick = () => restart();
$("time").oninput = (event) => {
  frame = Number(event.target.value);
  playing = false;
  controls();
  request();
};
$("rule").onchange = (event) => {
  const rule = ruleById[event.target.value];
  restart({ rule: rule.id, norm: rule.norm, lr: rule.lr });
};
$("rate").oninput = (event) => change({ lr: Number((10 ** Number(event.target.value)).toPrecision(2)) });
$("model").onchange = (event) => restart({ fixed: event.target.value === "p" });
const sizes = () => change(resized(state, Number($("sequences").value), Number($("per-sequence").value)));
$("sequences").onchange = sizes;
$("per-sequence").onchange = sizes;
$("shuffle").onclick = () => restart(shuffled(state));
$("example").onchange = (event) => {
  if (!event.target.value) return;
  restart(copied(EXAMPLES[event.target.value]));
  event.target.value = "";
};
addEventListener("hashchange", () => {
  const asked = fromHash(location.hash);
  if (asked && toHash(asked) !== toHash(state)) restart(asked);
});
document.body.classList.toggle("embedded", window.self !== window.top);
new ResizeObserver(() => {
  measure();
  request();
}).observe($("plane"));
measure();
change({});
