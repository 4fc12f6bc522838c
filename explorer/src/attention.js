// Softmax attention over tokens in the plane, and the gradient of its loss, exact however far the softmax saturates.
// Sequence i: logits a_t = x_tᵀ W z, weights s = softmax(a), output f = Σ s_t u_t, loss log(1 + e^(−f)), mean over i.

const FAR = 300;

/** W z, or p itself where the query is fixed. */
export const keyOf = (W, z, fixed) => (fixed ? W : [W[0] * z[0] + W[1] * z[1], W[2] * z[0] + W[3] * z[1]]);

/** The value u_t of every token: 1 for the answer, 0 for the others, unless the sequence brings its own. */
export const scoresOf = ({ tokens, answer, scores }) => scores ?? tokens.map((_, t) => +(t === answer));

/** Logarithms of the softmax weights of every sequence. */
export function logSoftmax({ sequences, fixed }, W) {
  return sequences.map(({ tokens, query }) => {
    const key = keyOf(W, query, fixed);
    const logits = tokens.map((x) => x[0] * key[0] + x[1] * key[1]);
    const top = Math.max(...logits);
    const total = Math.log(logits.reduce((sum, a) => sum + Math.exp(a - top), 0));
    return logits.map((a) => a - top - total);
  });
}

/**
 * The gradient of the loss as e^shift · G. With m the top token and δ_t = a_t − a_m, the gradient of f in W is
 * Σ_{t≠m} s_t (u_t − u_m − D)(x_t − x_m) zᵀ, D = Σ_{t≠m} s_t (u_t − u_m). Only differences from the top token are
 * summed, and the largest exponent is split off as the shift, so the direction of G is right when e^shift is not even
 * a number any more.
 */
export function gradient({ sequences, fixed }, W) {
  const terms = [];
  let shift = -Infinity;
  let largest = -Infinity;
  for (const sequence of sequences) {
    const { tokens, query } = sequence;
    const T = tokens.length;
    const u = scoresOf(sequence);
    const key = keyOf(W, query, fixed);
    const logits = [];
    let m = 0;
    for (let t = 0; t < T; t++) {
      logits.push(tokens[t][0] * key[0] + tokens[t][1] * key[1]);
      if (logits[t] > logits[m]) m = t;
    }
    let [E, D] = [0, 0];
    for (let t = 0; t < T; t++) {
      if (t === m) continue;
      const weight = Math.exp(logits[t] - logits[m]);
      E += weight;
      D += weight * (u[t] - u[m]);
    }
    D /= 1 + E;
    const f = u[m] + D;
    const slope = 1 / (1 + Math.exp(-Math.abs(f))) / (1 + E);
    for (let t = 0; t < T; t++) {
      if (t === m) continue;
      const exponent = logits[t] - logits[m] - Math.max(f, 0);
      const factor = u[t] - u[m] - D;
      const size = Math.log(Math.abs(factor));
      shift = Math.max(shift, exponent);
      largest = Math.max(largest, exponent + size);
      terms.push({ exponent, factor, size, slope, a: tokens[m][0] - tokens[t][0], b: tokens[m][1] - tokens[t][1], query });
    }
  }
  // If all factors are as small as weights, as for equal scores, their size joins the exponent.
  const far = largest < shift - FAR && largest > -Infinity;
  if (far) shift = largest;
  if (shift === -Infinity) shift = 0;
  const G = fixed ? [0, 0] : [0, 0, 0, 0];
  for (const { exponent, factor, size, slope, a, b, query } of terms) {
    const pull = slope * (far ? Math.exp(exponent + size - shift) * Math.sign(factor) : Math.exp(exponent - shift) * factor);
    if (fixed) {
      G[0] += pull * a;
      G[1] += pull * b;
    } else {
      G[0] += pull * a * query[0];
      G[1] += pull * a * query[1];
      G[2] += pull * b * query[0];
      G[3] += pull * b * query[1];
    }
  }
  return { G, shift: shift - Math.log(sequences.length) };
}
