// The max-margin problem: the smallest W that puts every answer ahead of the other tokens of its sequence by 1.
// With γ the largest margin of a W in the unit ball, the optimal norm is 1/γ.

import { cholesky, solveConic, substitute } from "./conic.js";

/** Below this margin, relative to the largest row, the tokens count as inseparable. */
const ZERO = 1e-9;
/** Above this share of all multipliers a row supports the solution. */
export const SUPPORT = 1e-5;
const NEWTON = 6;

/**
 * Rows (x_α − x_t) zᵀ, one for every token t beside the answer α. A problem is {sequences: [{tokens, query, answer}],
 * fixed}: with a fixed query W is a vector and z = 1.
 */
export function rowsOf({ sequences, fixed }) {
  return sequences.flatMap(({ tokens, query, answer }, sequence) =>
    tokens.flatMap((x, token) => {
      if (token === answer) return [];
      const a = tokens[answer].map((v, i) => v - x[i]);
      const row = fixed ? a : [a[0] * query[0], a[0] * query[1], a[1] * query[0], a[1] * query[1]];
      return [{ sequence, token, row }];
    }),
  );
}

export const product = (a, b) => a.reduce((total, v, i) => total + v * b[i], 0);

/**
 * min ‖W‖ subject to ⟨row, W⟩ ≥ 1. The answer carries its own proof: W has margin 1 and norm `upper`; the multipliers
 * show that no W with margin 1 has a norm below `lower` = Σλ/‖Σλ row‖_*. Rounding is not counted in.
 */
export function maxMargin(rows, norm) {
  const D = rows[0].length;
  const longest = Math.max(...rows.flat().map(Math.abs));
  const unit = rows.map((row) => row.map((v) => v / (longest || 1)));
  const { c, F, f } = programme(unit, D, norm);
  const { x, z } = solveConic(c, F, f);
  let best = certified(unit, norm, x.slice(0, D), z.slice(0, rows.length));
  if (best.feasible && norm.strict) {
    const again = polished(unit, norm, best);
    if (again && again.upper / again.lower < best.upper / best.lower) best = again;
  }
  if (!best.feasible) return best;
  const { W, multipliers, lower, upper } = best;
  return { feasible: true, W: W.map((w) => w / longest), multipliers, lower: lower / longest, upper: upper / longest };
}

/** The bracket of the optimal norm that a direction and multipliers prove; multipliers add up to 1. */
function certified(rows, norm, direction, z) {
  const positive = z.map((v) => Math.max(v, 0));
  const total = positive.reduce((sum, v) => sum + v, 0);
  const multipliers = positive.map((v) => v / total);
  const margin = Math.min(...rows.map((row) => product(row, direction)));
  const dual = norm.dual(direction.map((_, j) => product(multipliers, rows.map((row) => row[j]))));
  if (margin <= 0 || dual < ZERO) return { feasible: false, W: null, multipliers, lower: Infinity, upper: Infinity };
  const W = direction.map((v) => v / margin);
  return { feasible: true, W, multipliers, lower: 1 / dual, upper: norm.norm(W) };
}

/**
 * Newton's method on the support alone, in ℓp: W = ∇ψ*(θ), θ = Σλ row, margin 1 on every support row. It squares the
 * error where the interior point halves its digits. The certificate decides whether it did.
 */
function polished(rows, { p, norm, dual }, { W, multipliers, upper }) {
  const q = p / (p - 1);
  const support = multipliers.flatMap((v, r) => (v > SUPPORT ? [r] : []));
  const S = support.map((r) => rows[r]);
  const lambda = support.map((r) => multipliers[r] * upper ** p);
  const link = (theta) => theta.map((v) => Math.sign(v) * Math.abs(v) ** (q - 1));
  const pull = () => W.map((_, j) => product(lambda, S.map((row) => row[j])));
  for (let k = 0; k < NEWTON; k++) {
    const theta = pull();
    const V = link(theta);
    const bend = theta.map((v) => (q - 1) * Math.abs(v) ** (q - 2));
    const M = S.map((a) => S.map((b) => a.reduce((sum, v, j) => sum + v * bend[j] * b[j], 0)));
    const step = substitute(cholesky(M), S.map((row) => 1 - product(row, V)));
    for (let i = 0; i < lambda.length; i++) lambda[i] += step[i];
  }
  if (!lambda.every((v) => v >= 0 && v < Infinity)) return null;
  const all = rows.map(() => 0);
  support.forEach((r, i) => (all[r] = lambda[i]));
  return certified(rows, { norm, dual }, link(pull()), all);
}

/** max m subject to ⟨row, W⟩ ≥ m and ‖W‖ ≤ 1, as a conic programme in (W, m, more). The margins' rows come first. */
function programme(rows, D, norm) {
  const blocks = [];
  const constants = [];
  let unknowns = D + 1;
  const add = (count) => (unknowns += count) - count;
  const cone = (lines) => {
    const names = new Set(lines.flatMap((line) => Object.keys(line)).filter((name) => name !== "constant"));
    const cols = [...names].map(Number).sort((a, b) => a - b);
    blocks.push({ cols, rows: lines.map((line) => Array.from(cols, (j) => line[j] ?? 0)) });
    constants.push(...lines.map((line) => line.constant ?? 0));
  };
  for (const row of rows) cone([{ ...row, [D]: -1 }]);
  norm.ball(D, add, cone);
  const c = new Array(unknowns).fill(0);
  c[D] = -1;
  return { c, F: blocks, f: constants };
}
