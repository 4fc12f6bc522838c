// The readings beside the plane: softmax weights and margins per token, the way to the solution, margins in all norms.

import { axisBottom, axisLeft } from "d3-axis";
import { scaleLinear, scaleLog } from "d3-scale";
import { select } from "d3-selection";
import { line, symbol } from "d3-shape";
import { SYMBOLS } from "./plane.js";
import { FRAMES } from "./run.js";

const ROW = 19;
const MOST = 3; // margins are shown up to this multiple of the largest possible one

/** A share in percent, with more digits where it is nearly all. */
export const percent = (v) => (Number.isFinite(v) ? `${(100 * v).toFixed(v > 0.9985 ? 2 : 1)}%` : "–");

/** A number as people write it: 0.0123, 1,234, 5.6e7. */
export function plain(v) {
  const text = v >= 1e6 ? v.toExponential(1) : v >= 999.5 ? Math.round(v).toLocaleString("en") : v.toPrecision(3);
  return text.replace("e+", "e");
}

/** A row per token: softmax weight as a bar, margin over the largest possible one as a mark. */
export function createTokens(svg) {
  const root = select(svg);
  const [grid, body] = ["grid", "body"].map((name) => root.append("g").attr("class", name));
  const bar = scaleLinear([0, 1], [0, 1]);
  const mark = scaleLinear([-0.5, MOST], [0, 1]).clamp(true);
  let [drawn, groups] = ["", null];

  /** What changes with sizes, answers and support, but not from frame to frame. */
  function lay(rows, width, height) {
    bar.range([30, 30 + (width - 62) * 0.36]);
    mark.range([bar(1) + 44, width - 12]);
    root.attr("viewBox", `0 0 ${width} ${height}`).attr("height", height);
    const ticks = [0, 1, 2, 3];
    grid.selectAll("line").data(ticks).join("line").attr("class", (t) => (t === 1 ? "best" : t === 0 ? "zero" : ""))
      .attr("x1", mark).attr("x2", mark).attr("y1", 18).attr("y2", height - 4);
    const titles = [[bar(0), "start", "softmax weight"], ...ticks.map((t) => [mark(t), "middle", t])];
    grid.selectAll("text").data(titles).join("text").attr("x", (t) => t[0]).attr("y", 11).attr("text-anchor", (t) => t[1])
      .text((t) => t[2]);
    groups = body.selectAll("g").data(rows, (d) => d.id).join((enter) => {
      const group = enter.append("g");
      group.append("path").attr("class", "shape").attr("transform", "translate(8,0)").attr("d", (d) => symbol(SYMBOLS[d.sequence], 60)());
      group.append("text").attr("class", "number").attr("dy", "0.34em").attr("x", 25).text((d) => d.token + 1);
      group.append("rect").attr("class", "bar").attr("height", 9).attr("y", -4.5).attr("rx", 2);
      group.append("text").attr("class", "value").attr("dy", "0.34em");
      group.append("line").attr("class", "reach");
      group.append("circle").attr("class", "mark").attr("r", 4.5);
      return group;
    }).attr("class", (d) => `row c${d.sequence}${d.answer ? " answer" : ""}${d.support ? " support" : ""}`)
      .attr("transform", (d) => `translate(0,${d.y})`);
    groups.select(".bar").attr("x", bar(0));
    groups.select(".reach").attr("x1", mark(0));
  }

  return ({ state, logs, margins, support, width }) => {
    let top = 22;
    const rows = state.sequences.flatMap((one, sequence) => {
      top += sequence ? 8 : 0;
      return one.tokens.map((_, token) => {
        const id = `${sequence}-${token}`;
        const log = logs[sequence][token];
        return { id, sequence, token, y: (top += ROW) - ROW / 2, log, weight: Math.exp(log), margin: margins.get(id),
          answer: token === one.answer, support: support.has(id) };
      });
    });
    const key = [width, ...rows.map((d) => [d.id, d.answer, d.support])].join();
    if (key !== drawn) lay(rows, width, top + 4);
    drawn = key;
    groups.data(rows, (d) => d.id);
    groups.select(".bar").attr("width", (d) => Math.max(0.5, bar(d.weight) - bar(0)));
    groups.select(".value").attr("x", (d) => bar(d.weight) + 4).text((d) => weighed(d.log));
    const shown = (d) => (Number.isFinite(d.margin) ? null : "none");
    groups.select(".mark").attr("display", shown).attr("cx", (d) => mark(d.margin || 0));
    groups.select(".reach").attr("display", shown).attr("x2", (d) => mark(d.margin || 0));
  };
}

