// The plane: tokens, queries, the margin of W as a band, the margin of the solution as dashed lines.

import { drag } from "d3-drag";
import { scaleLinear } from "d3-scale";
import { select } from "d3-selection";
import { symbol, symbolCircle, symbolSquare, symbolTriangle } from "d3-shape";
import { keyOf } from "./attention.js";
import { LIMIT } from "./state.js";

export const SYMBOLS = [symbolCircle, symbolSquare, symbolTriangle];
const AREA = 330;
const HALO = 30;
const ARROW = 0.42; // length of a direction in the plane's units
const FAR = 9;
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };

const unit = (k) => { const size = Math.hypot(...k); return size > 0 ? k.map((v) => v / size) : null; };
const along = (x, k) => x[0] * k[0] + x[1] * k[1];

/** Draws into `svg`. `move(handle, place)` and `choose(handle)` say what the user wants; `hold(is)` that a drag is on. */
export function createPlane(svg, { move, choose, hold }) {
  const root = select(svg);
  const x = scaleLinear([-LIMIT, LIMIT], [0, 1]);
  const y = scaleLinear([-LIMIT, LIMIT], [1, 0]);
  const layer = Object.fromEntries(
    ["grid", "bands", "lines", "halos", "arrows", "queries", "tokens"].map((name) => [name, root.append("g").attr("class", name)]),
  );
  let size = 0;

  function resize(width) {
    if (width === size) return;
    size = width;
    x.range([0, size]);
    y.range([size, 0]);
    root.attr("viewBox", `0 0 ${size} ${size}`);
    const ticks = [-1.5, -1, -0.5, 0, 0.5, 1, 1.5];
    const lines = ticks.flatMap((t) => [[[t, -LIMIT], [t, LIMIT]], [[-LIMIT, t], [LIMIT, t]]]);
    layer.grid.selectAll("line").data(lines).join("line").call(segment)
      .classed("axis", ([a, b]) => (a[0] === 0 && b[0] === 0) || (a[1] === 0 && b[1] === 0));
  }

  const at = (point) => `translate(${x(point[0])},${y(point[1])})`;
  const path = (points) => `M${points.map((p) => `${x(p[0])},${y(p[1])}`).join("L")}`;
  function segment(lines) {
    lines.attr("x1", ([a]) => x(a[0])).attr("y1", ([a]) => y(a[1])).attr("x2", ([, b]) => x(b[0])).attr("y2", ([, b]) => y(b[1]));
  }

  /** A line across the plane where xᵀe = level. */
  const across = (e, level) => [-FAR, FAR].map((t) => [level * e[0] - t * e[1], level * e[1] + t * e[0]]);

  let moved = false;
  let start = [0, 0];
  const dragging = drag()
    .container(svg)
    .on("start", (event) => ((moved = false), (start = [event.x, event.y])))
    .on("drag", (event, handle) => {
      if (!moved && Math.hypot(event.x - start[0], event.y - start[1]) < 4) return;
      if (!moved) hold(true);
      moved = true;
      move(handle, () => [x.invert(event.x), y.invert(event.y)]);
    })
    .on("end", (event, handle) => (moved ? hold(false) : choose(handle)))
    .subject((event, handle) => ({ x: x(handle.point[0]), y: y(handle.point[1]) }));

  function onKey(event, handle) {
    if (MOVES[event.key]) {
      event.preventDefault();
      const step = event.shiftKey ? 0.01 : 0.05;
      move(handle, (point) => point.map((v, i) => v + step * MOVES[event.key][i]));
    } else if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      choose(handle);
    }
  }

  function handles(parent, data, name, quiet, build) {
    return parent.selectAll("g").data(data, (h) => h.id).join((enter) => {
      const group = enter.append("g").attr("class", (h) => `${name} handle c${h.sequence}`)
        .attr("tabindex", 0).attr("role", "button").attr("data-id", (h) => h.id);
      group.append("circle").attr("class", "touch").attr("r", 20);
      build(group);
      return group.call(dragging).on("keydown", onKey);
    }).attr("transform", (h) => at(h.point)).each(function (h) {
      // A screen reader need not hear of every frame.
      if (quiet || !this.hasAttribute("aria-label")) this.setAttribute("aria-label", h.label);
    });
  }

  return {
    draw({ state, W, solution, weights, support, width, quiet }) {
      resize(width);
      const { sequences, fixed } = state;
      const shown = sequences.map((one, sequence) => {
        const key = unit(keyOf(W, one.query, fixed));
        const best = solution.feasible ? unit(keyOf(solution.W, one.query, fixed)) : null;
        const levels = (e) => {
          const own = along(one.tokens[one.answer], e);
          return [own, Math.max(...one.tokens.filter((_, t) => t !== one.answer).map((p) => along(p, e)))];
        };
        return { sequence, key, best, now: key && levels(key), goal: best && levels(best), origin: one.tokens[one.answer] };
      });
      const bands = shown.filter(({ now }) => now && now[0] > now[1]);
      layer.bands.selectAll("path").data(bands, (d) => d.sequence).join("path").attr("class", (d) => `band c${d.sequence}`)
        .attr("d", ({ key, now }) => `${path([...across(key, now[0]), ...across(key, now[1]).reverse()])}Z`);
      const dashes = shown.filter((d) => d.best)
        .flatMap(({ sequence, best, goal }) => goal.map((level, k) => ({ sequence, k, line: across(best, level) })));
      layer.lines.selectAll("path").data(dashes, (d) => `${d.sequence} ${d.k}`).join("path")
        .attr("class", (d) => `goal c${d.sequence}`).attr("d", ({ line }) => path(line));
      const arrows = shown.flatMap(({ sequence, key, best, origin }) => [["goal", best], ["now", key]]
        .filter(([, e]) => e).map(([kind, e]) => ({ sequence, kind, origin, e })));
      layer.arrows.selectAll("path").data(arrows, (d) => d.kind + d.sequence).join("path")
        .attr("class", (d) => `arrow ${d.kind} c${d.sequence}`).attr("d", ({ origin, e, kind }) => {
          const tip = origin.map((v, i) => v + ARROW * e[i]);
          const side = (s) => tip.map((v, i) => v - 0.1 * e[i] + s * 0.06 * [-e[1], e[0]][i]);
          return kind === "now" ? path([origin, tip]) + path([side(1), tip, side(-1)]) : path([origin, tip]);
        });

      const tokens = sequences.flatMap((one, sequence) => one.tokens.map((point, token) => ({
        id: `x${sequence}-${token}`, sequence, token, point, weight: weights[sequence][token],
        answer: token === one.answer, support: support.has(`${sequence}-${token}`),
        label: `Sequence ${sequence + 1}, token ${token + 1}${token === one.answer ? ", the answer" : ""}, at ${point.join(", ")}, ` +
          `softmax weight ${Math.round(100 * weights[sequence][token])}%. Arrow keys move it, Enter makes it the answer.`,
      })));
      layer.halos.selectAll("circle").data(tokens, (d) => d.id).join("circle").attr("class", (d) => `halo c${d.sequence}`)
        .attr("cx", (d) => x(d.point[0])).attr("cy", (d) => y(d.point[1])).attr("r", (d) => HALO * Math.sqrt(d.weight));
      const drawn = handles(layer.tokens, tokens, "token", quiet, (group) => {
        group.append("circle").attr("class", "ring").attr("r", 15.5);
        group.append("path").attr("class", "shape").attr("d", (d) => symbol(SYMBOLS[d.sequence], AREA)());
        group.append("text").attr("dy", (d) => (d.sequence === 2 ? "0.55em" : "0.36em")).text((d) => d.token + 1);
      });
      drawn.classed("answer", (d) => d.answer).classed("support", (d) => d.support);

      const queries = fixed ? [] : sequences.map(({ query: point }, sequence) => ({
        id: `z${sequence}`, sequence, point, label: `Query ${sequence + 1}, at ${point.join(", ")}. Arrow keys move it.`,
      }));
      layer.queries.selectAll("line").data(queries, (d) => d.id).join("line").attr("class", (d) => `stem c${d.sequence}`)
        .attr("x1", x(0)).attr("y1", y(0)).attr("x2", (d) => x(d.point[0])).attr("y2", (d) => y(d.point[1]));
      handles(layer.queries, queries, "query", quiet, (group) => {
        group.append("rect").attr("x", -11).attr("y", -9).attr("width", 22).attr("height", 18).attr("rx", 9);
        group.append("text").attr("dy", "0.32em").html((d) => `z<tspan dy="2" font-size="8">${d.sequence + 1}</tspan>`);
      });
    },
  };
}
