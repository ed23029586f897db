// Search in a static copy: it reads the index file by file, until enough is found.
"use strict";

(() => {
  const MOST = 50; // rollouts that are shown at once
  const PLACES = 3; // places of one rollout that are shown
  const query = new URLSearchParams(location.search);
  const wanted = (query.get("q") ?? "").trim().toLowerCase();
  const parts = (query.get("in") || "transcript,patch").split(",");
  const run = query.get("run") || "";
  const byId = (id) => document.getElementById(id);
  let files = 0, leftOut = 0, next = 0, most = MOST, shown = new Map();

  const load = (name) => {
    const script = document.createElement("script");
    script.src = name;
    script.addEventListener("error", () => (byId("said").textContent = `The file ${name} of the index is missing.`));
    document.head.append(script);
  };
  window.searchShards = (count, out) => {
    files = count;
    leftOut = out;
    step();
  };
  window.searchShard = (texts) => {
    for (const text of texts) look(...text);
    next += 1;
    step();
  };

  function step() {
    const done = next >= files;
    const enough = shown.size >= most;
    const said = [`${shown.size.toLocaleString("en")} ${shown.size === 1 ? "rollout has" : "rollouts have"} it`];
    if (!done) said.push(enough ? "not all of the copy is searched yet" : `${Math.round((100 * next) / files)} % searched`);
    if (leftOut) said.push(`${leftOut.toLocaleString("en")} rollouts are not in the index of this copy`);
    byId("said").textContent = `${said.join("; ")}.`;
    byId("more").hidden = done || !enough;
    if (!done && !enough) load(`${next}.js`);
  }

  function look(url, name, rollout, part, what, text) {
    if ((run && run !== name) || !parts.includes(part)) return;
    const low = text.toLowerCase();
    for (let at = low.indexOf(wanted); at >= 0; at = low.indexOf(wanted, at + wanted.length)) {
      add(url, name, rollout, what, text, at);
    }
  }

  function add(url, name, rollout, what, text, at) {
    const key = `${name}\n${rollout}`;
    let one = shown.get(key);
    if (!one) {
      one = { count: 0, item: make("li", "", byId("hits")) };
      shown.set(key, one);
      const head = make("p", "hit", one.item);
      link(make("a", "item", head), place(url), rollout);
      make("span", "dim", head).textContent = ` ${name}`;
    }
    one.count += 1;
    if (one.count <= PLACES) {
      const line = make("p", "snippet", one.item);
      link(make("a", "", line), place(url), what);
      line.append(` ${at > 60 ? "…" : ""}${flat(text.slice(Math.max(0, at - 60), at))}`);
      make("mark", "", line).textContent = flat(text.slice(at, at + wanted.length));
      line.append(flat(text.slice(at + wanted.length, at + wanted.length + 120)));
    } else {
      one.rest ??= make("p", "snippet dim", one.item);
      one.rest.textContent = `and ${one.count - PLACES} more places in this rollout`;
    }
  }

  const place = (url) => url.replace("#", `?${new URLSearchParams({ q: query.get("q") })}#`);
  const flat = (text) => text.replace(/\s*\n\s*/g, " ⏎ ").replaceAll("\t", " ");

  function link(element, url, text) {
    element.href = url;
    element.textContent = text;
  }

  function make(tag, name, parent) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    parent.append(made);
    return made;
  }

  document.addEventListener("DOMContentLoaded", () => {
    const form = byId("search-form");
    form.elements.q.value = query.get("q") ?? "";
    form.elements.in.value = parts.join(",");
    form.elements.run.value = run;
    byId("more").addEventListener("click", () => {
      most += MOST;
      step();
    });
    if (wanted) load("shards.js");
  });
})();
