// Draws charts as SVG from the data that stands in the page.
"use strict";

(() => {
  const WIDE = 420, HIGH = 210, LEFT = 52, RIGHT = 10, TOP = 8, BOTTOM = 34;

  function element(name, attributes, parent) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    parent?.append(made);
    return made;
  }

  // Ticks at 1, 2 or 5 times a power of ten, about `wanted` of them.
  function ticks(low, high, wanted, whole) {
    const rough = (high - low) / wanted || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    let by = [1, 2, 5, 10].find((one) => one * power >= rough) * power;
    if (whole) by = Math.max(1, Math.round(by));
    const found = [];
    for (let at = Math.ceil(low / by) * by; at <= high + by * 1e-9 && found.length < 20; at += by) found.push(at);
    return found;
  }

  function label(value, share) {
    if (share) return `${Math.round(value * 100)} %`;
    const size = Math.abs(value);
    if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(1).replace("e+", "e");
    return String(Number(value.toPrecision(4)));
  }

  function draw(script, number) {
    const chart = JSON.parse(script.textContent);
    const all = (axis) => chart.lines.flatMap((line) => line[axis]);
    const range = (values) => {
      const low = values.reduce((a, b) => Math.min(a, b), Infinity), high = values.reduce((a, b) => Math.max(a, b), -Infinity);
      const pad = high > low ? (high - low) * 0.03 : Math.abs(high) * 0.1 || 1;
      return [low - pad, high + pad];
    };
    const [left, right] = range(all("x"));
    const [low, high] = chart.share ? [-0.03, 1.03] : range(all("y"));
    const x = (value) => LEFT + ((value - left) / (right - left)) * (WIDE - LEFT - RIGHT);
    const y = (value) => HIGH - BOTTOM - ((value - low) / (high - low)) * (HIGH - TOP - BOTTOM);
    const name = `chart-${number}`;
    const svg = element("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-labelledby": name, class: "chart" });
    element("title", { id: name }, svg).textContent = chart.title;
    const whole = all("y").every(Number.isInteger);
    for (const at of ticks(low, high, 4, whole)) {
      element("line", { x1: LEFT, x2: WIDE - RIGHT, y1: y(at), y2: y(at), class: "axis" }, svg);
      element("text", { x: LEFT - 5, y: y(at) + 4, "text-anchor": "end" }, svg).textContent = label(at, chart.share);
    }
    for (const at of ticks(left, right, 5, chart.x_label === "step")) {
      element("line", { x1: x(at), x2: x(at), y1: TOP, y2: HIGH - BOTTOM, class: "axis" }, svg);
      element("text", { x: x(at), y: HIGH - BOTTOM + 14, "text-anchor": "middle" }, svg).textContent = label(at);
    }
    element("text", { x: (LEFT + WIDE - RIGHT) / 2, y: HIGH - 4, "text-anchor": "middle" }, svg).textContent = chart.x_label;
    chart.lines.forEach((line, place) => {
      const kind = `${line.look} stroke-${line.colour}`;
      const points = line.x.map((value, index) => [x(value), y(line.y[index])]);
      if (line.look === "dots" || points.length === 1) {
        const group = element("g", { class: `dots fill-${line.colour}` }, svg);
        for (const [cx, cy] of points) element("circle", { cx: cx.toFixed(2), cy: cy.toFixed(2), r: 2 }, group);
      }
      if (line.look !== "dots") {
        const path = points.map(([px, py], index) => `${index ? "L" : "M"}${px.toFixed(2)} ${py.toFixed(2)}`).join("");
        element("path", { d: path, class: kind }, svg);
      }
      if (line.label) {
        element("line", { x1: LEFT + 8, x2: LEFT + 22, y1: TOP + 10 + 14 * place, y2: TOP + 10 + 14 * place, class: kind }, svg);
        element("text", { x: LEFT + 27, y: TOP + 14 + 14 * place }, svg).textContent = line.label;
      }
    });
    const mark = element("text", { x: WIDE - RIGHT, y: TOP + 6, "text-anchor": "end", class: "read" }, svg);
    svg.addEventListener("mousemove", (event) => {
      const box = svg.getBoundingClientRect();
      const px = ((event.clientX - box.left) / box.width) * WIDE, py = ((event.clientY - box.top) / box.height) * HIGH;
      let best = null;
      for (const line of chart.lines) {
        line.x.forEach((value, index) => {
          const away = Math.hypot(x(value) - px, y(line.y[index]) - py);
          if (!best || away < best.away) best = { away, x: value, y: line.y[index] };
        });
      }
      mark.textContent = best ? `${label(best.x)}: ${chart.share ? `${(best.y * 100).toFixed(1)} %` : label(best.y)}` : "";
    });
    svg.addEventListener("mouseleave", () => (mark.textContent = ""));
    script.replaceWith(svg);
  }

  const drawAll = () => document.querySelectorAll("script.chart").forEach(draw);
  document.addEventListener("DOMContentLoaded", drawAll);
  document.addEventListener("view:followed", drawAll);
})();
