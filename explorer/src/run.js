// A training run from W = 0, shown in frames. Steps per frame grow with the step, so that a decade takes a while.

import { gradient } from "./attention.js";
import { product } from "./margin.js";

const LAST = 20000;
const GROWTH = 1.015;

/** The step that each frame shows: 0, 1, 2, … and later 1.5% more each time. */
export const FRAMES = [0];
while (FRAMES.at(-1) < LAST) {
  const k = FRAMES.at(-1);
  FRAMES.push(Math.min(LAST, Math.max(k + 1, Math.round(k * GROWTH))));
}

export class Run {
  constructor(problem, rule, lr) {
    Object.assign(this, { problem, rule, lr });
    this.state = { W: new Array(problem.fixed ? 2 : 4).fill(0) };
    this.weights = [this.state.W];
  }

  /** The weights of a frame; trains as far as needed. */
  at(frame) {
    while (this.weights.length <= frame) {
      const next = this.weights.length;
      for (let k = FRAMES[next - 1]; k < FRAMES[next]; k++) {
        this.state = this.rule.step(this.state, gradient(this.problem, this.state.W), this.lr);
      }
      this.weights.push(this.state.W);
    }
    return this.weights[frame];
  }
}

/** The margin of W/‖W‖ as a share of the largest: 1 for a solution, at most 0 where W does not separate. */
export function efficiency(W, rows, norm, solution) {
  const size = norm.norm(W);
  if (size === 0 || !solution.feasible) return NaN;
  return (Math.min(...rows.map((row) => product(row, W))) / size) * solution.lower;
}

/** The angle between W and V in degrees, accurate for small ones: 2 atan2(|a − b|, |a + b|) of unit vectors. */
export function angle(W, V) {
  const [a, b] = [Math.hypot(...W), Math.hypot(...V)];
  if (a === 0 || b === 0) return NaN;
  const away = Math.hypot(...W.map((w, i) => w / a - V[i] / b));
  const along = Math.hypot(...W.map((w, i) => w / a + V[i] / b));
  return (360 / Math.PI) * Math.atan2(away, along);
}
