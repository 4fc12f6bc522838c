// Update rules. A gradient comes as e^shift · G. Moments keep a logarithmic scale of their own, so that nothing that
// matters underflows. A state holds the weights W and whatever the rule remembers.

import { lp, normById, parts } from "./norms.js";

/** Singular values below this share of the largest are rounding: their vectors are arbitrary. */
const NOISE = 16 * 2 ** -52;

const hypot = (v) => Math.hypot(...v);
const scaled = (v, factor) => v.map((x) => factor * x);
const moved = (W, direction, eta) => W.map((w, i) => w - eta * direction[i]);

/** The directions of norm 1 in which G rises most; 0 for G = 0. */
const steepest = {
  l1(G) {
    const sizes = G.map(Math.abs);
    const top = sizes.indexOf(Math.max(...sizes));
    return G.map((g, i) => (i === top ? Math.sign(g) : 0));
  },
  l2: (G) => scaled(G, hypot(G) > 0 ? 1 / hypot(G) : 0),
  linf: (G) => G.map(Math.sign),
  nuclear: (G) => (G.length === 2 ? steepest.l2(G) : topPair(G)),
  spectral(G) {
    if (G.length === 2) return steepest.l2(G);
    const { u, w } = parts(G);
    const [a, b] = [hypot(u), hypot(w)];
    if (Math.abs(a - b) <= NOISE * (a + b)) return topPair(G); // rank one, but for rounding
    return a > b ? rotation(u, 1 / a) : reflection(w, 1 / b);
  },
};

const rotation = (u, factor) => [u[0] * factor, -u[1] * factor, u[1] * factor, u[0] * factor];
const reflection = (w, factor) => [w[0] * factor, w[1] * factor, w[1] * factor, -w[0] * factor];

/** u₁v₁ᵀ of the largest singular value. */
function topPair(G) {
  if (hypot(G) === 0) return scaled(G, 0);
  const { u, w } = parts(G);
  const [a, b] = [hypot(u), hypot(w)];
  // Equal singular values (a part is 0): any direction of the missing part will do.
  const first = a > 0 ? rotation(u, 0.5 / a) : rotation([1, 0], 0.5);
  const second = b > 0 ? reflection(w, 0.5 / b) : reflection([1, 0], 0.5);
  return first.map((v, i) => v + second[i]);
}

/** beta·moment + share·gradient at a common scale. */
function joined(moment, beta, share, G, shift) {
  const old = (moment?.shift ?? -Infinity) + Math.log(beta);
  const fresh = shift + Math.log(share);
  const top = Math.max(old, fresh);
  const [a, b] = [Math.exp(old - top), Math.exp(fresh - top)];
  return { G: G.map((g, i) => a * (moment?.G[i] ?? 0) + b * g), shift: top };
}

const BETA1 = 0.9;
const BETA2 = 0.95;
const MOMENTUM = 0.95;

const normalised = (norm) => ({ W }, { G }, eta) => ({ W: moved(W, steepest[norm](G), eta) });

function adam({ W, M, V, count = 0 }, { G, shift }, eta) {
  count += 1;
  M = joined(M, BETA1, 1 - BETA1, G, shift);
  V = joined(V, BETA2, 1 - BETA2, G.map((g) => g * g), 2 * shift);
  const factor = (Math.sqrt(1 - BETA2 ** count) / (1 - BETA1 ** count)) * Math.exp(M.shift - V.shift / 2);
  const direction = M.G.map((m, i) => (V.G[i] > 0 ? (factor * m) / Math.sqrt(V.G[i]) : 0));
  return { W: moved(W, direction, eta), M, V, count };
}

function muon({ W, M }, { G, shift }, eta) {
  M = joined(M, MOMENTUM, 1, G, shift);
  return { W: moved(W, steepest.spectral(joined(M, MOMENTUM, 1, G, shift).G), eta), M };
}

const mirror = (p) => (state, { G }, eta) => {
  const size = lp(G, p / (p - 1));
  const theta = moved(state.theta ?? state.W.map((w) => Math.sign(w) * Math.abs(w) ** (p - 1)), G, size > 0 ? eta / size : 0);
  return { W: theta.map((t) => Math.sign(t) * Math.abs(t) ** (1 / (p - 1))), theta };
};

/** Every rule with its usual step size and the norm whose margin it is expected to maximise. */
export const RULES = [
  { id: "ngd", label: "Gradient descent, normalised", norm: "l2", lr: 0.05, step: normalised("l2") },
  { id: "gd", label: "Gradient descent, plain", norm: "l2", lr: 1, step: ({ W }, { G, shift }, eta) => ({ W: moved(W, G, eta * Math.exp(shift)) }) },
  { id: "sign", label: "Sign descent", norm: "linf", lr: 0.02, step: normalised("linf") },
  { id: "adam", label: "Adam (0.9, 0.95)", norm: "linf", lr: 0.02, step: adam },
  { id: "spectral", label: "Spectral descent", norm: "spectral", lr: 0.05, step: normalised("spectral") },
  { id: "muon", label: "Muon (momentum 0.95)", norm: "spectral", lr: 0.02, step: muon },
  { id: "mirror1.5", label: "Mirror descent, p = 1.5", norm: "l1.5", lr: 0.05, step: mirror(1.5) },
  { id: "mirror3", label: "Mirror descent, p = 3", norm: "l3", lr: 0.2, step: mirror(3) },
  { id: "coordinate", label: "Coordinate descent", norm: "l1", lr: 0.05, step: normalised("l1") },
  { id: "rankone", label: "Rank-one descent", norm: "nuclear", lr: 0.05, step: normalised("nuclear") },
];

export const ruleById = Object.fromEntries(RULES.map((rule) => [rule.id, rule]));
export const expectedNorm = (rule) => normById[rule.norm];
