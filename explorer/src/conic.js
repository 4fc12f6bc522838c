// min cᵀx subject to F x + f ∈ K, a product of second-order cones {v₀ ≥ |v₁|₂} (dimension 1: a half-line).
// Primal–dual interior point with Nesterov–Todd scaling and Mehrotra's corrector. Sizes here: 20 unknowns, 50 rows.
//
// Slacks s = F x + f and multipliers z are held in scaled coordinates in which they are the same vector λ:
// s = ηLλ and z = η⁻¹L⁻ᵀλ, where L is a Lorentz transformation of each cone, L⁻¹ = J Lᵀ J. Near the optimum s and z
// touch the boundary, where v₀² − |v₁|² cancels; λ stays in the middle of the cone, so nothing cancels.

const ITERATIONS = 60;
const STEP = 0.99;
const PATIENCE = 3;
const ROUNDS = 3;

/**
 * Solves; returns x and the multipliers z of the rows. A block {cols, rows} of F holds a cone's rows in the columns
 * `cols`, the others are 0; `f` runs over all rows.
 */
export function solveConic(c, F, f, tolerance = 1e-15) {
  const [n, N] = [c.length, f.length];
  let at = 0;
  const cones = F.map(({ rows }) => ({ at: (at += rows.length) - rows.length, dim: rows.length, eta: 1, L: identity(rows.length) }));
  const x = zeros(n);
  const lambda = zeros(N);
  for (const { at } of cones) lambda[at] = 1;
  let best = { merit: Infinity };
  for (let k = 0; k < ITERATIONS; k++) {
    const s = mapped(cones, lambda, slack);
    const z = mapped(cones, lambda, multiplier);
    const rx = multiplyT(F, z, n);
    for (let j = 0; j < n; j++) rx[j] -= c[j];
    const rs = multiply(F, x, N);
    for (let i = 0; i < N; i++) rs[i] = s[i] - rs[i] - f[i];
    const mu = dot(lambda, lambda) / cones.length;
    const merit = Math.max(mu, largest(rx), largest(rs));
    if (merit < best.merit) best = { merit, x: x.slice(), z, iterations: k };
    if (merit < tolerance || !(k - best.iterations < PATIENCE)) break;

    const S = scaledRows(F, cones);
    const gap = mapped(cones, rs, unscaled);
    const factor = cholesky(gram(S, n));
    // With q = λ\d, in scaled coordinates: Δs + Δz = q, SᵀΔz = −rx, Δs − SΔx = −gap.
    const direction = (d, share) => {
      const q = divided(cones, lambda, d);
      const dx = zeros(n);
      const ds = gap.map((v) => -share * v);
      const dz = q.map((v, i) => v - ds[i]);
      // SᵀS has lost digits that S still has: solve, then correct by what is left of SᵀΔz = −rx.
      for (let round = 0; round < ROUNDS; round++) {
        const rest = multiplyT(S, dz, n);
        for (let j = 0; j < n; j++) rest[j] += share * rx[j];
        const more = substitute(factor, rest);
        const moved = multiply(S, more, N);
        for (let j = 0; j < n; j++) dx[j] += more[j];
        for (let i = 0; i < N; i++) {
          ds[i] += moved[i];
          dz[i] -= moved[i];
        }
      }
      return { dx, ds, dz };
    };
    const square = product(cones, lambda, lambda);
    const first = direction(square.map((v) => -v), 1);
    const reach = Math.min(1, longest(cones, lambda, first.ds), longest(cones, lambda, first.dz));
    const sigma = (1 - reach) ** 3;
    const bend = product(cones, first.ds, first.dz);
    const target = square.map((v, i) => -v - bend[i]);
    for (const { at } of cones) target[at] += sigma * mu;
    const { dx, ds, dz } = direction(target, 1 - sigma);
    const step = Math.min(1, STEP * Math.min(longest(cones, lambda, ds), longest(cones, lambda, dz)));
    for (let j = 0; j < n; j++) x[j] += step * dx[j];
    for (let i = 0; i < N; i++) {
      ds[i] = lambda[i] + step * ds[i];
      dz[i] = lambda[i] + step * dz[i];
    }
    for (const cone of cones) rescale(cone, ds, dz, lambda);
  }
  return best;
}

// Small plain arrays are faster than typed ones.
const zeros = (n) => new Array(n).fill(0);
const identity = (dim) => Array.from({ length: dim }, (_, i) => Array.from({ length: dim }, (_, j) => +(i === j)));

function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}

function largest(a) {
  let top = 0;
  for (const v of a) top = Math.max(top, Math.abs(v));
  return top;
}

function multiply(F, x, N) {
  const result = zeros(N);
  let i = 0;
  for (const { cols, rows } of F) {
    for (const row of rows) {
      for (let k = 0; k < cols.length; k++) result[i] += row[k] * x[cols[k]];
      i++;
    }
  }
  return result;
}

function multiplyT(F, z, n) {
  const result = zeros(n);
  let i = 0;
  for (const { cols, rows } of F) {
    for (const row of rows) {
      for (let k = 0; k < cols.length; k++) result[cols[k]] += row[k] * z[i];
      i++;
    }
  }
  return result;
}

const flip = (i, j) => ((i === 0) === (j === 0) ? 1 : -1);
/** Entries of ηL, of η⁻¹L⁻ᵀ = η⁻¹JLJ, and of (ηL)⁻¹ = η⁻¹JLᵀJ. */
const slack = ({ eta, L }, i, j) => eta * L[i][j];
const multiplier = ({ eta, L }, i, j) => (flip(i, j) * L[i][j]) / eta;
const unscaled = ({ eta, L }, i, j) => (flip(i, j) * L[j][i]) / eta;

