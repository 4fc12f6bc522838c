// Reads {problems, runs} as JSON from stdin, solves and trains with the explorer's modules, writes the answers.
// A problem may name one of the page's examples instead of its sequences.

import { readFileSync } from "node:fs";
import { maxMargin, rowsOf } from "../../explorer/src/margin.js";
import { normById } from "../../explorer/src/norms.js";
import { ruleById } from "../../explorer/src/rules.js";
import { gradient } from "../../explorer/src/attention.js";
import { EXAMPLES } from "../../explorer/src/state.js";

const { problems = [], runs = [] } = JSON.parse(readFileSync(0, "utf8"));

const named = (problem) => (problem.example ? { ...problem, ...EXAMPLES[problem.example] } : problem);

const solved = problems.map(({ norm, ...problem }) => maxMargin(rowsOf(problem).map(({ row }) => row), normById[norm]));

const trained = runs.map(({ rule, lr, steps, W, ...given }) => {
  const problem = named(given);
  let state = { W };
  for (let k = 0; k < steps; k++) state = ruleById[rule].step(state, gradient(problem, state.W), lr);
  return state.W;
});

process.stdout.write(JSON.stringify({ solved, trained, examples: EXAMPLES }));
