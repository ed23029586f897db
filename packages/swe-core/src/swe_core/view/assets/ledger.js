// The rows of a run's ledger: each rollout, or each group. Filters and order live in the URL.
"use strict";

(() => {
  const STEP = 200; // rows that are drawn at once, when the reader reaches their end
  const NAMES = { by: "by", filter: "text", reason: "reason", cause: "cause", fate: "fate", order: "order" };
  const byId = (id) => document.getElementById(id);
  let data, base, file, found;

  const controls = () => Object.entries(NAMES).filter(([id]) => byId(id));

  function start() {
    const source = byId("ledger-data");
    if (!source || source.dataset.ready) return;
    source.dataset.ready = "1";
    data = JSON.parse(source.textContent);
    ({ base, file } = source.dataset);
    const query = new URLSearchParams(location.search);
    for (const [id, name] of controls()) {
      if (query.has(name)) byId(id).value = query.get(name);
      byId(id).addEventListener("input", changed);
    }
    new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && more(), { rootMargin: "600px" }).observe(byId("ledger-end"));
    select();
    if (["reason", "cause", "fate", "group"].some((name) => query.has(name)) && !location.hash) byId("rollouts").scrollIntoView();
  }

  function changed() {
    const query = new URLSearchParams(location.search);
    for (const [id, name] of controls()) {
      if (byId(id).value && !(id === "by" && byId(id).value === "rollout")) query.set(name, byId(id).value);
      else query.delete(name);
    }
    query.delete("group");
    history.replaceState(null, "", `${location.pathname}${query.size ? "?" + query : ""}${location.hash}`);
    select();
  }

  function select() {
    const group = new URLSearchParams(location.search).get("group");
    const text = byId("filter").value.toLowerCase();
    const reason = data.reasons.indexOf(byId("reason").value);
    const cause = data.causes.indexOf(byId("cause").value);
    const fate = data.fates.indexOf(byId("fate")?.value);
    const grouped = byId("by").value === "group";
    const rows = data.rows.map(([id, group, outcome, sampled, trainable, dropped, forks, fate]) => ({ id, group, outcome, sampled, trainable, dropped, forks, fates: [fate] }));
    const all = grouped ? sums(rows) : rows;
    found = all.filter(
      (row) =>
        (group === null || row.group === group) &&
        `${row.id ?? ""} ${row.group}`.toLowerCase().includes(text) &&
        (reason < 0 || row.dropped.some(([at]) => at === reason)) &&
        (fate < 0 || row.fates.includes(fate)) &&
        (cause < 0 || row.forks.some(([at]) => at === cause)),
    );
    const dropped = (row) => (reason < 0 ? row.sampled - row.trainable : row.dropped.find(([at]) => at === reason)[1]);
    const order = byId("order").value;
    if (order === "dropped") found.sort((a, b) => dropped(b) - dropped(a));
    if (order === "sampled") found.sort((a, b) => b.sampled - a.sampled);
    byId("what").textContent = grouped ? "group" : "rollout";
    byId("shown").textContent = found.length < all.length ? `${found.length.toLocaleString("en")} of ${all.length.toLocaleString("en")}` : "";
    byId("ledger-rows").replaceChildren();
    more();
  }

  function sums(rows) {
    const groups = new Map();
    for (const row of rows) {
      let one = groups.get(row.group);
      if (!one) groups.set(row.group, (one = { group: row.group, rollouts: 0, sampled: 0, trainable: 0, dropped: new Map(), forks: new Map(), fates: [] }));
      one.rollouts += 1;
      one.sampled += row.sampled;
      one.trainable += row.trainable;
      one.fates.push(...row.fates);
      for (const name of ["dropped", "forks"]) for (const [at, number] of row[name]) one[name].set(at, (one[name].get(at) ?? 0) + number);
    }
    return [...groups.values()].map((one) => ({ ...one, dropped: [...one.dropped], forks: [...one.forks] }));
  }

  function more() {
    const body = byId("ledger-rows");
    const from = body.childElementCount;
    for (const row of found.slice(from, from + STEP)) body.append(draw(row));
    byId("ledger-end").hidden = body.childElementCount >= found.length;
  }

  function draw(row) {
    const line = document.createElement("tr");
    const single = row.id !== undefined;
    const place = single ? "rollout" : "group";
    const tokens = single ? (query) => page("rollout", row.id, "tokens/", query) : (query) => `?${new URLSearchParams({ group: row.group, ...query })}`;
    link(make("th", "", line), page(place, single ? row.id : row.group), single ? row.id : row.group, "item");
    const outcome = make("td", single ? row.outcome : "dim", line);
    outcome.textContent = single ? row.outcome : `${row.rollouts} rollouts`;
    link(make("td", "n", line), single ? page("rollout", row.id, "ledger/") : tokens({}), number(row.sampled));
    link(make("td", "n", line), tokens({}), number(row.trainable));
    list(make("td", "", line), row.dropped, data.reasons, (name) => tokens(single ? { drop: name } : { reason: name }));
    list(make("td", "", line), row.forks, data.causes, (name) => (single ? page("rollout", row.id, "chains/") : tokens({ cause: name })));
    return line;
  }

  function list(cell, parts, names, url) {
    for (const [at, count] of parts) {
      link(cell, url(names[at]), number(count));
      cell.append(` ${names[at]} `);
    }
  }

  function link(parent, url, text, name) {
    const made = make("a", name ?? "", parent);
    made.href = url;
    made.textContent = printable(text);
  }

  function make(tag, name, parent) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    parent.append(made);
    return made;
  }

  const printable = (text) => text.replace(/\p{C}/gu, (one) => `<U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
  const number = (value) => value.toLocaleString("en");
  const page = (kind, id, rest = "", query = {}) => {
    const asked = new URLSearchParams(query);
    return `${base}${kind}/${encodeURIComponent(id)}/${rest}${file}${asked.size ? "?" + asked : ""}`;
  };

  document.addEventListener("DOMContentLoaded", start);
  document.addEventListener("view:followed", start);
})();
