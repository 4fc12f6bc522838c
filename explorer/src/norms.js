// The seven norms. Weights are flat: W = [a, b, c, d] row by row, or a vector p = [a, c] for a fixed query.
// Each norm knows its value, its dual, and its unit ball as second-order cones.

const size = (x) => Math.hypot(...x);
const sum = (x) => x.reduce((total, value) => total + value, 0);

/** ‖x‖_p, scaled by the largest entry so that powers neither overflow nor underflow. */
export function lp(x, p) {
  const largest = Math.max(...x.map(Math.abs));
  if (largest === 0 || p === Infinity) return largest;
  return largest * sum(x.map((v) => Math.abs(v / largest) ** p)) ** (1 / p);
}

/** The rotation part and the reflection part of a 2×2 matrix: its singular values are (|u| ± |w|)/2. */
export function parts([a, b, c, d]) {
  return { u: [a + d, c - b], w: [a - d, b + c] };
}

function singular(W) {
  if (W.length === 2) return [size(W), 0];
  const { u, w } = parts(W);
  return [(size(u) + size(w)) / 2, Math.abs(size(u) - size(w)) / 2];
}

const nuclear = (W) => sum(singular(W));
const spectral = (W) => singular(W)[0];
const conjugate = (p) => (p === 1 ? Infinity : p === Infinity ? 1 : p / (p - 1));

/**
 * A ball in cones: `add(n)` makes n more unknowns and returns the first; `cone(rows)` demands that the affine rows
 * (|rows after the first|₂ ≤ first row) hold. A row is {constant, unknown: coefficient, …}; W has unknowns 0 to D − 1.
 */
const balls = {
  linf(D, add, cone) {
    for (let i = 0; i < D; i++) for (const sign of [1, -1]) cone([{ constant: 1, [i]: sign }]);
  },
  l1(D, add, cone) {
    const y = bounds(D, add, cone);
    cone([{ constant: 1, ...Object.fromEntries(Array.from({ length: D }, (_, i) => [y + i, -1])) }]);
  },
  l2(D, add, cone) {
    cone([{ constant: 1 }, ...Array.from({ length: D }, (_, i) => ({ [i]: 1 }))]);
  },
  // y³ ≤ s where y² ≤ r and r² ≤ s y
  l3(D, add, cone) {
    powers(D, add, cone, (y, r, s) => [[y, { [r]: 1 }, { constant: 1 }], [r, { [s]: 1 }, { [y]: 1 }]]);
  },
  // y^1.5 ≤ s where y² ≤ s r and r² ≤ y
  "l1.5"(D, add, cone) {
    powers(D, add, cone, (y, r, s) => [[y, { [s]: 1 }, { [r]: 1 }], [r, { [y]: 1 }, { constant: 1 }]]);
  },
  nuclear(D, add, cone) {
    if (D === 2) return balls.l2(D, add, cone);
    cone([{ constant: 1 }, { 0: 1, 3: 1 }, { 2: 1, 1: -1 }]);
    cone([{ constant: 1 }, { 0: 1, 3: -1 }, { 1: 1, 2: 1 }]);
  },
  spectral(D, add, cone) {
    if (D === 2) return balls.l2(D, add, cone);
    const y = add(1);
    cone([{ constant: 1, [y]: 1 }, { 0: 1, 3: 1 }, { 2: 1, 1: -1 }]);
    cone([{ constant: 1, [y]: -1 }, { 0: 1, 3: -1 }, { 1: 1, 2: 1 }]);
  },
};

/** Unknowns y_i ≥ |W_i|. */
function bounds(D, add, cone) {
  const y = add(D);
  for (let i = 0; i < D; i++) for (const sign of [1, -1]) cone([{ [y + i]: 1, [i]: sign }]);
  return y;
}

/** Σ_i s_i ≤ 1, where s_i is above a power of |W_i| by two cones value² ≤ left·right. */
function powers(D, add, cone, chain) {
  const y = bounds(D, add, cone);
  const [r, s] = [add(D), add(D)];
  for (let i = 0; i < D; i++) {
    for (const [value, left, right] of chain(y + i, r + i, s + i)) {
      const difference = { ...left };
      for (const [key, v] of Object.entries(right)) difference[key] = (difference[key] ?? 0) - v;
      cone([{ ...left, ...right }, difference, { [value]: 2 }]);
    }
  }
  cone([{ constant: 1, ...Object.fromEntries(Array.from({ length: D }, (_, i) => [s + i, -1])) }]);
}

function lpNorm(id, label, p) {
  const q = conjugate(p);
  return { id, label, p, norm: (W) => lp(W, p), dual: (G) => lp(G, q), ball: balls[id], strict: p > 1 && p < Infinity };
}

export const NORMS = [
  lpNorm("l1", "ℓ₁", 1),
  lpNorm("l1.5", "ℓ₁.₅", 1.5),
  lpNorm("l2", "ℓ₂", 2),
  lpNorm("l3", "ℓ₃", 3),
  lpNorm("linf", "ℓ∞", Infinity),
  { id: "nuclear", label: "nuclear", norm: nuclear, dual: spectral, ball: balls.nuclear, strict: false },
  { id: "spectral", label: "spectral", norm: spectral, dual: nuclear, ball: balls.spectral, strict: false },
];

export const normById = Object.fromEntries(NORMS.map((norm) => [norm.id, norm]));