/** A matrix per cone, given by its entries, times v. */
function mapped(cones, v, entry) {
  const out = zeros(v.length);
  for (const cone of cones) {
    const { at, dim } = cone;
    for (let i = 0; i < dim; i++) for (let j = 0; j < dim; j++) out[at + i] += entry(cone, i, j) * v[at + j];
  }
  return out;
}

/** (ηL)⁻¹F. */
function scaledRows(F, cones) {
  return cones.map((cone, index) => {
    const { cols, rows } = F[index];
    const scaled = rows.map((_, i) => {
      const row = zeros(cols.length);
      for (let j = 0; j < cone.dim; j++) {
        const factor = unscaled(cone, i, j);
        for (let k = 0; k < cols.length; k++) row[k] += factor * rows[j][k];
      }
      return row;
    });
    return { cols, rows: scaled };
  });
}

/** The lower half of SᵀS; columns of a block ascend. */
function gram(S, n) {
  const M = Array.from({ length: n }, () => zeros(n));
  for (const { cols, rows } of S) {
    for (const row of rows) {
      for (let i = 0; i < cols.length; i++) for (let j = 0; j <= i; j++) M[cols[i]][cols[j]] += row[i] * row[j];
    }
  }
  return M;
}

export function cholesky(M) {
  for (let i = 0; i < M.length; i++) {
    for (let j = 0; j <= i; j++) {
      let v = M[i][j];
      for (let k = 0; k < j; k++) v -= M[i][k] * M[j][k];
      // A pivot lost to rounding belongs to a direction in which nothing moves any more.
      M[i][j] = i !== j ? v / M[j][j] : v > 0 ? Math.sqrt(v) : 1e100;
    }
  }
  return M;
}

export function substitute(L, b) {
  const n = L.length;
  const y = b.slice();
  for (let i = 0; i < n; i++) {
    for (let k = 0; k < i; k++) y[i] -= L[i][k] * y[k];
    y[i] /= L[i][i];
  }
  for (let i = n - 1; i >= 0; i--) {
    for (let k = i + 1; k < n; k++) y[i] -= L[k][i] * y[k];
    y[i] /= L[i][i];
  }
  return y;
}

/** The Jordan product a∘b of every cone. */
function product(cones, a, b) {
  const out = zeros(a.length);
  for (const { at, dim } of cones) {
    for (let i = 0; i < dim; i++) out[at] += a[at + i] * b[at + i];
    for (let i = 1; i < dim; i++) out[at + i] = a[at] * b[at + i] + b[at] * a[at + i];
  }
  return out;
}

/** v₀² − |v₁|², from its factors. */
function determinant(v, at, dim) {
  let tail = 0;
  for (let i = 1; i < dim; i++) tail += v[at + i] ** 2;
  tail = Math.sqrt(tail);
  return Math.max((v[at] - tail) * (v[at] + tail), 1e-300);
}

/** The q with λ∘q = d. */
function divided(cones, lambda, d) {
  const out = zeros(d.length);
  for (const { at, dim } of cones) {
    let inner = 0;
    for (let i = 1; i < dim; i++) inner += lambda[at + i] * d[at + i];
    out[at] = (lambda[at] * d[at] - inner) / determinant(lambda, at, dim);
    for (let i = 1; i < dim; i++) out[at + i] = (d[at + i] - out[at] * lambda[at + i]) / lambda[at];
  }
  return out;
}

/** The largest step along d for which v stays in the cones. */
function longest(cones, v, d) {
  let step = Infinity;
  for (const { at, dim } of cones) {
    if (dim === 1) {
      if (d[at] < 0) step = Math.min(step, -v[at] / d[at]);
      continue;
    }
    // The first positive root of c + 2bt + at², without cancellation.
    let [a, b] = [d[at] ** 2, v[at] * d[at]];
    for (let i = 1; i < dim; i++) {
      a -= d[at + i] ** 2;
      b -= v[at + i] * d[at + i];
    }
    const c = determinant(v, at, dim);
    const root = Math.sqrt(b * b - a * c) - b;
    if (root > 0) step = Math.min(step, c / root);
  }
  return step;
}

/** New scaling of a cone from slacks s and multipliers z in the old one: L ← L·V with Vz/η̃ ∝ V⁻¹s, and the new λ. */
function rescale(cone, s, z, lambda) {
  const { at, dim, L } = cone;
  const [a, b] = [Math.sqrt(determinant(s, at, dim)), Math.sqrt(determinant(z, at, dim))];
  let inner = 0;
  for (let i = 0; i < dim; i++) inner += (s[at + i] / a) * (z[at + i] / b);
  const gamma = Math.sqrt((1 + inner) / 2);
  const w = Array.from({ length: dim }, (_, i) => (s[at + i] / a + (i ? -1 : 1) * (z[at + i] / b)) / (2 * gamma));
  // V = [w₀ w₁ᵀ; w₁ I + w₁w₁ᵀ/(1 + w₀)]
  const V = (i, j) => (i === 0 ? w[j] : j === 0 ? w[i] : +(i === j) + (w[i] * w[j]) / (1 + w[0]));
  const ratio = Math.sqrt(a / b);
  for (let i = 0; i < dim; i++) {
    const row = L[i].slice();
    lambda[at + i] = 0;
    for (let j = 0; j < dim; j++) {
      lambda[at + i] += ratio * V(i, j) * z[at + j];
      L[i][j] = 0;
      for (let k = 0; k < dim; k++) L[i][j] += row[k] * V(k, j);
    }
  }
  cone.eta *= ratio;
}
