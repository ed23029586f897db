// The grid of a run: a row for each group, a cell for each attempt. Filters and order live in the URL.
"use strict";

(() => {
  const MARKS = { resolved: "✓", unresolved: "✗", error: "!", cancelled: "–", running: "…" };
  const STEP = 200; // rows that are drawn at once, when the reader reaches their end

  let grid, found, body, end;
  const controls = () => [...document.querySelectorAll("[data-filter]")];

  function start() {
    const data = document.getElementById("grid-data");
    if (!data) return;
    grid = JSON.parse(data.textContent);
    body = document.getElementById("grid");
    end = document.getElementById("grid-end");
    const query = new URLSearchParams(location.search);
    for (const control of controls()) {
      control.value = query.get(control.dataset.filter) ?? "";
      control.addEventListener("input", changed);
    }
    new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && more(), { rootMargin: "600px" }).observe(end);
    select();
  }

  function changed() {
    const query = new URLSearchParams(location.search);
    for (const { value, dataset } of controls()) {
      if (value) query.set(dataset.filter, value);
      else query.delete(dataset.filter);
    }
    history.replaceState(null, "", `${location.pathname}${query.size ? "?" + query : ""}${location.hash}`);
    select();
  }

  function select() {
    const wanted = Object.fromEntries(controls().map((control) => [control.dataset.filter, control.value]));
    const text = wanted.text?.toLowerCase() ?? "";
    found = [];
    for (const row of grid.rows) {
      if (wanted.spread && wanted.spread !== (row.mixed ? "mixed" : "equal")) continue;
      const all = !text || `${row.group} ${row.task}`.toLowerCase().includes(text);
      const cells = row.cells.filter(
        ([id, outcome, reason]) =>
          (!wanted.outcome || wanted.outcome === outcome) &&
          (all || `${id} ${grid.reasons[reason]}`.toLowerCase().includes(text)),
      );
      if (cells.length) found.push({ ...row, cells });
    }
    if (wanted.order === "slow") found.sort((a, b) => b.seconds - a.seconds);
    if (wanted.order === "unresolved") found.sort((a, b) => a.resolved / (a.verdicts || 1) - b.resolved / (b.verdicts || 1));
    const filtered = wanted.text || wanted.outcome || wanted.spread;
    document.getElementById("shown").textContent = filtered ? `${found.length.toLocaleString("en")} of ${grid.rows.length.toLocaleString("en")} rows` : "";
    body.replaceChildren();
    more();
  }

  function more() {
    const from = body.childElementCount;
    for (const row of found.slice(from, from + STEP)) body.append(draw(row));
    end.hidden = body.childElementCount >= found.length;
  }

  function draw(row) {
    const line = make("tr", "row");
    const head = make("th", "", line);
    const name = make(row.cells[0][1] === "running" ? "span" : "a", "item", head);
    name.textContent = row.group;
    if (name.tagName === "A") name.href = page("group", row.group);
    if (row.task !== row.group) make("span", "dim", head).textContent = ` ${row.task}`;
    if (row.verdicts > 1 && !row.mixed) make("span", "badge dim", head).textContent = "equal rewards";
    const cells = make("td", "cells", line);
    for (const [id, outcome, reason, shown = id] of row.cells) {
      const cell = make("a", `cell ${outcome}`, cells);
      cell.textContent = MARKS[outcome];
      cell.title = `${shown}: ${outcome}${grid.reasons[reason] ? `, ${grid.reasons[reason]}` : ""}`;
      cell.href = page("rollout", id);
    }
    make("td", "n", line).textContent = row.verdicts ? `${row.resolved} of ${row.verdicts}` : "";
    make("td", "n", line).textContent = row.time;
    return line;
  }

  function make(tag, name, parent) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    parent?.append(made);
    return made;
  }

  const page = (kind, id) => `${grid.base}${kind}/${encodeURIComponent(id)}/${grid.file}`;

  document.addEventListener("DOMContentLoaded", start);
  document.addEventListener("view:followed", start);
})();
