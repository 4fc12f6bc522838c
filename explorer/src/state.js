// What the page shows, its examples, and its form in the address.

import { normById } from "./norms.js";
import { ruleById } from "./rules.js";

export const LIMIT = 2; // coordinates are in [−LIMIT, LIMIT]
export const SEQUENCES = { least: 1, most: 3 };
export const TOKENS = { least: 2, most: 6 };

const sequence = (answer, query, ...tokens) => ({ answer, query, tokens });

export const EXAMPLES = {
  two: {
    label: "Two sequences",
    fixed: false,
    sequences: [
      sequence(0, [0.6, 1.15], [-1.1, 1.1], [0.9, -1.45], [1.35, -0.2], [0.4, -0.35]),
      sequence(0, [0.6, -1], [1.15, 0.9], [1.55, -0.65], [1, -0.75], [-0.85, -0.25]),
    ],
  },
  one: {
    label: "One vector, fixed query",
    fixed: true,
    sequences: [
      sequence(0, [1, 0], [1.2, 0.95], [0, 0.5], [-1, -0.6], [-1.25, -1.45]),
      sequence(0, [1, 0], [1, -0.3], [-1.5, -1.05], [-0.2, -0.75], [-1.4, 1.5]),
    ],
  },
  three: {
    label: "Three sequences",
    fixed: false,
    sequences: [
      sequence(0, [-0.25, 1.4], [-1.3, -0.85], [-0.45, 0.3], [1.1, 0.65]),
      sequence(0, [-0.75, -1.25], [0.65, 0.9], [-1, -0.3], [-0.3, -0.2]),
      sequence(0, [0.45, -0.8], [1.35, -0.35], [0.35, 0.55], [-1.35, 0.35]),
    ],
  },
  none: {
    label: "No solution",
    fixed: false,
    sequences: [
      sequence(2, [1.1, 0.7], [1.4, 0.6], [-0.9, 1.2], [0.15, 0.45], [-0.1, -0.9]),
      sequence(0, [-0.6, 1.1], [-1.5, -0.2], [-0.6, -0.9], [0.5, -1.4], [0.9, -0.5]),
    ],
  },
};

export function initial() {
  return { ...copied(EXAMPLES.two), rule: "ngd", norm: "l2", lr: ruleById.ngd.lr };
}

export const copied = ({ fixed, sequences }) => structuredClone({ fixed, sequences });

export const clamp = (v, least = -LIMIT, most = LIMIT) => Math.min(most, Math.max(least, v));
const rounded = (v) => Math.round(v * 100) / 100;

/** Tokens and queries move on a grid of 0.01, so that the address says exactly what is computed. */
export const placed = ([x, y]) => [rounded(clamp(x)), rounded(clamp(y))];

function point(random) {
  return placed([(2 * random() - 1) * 1.7, (2 * random() - 1) * 1.7]);
}

/** A random problem of the same size. The answer is the token farthest out, so that most of them are separable. */
export function shuffled(state, random = Math.random) {
  const sequences = state.sequences.map(({ tokens }) => {
    const drawn = tokens.map(() => point(random));
    const sizes = drawn.map((x) => Math.hypot(...x));
    return { tokens: drawn, query: point(random), answer: sizes.indexOf(Math.max(...sizes)) };
  });
  return { ...state, sequences };
}

/** The same problem with n sequences of T tokens: old ones stay, new ones are drawn. */
export function resized(state, n, T, random = Math.random) {
  const sequences = state.sequences.slice(0, n).map((one) => {
    const tokens = one.tokens.slice(0, T);
    while (tokens.length < T) tokens.push(point(random));
    return { ...one, tokens, answer: Math.min(one.answer, T - 1) };
  });
  while (sequences.length < n) {
    const like = { ...state, sequences: [{ tokens: new Array(T).fill(0) }] };
    sequences.push(...shuffled(like, random).sequences);
  }
  return { ...state, sequences };
}

/** #model=W&rule=ngd&norm=l2&lr=0.05&data=answer/query/token/token…_answer/… */
export function toHash({ fixed, sequences, rule, norm, lr }) {
  const data = sequences.map(({ answer, query, tokens }) => [answer, ...[query, ...tokens].map((x) => x.join(","))].join("/"));
  return `#model=${fixed ? "p" : "W"}&rule=${rule}&norm=${norm}&lr=${lr}&data=${data.join("_")}`;
}

/** The state of an address, or null if it does not describe one. */
export function fromHash(hash) {
  const fields = Object.fromEntries(hash.replace(/^#/, "").split("&").map((part) => part.split("=")));
  const { model, rule, norm } = fields;
  const lr = Number(fields.lr);
  if (!["W", "p"].includes(model) || !ruleById[rule] || !normById[norm] || !(lr >= 1e-4 && lr <= 100)) return null;
  const sequences = (fields.data ?? "").split("_").map((text) => {
    const [answer, ...points] = text.split("/");
    const [query, ...tokens] = points.map((pair) => pair.split(",").map(Number));
    return { answer: Number(answer), query, tokens };
  });
  const T = sequences[0].tokens.length;
  const isPoint = (x) => x?.length === 2 && x.every((v) => Math.abs(v) <= LIMIT);
  const good = sequences.every(
    ({ answer, query, tokens }) =>
      Number.isInteger(answer) && answer >= 0 && answer < T && isPoint(query) && tokens.length === T && tokens.every(isPoint),
  );
  const sizes = sequences.length <= SEQUENCES.most && T >= TOKENS.least && T <= TOKENS.most;
  return good && sizes ? { fixed: model === "p", sequences, rule, norm, lr } : null;
}