/** A softmax weight from its logarithm; 10 to the −500 is a number here. */
function weighed(log) {
  const ten = log / Math.LN10;
  return ten > -3 ? `${(100 * Math.exp(log)).toFixed(ten > -0.0002 ? 0 : 1)}%` : `1e−${Math.round(-ten)}`;
}

/** Angle to the solution and missing margin against the step, both logarithmic. */
export function createCurve(svg) {
  const root = select(svg);
  const layers = ["x axis", "y axis", "angle", "missing", "cursor"].map((name) =>
    root.append(name.includes("axis") ? "g" : name === "cursor" ? "line" : "path").attr("class", name));
  const [xAxis, yAxis, angles, missings, cursor] = layers;
  const height = 190;
  const x = scaleLog([1, FRAMES.at(-1)], [38, 100]);
  const y = scaleLog([1e-5, 200], [height - 24, 8]).clamp(true);

  function axes(width) {
    x.range([38, width - 12]);
    root.attr("viewBox", `0 0 ${width} ${height}`).attr("height", height);
    xAxis.attr("transform", `translate(0,${height - 24})`)
      .call(axisBottom(x).tickValues([1, 10, 100, 1000, 10000]).tickFormat((v) => v.toLocaleString("en")).tickSizeOuter(0));
    const small = (v) => (v < 1e-3 ? `1e−${-Math.log10(v)}` : v);
    yAxis.attr("transform", "translate(38,0)")
      .call(axisLeft(y).tickValues([1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 10, 100]).tickFormat(small).tickSize(-(width - 50)).tickSizeOuter(0));
  }

  return ({ angle, missing, frame, width }) => {
    if (x.range()[1] !== width - 12) axes(width);
    const curve = (values) => line().defined((v, j) => j > 0 && v > 0).x((v, j) => x(FRAMES[j])).y((v) => y(v))(values);
    angles.attr("d", curve(angle));
    missings.attr("d", curve(missing));
    cursor.attr("x1", x(Math.max(1, FRAMES[frame]))).attr("x2", x(Math.max(1, FRAMES[frame]))).attr("y1", 8).attr("y2", height - 24);
  };
}

/** The norms as a list of choices, each with the share of its largest margin that W has. */
export function createNorms(list, norms, choose) {
  const labels = select(list).selectAll("label").data(norms).join("label").attr("class", "norm");
  labels.append("input").attr("type", "radio").attr("name", "norm").attr("value", (d) => d.id).on("change", (event, d) => choose(d.id));
  labels.append("span").attr("class", "name").text((d) => d.label);
  labels.append("span").attr("class", "track").append("i");
  labels.append("span").attr("class", "value");
  let drawn = "";
  return ({ state, efficiencies, expected }) => {
    if (drawn !== state.norm + expected) {
      drawn = state.norm + expected;
      labels.classed("chosen", (d) => d.id === state.norm).classed("expected", (d) => d.id === expected);
      labels.select("input").property("checked", (d) => d.id === state.norm);
      labels.attr("title", (d) => (d.id === expected ? "the norm whose margin this optimizer is expected to maximise" : null));
    }
    labels.select("i").style("width", (d) => `${100 * Math.max(0, Math.min(1, efficiencies.get(d.id) || 0))}%`);
    labels.select(".value").text((d) => percent(efficiencies.get(d.id)));
  };
}

/** A matrix or vector over its largest entry's digits. */
export function matrix(element, W) {
  const rows = !W ? [] : W.length === 2 ? W.map((v) => [v]) : [W.slice(0, 2), W.slice(2)];
  select(element).selectAll("tr").data(rows).join("tr").selectAll("td").data((row) => row).join("td")
    .text((v) => v.toFixed(3).replace("-", "−"));
}
