// The page of tokens: what a reader selects, the panel of a token, jumps, and the URL.
"use strict";

(() => {
  const source = document.getElementById("token-data");
  if (!source) return;
  const { make, seen, number, count, signed, percent, transcript, url } = TokenText;
  const element = (name) => document.getElementById(`token-${name}`);
  const data = JSON.parse(source.textContent);
  const { reasons, causes } = data;
  const model = TokenRows(data);
  const { CONTEXT, TRAINED, ELSEWHERE, ids, turns, rows, keys, homes, spans, totals, dropped, reasonOf } = model;
  const [stream, map] = [element("stream"), element("map")];
  const view = { row: null, color: "logprob", at: null, to: null, find: "", hits: [], hit: -1 };
  const surface = TokenCanvas(model, view, { stream, map, canvas: element("canvas"), space: element("space") });
  let row; // that of the view

  const rowLink = (index, at, text) => make("a", text, { href: url({ row: rows[index].key, at, to: null, find: null }), class: "token-link" });

  function kindText(at) {
    const [place] = row.parts[row.part[at]];
    const turn = turns[place];
    if (row.kind[at] === CONTEXT) {
      const message = messageOf(at);
      return `context: the prompt of turn ${turn.index}${message ? `, message ${message.message} (${message.role})` : ""}`;
    }
    if (row.kind[at] === TRAINED) return "trainable";
    if (row.kind[at] === ELSEWHERE) return "context here; another row trains it";
    const why = reasonOf(turn, at - row.prompts[row.part[at]]);
    return `dropped (${why}): ${reasons[why] ?? ""}`;
  }

  // The message that a token of a prompt stands in.
  function messageOf(at) {
    const part = row.part[at];
    for (const [first, end, role, message] of turns[row.parts[part][0]].marks) {
      if (at >= row.starts[part] + first && at < row.starts[part] + end) return { role, message };
    }
    return null;
  }

  function facts(at) {
    const { name, bytes } = ids.entry(row.ids[at]);
    const [place] = row.parts[row.part[at]];
    const turn = turns[place];
    const found = [
      ["position", `${number(at)} of ${number(row.n)}`],
      ["token id", `${row.ids[at]}${name !== null ? ", special" : ""}`],
    ];
    if (bytes !== null) found.push(["bytes", ids.hex(row.ids[at])]);
    if (row.ends.has(at)) found.push(["text", `begins ${TokenText.visible(row.text[row.ends.get(at)])}, which ends at ${number(row.ends.get(at))}`]);
    found.push(["kind", kindText(at)]);
    if (row.kind[at] === ELSEWHERE) {
      const home = homes.get(place);
      found.push(["trained at", rowLink(home.row, home.start + at - row.prompts[row.part[at]], `row ${rows[home.row].key}`)]);
    }
    if (!Number.isNaN(row.logprob[at])) {
      found.push(["log-probability", `${row.logprob[at].toFixed(4)}, probability ${percent(row.logprob[at])}`]);
    }
    if (!Number.isNaN(row.trainer[at])) {
      found.push(["trainer's", `${row.trainer[at].toFixed(4)} in step ${row.step.step}`]);
      found.push(["ratio", `${row.ratio[at].toFixed(3)}, trainer to sampler${row.clipped[at] ? "; clipped" : ""}`]);
    }
    if (row.version[at] >= 0) {
      const stale = row.step && row.kind[at] === TRAINED ? `; ${count(row.step.version - row.version[at], "update")} old when trained` : "";
      found.push(["policy version", `${row.version[at]}${stale}`]);
    }
    const where = make("a", `turn ${turn.index}`, { href: transcript(source.dataset.rollout, turn) });
    found.push(["transcript", where]);
    if (turn.auxiliary) found.push(["auxiliary", turn.auxiliary]);
    return found;
  }

  function showPanel() {
    const panel = element("panel");
    panel.replaceChildren();
    element("range").hidden = view.at === null;
    if (view.at === null) {
      panel.append(make("p", "Click on a token, or move with the arrow keys.", { class: "dim" }));
      return;
    }
    panel.append(make("p", seen(row.shown[view.at]), { class: "token-shown" }));
    const list = make("dl");
    for (const [name, value] of facts(view.at)) {
      const text = make("dd", typeof value === "string" ? value : "");
      if (typeof value !== "string") text.append(value);
      list.append(make("dt", name), text);
    }
    panel.append(list);
    showRange();
  }

  function showRange() {
    const [from, to] = [view.at, view.to];
    let [sum, known] = [0, 0];
    for (let at = from; at <= to; at++) {
      if (row.kind[at] !== TRAINED || Number.isNaN(row.logprob[at])) continue;
      sum += row.logprob[at];
      known++;
    }
    const mean = known ? `, ${number(known)} trained, mean log-probability ${(sum / known).toFixed(3)}` : "";
    element("range").querySelector("summary").textContent = `${count(to - from + 1, "token")} selected${mean}`;
    element("text").value = rangeText().slice(0, 20000);
  }

  const rangeText = () => row.text.slice(view.at, view.to + 1).join("");

  function showAbout() {
    const chosen = rows[row.index];
    const about = element("about");
    const kinds = [0, 0, 0, 0];
    for (const kind of row.kind) kinds[kind]++;
    const lost = kinds[model.DROPPED] ? `, ${number(kinds[model.DROPPED])} dropped` : "";
    const names = row.parts.filter(([, isTrained]) => isTrained).map(([place]) => turns[place].index);
    const parts = [`${count(row.n, "token")}: ${number(kinds[CONTEXT] + kinds[ELSEWHERE])} context, ${number(chosen.trains)} trainable${lost}`];
    if (chosen.cause === null) parts.push("a dropped call, in no row of the training");
    else if (chosen.cause === "start") parts.push("starts a conversation");
    else parts.push(`a fork (${chosen.cause}): ${causes[chosen.cause]}`);
    if (names.length > 6) parts.push(`turns ${names[0]} … ${names.at(-1)} (${names.length})`);
    else if (names.length) parts.push(`turn${names.length > 1 ? "s" : ""} ${names.join(", ")}`);
    about.replaceChildren(`${parts.join(" · ")}. `, training(chosen));
    if (row.drift) {
      const { fork, expected } = row.drift;
      about.append(" ", make("a", "Why did it fork?", { href: `${source.dataset.chains}?turn=${turns[fork].index}&with=${turns[expected].index}` }));
    }
  }

  // What the training did with the row, in a sentence.
  function training(chosen) {
    const { step } = row;
    if (step) {
      let [least, most] = [Infinity, -Infinity];
      for (let at = 0; at < row.n; at++) {
        if (row.kind[at] !== TRAINED) continue;
        least = Math.min(least, step.version - row.version[at]);
        most = Math.max(most, step.version - row.version[at]);
      }
      const age = least > most ? "" : `, staleness ${least === most ? count(least, "policy update") : `${least} to ${most} policy updates`}`;
      const clipped = step.clipped === null ? "" : `, ${number(step.clipped)} of ${count(step.tokens, "id")} clipped`;
      const odd = row.fits ? "" : ` Its ${number(step.logprobs.length)} log-probabilities do not fit the ${number(chosen.trains)} trained ids of the row, so they are not shown.`;
      return `Trained in step ${step.step}: advantage ${signed(step.advantage)}, weight ${step.weight}${age}${clipped}.${odd}`;
    }
    if (chosen.cause === null) return "";
    if (data.group?.left_out) return `No step trained it: the rollout is left out of its group (${data.group.left_out}).`;
    if (data.group?.skipped) return `No step trained it: its group was skipped (${data.group.skipped}).`;
    return data.group ? "No step has trained it." : "";
  }

  function showLegend() {
    const legend = element("legend");
    legend.replaceChildren();
    const add = (name, text) => {
      const key = make("span", "", { class: "key" });
      key.style.background = `var(--${name})`;
      legend.append(key, text);
    };
    if (view.color === "logprob") {
      ["90 % or more", "50–90 %", "10–50 %", "1–10 %", "0.1–1 %", "below 0.1 %"].forEach((text, at) => add(`heat-${at}`, text));
    } else if (view.color === "ratio") {
      ["below 0.5", "0.5–0.8", "0.8–0.95", "equal", "1.05–1.25", "1.25–2", "above 2"].forEach((text, at) => add(`ratio-${at}`, text));
      if (!row.step?.logprobs) legend.append(" no step has trained this row");
    } else if (view.color === "version") {
      const found = [...new Set(row.version)].filter((one) => one >= 0).sort((a, b) => a - b);
      found.forEach((one) => add(`version-${one % 6}`, String(one)));
    } else add("heat-0", "trainable");
    legend.append(make("span", "grey text", { class: "token-flag" }), ": context");
    legend.append(make("s", "dropped", { class: "token-struck" }));
    if (row.clipped.includes(1)) legend.append(make("u", "clipped", { class: "token-clipped" }));
    if (row.drift) legend.append(make("span", "◤", { class: "token-flag error" }), "first drifted token");
  }

  function showLists() {
    const list = element("unlikely").querySelector("ol");
    list.replaceChildren();
    for (const at of row.unlikely) {
      const item = make("li");
      const text = rowLink(row.index, at, "");
      text.classList.add("item");
      text.append(make("code", seen(row.shown[at])), ` ${percent(row.logprob[at])} at ${number(at)}`);
      item.append(text);
      list.append(item);
    }
    element("unlikely").hidden = !row.unlikely.length;
  }

  function showLedger() {
    const ledger = element("ledger");
    ledger.append(`${count(totals.sampled, "token")} sampled = `, jumper("trained", `${number(totals.trained)} trainable`));
    for (const [reason, value] of dropped) ledger.append(" + ", jumper(reason, `${number(value)} dropped (${reason})`));
    const list = element("dropped").querySelector("ul");
    for (const [reason, found] of spans) {
      if (reason === "trained") continue;
      for (const span of found.slice(0, 200)) {
        const item = make("li");
        item.append(rowLink(span.row, span.at, `turn ${turns[span.place].index}`), `: ${count(span.to - span.at + 1, "token")}, ${reason}: ${reasons[reason]}`);
        list.append(item);
      }
      if (found.length > 200) list.append(make("li", `… ${number(found.length - 200)} more places`, { class: "dim" }));
    }
    element("dropped").hidden = !dropped.size;
    element("dropped").open = dropped.size > 0;
  }

  // A number that leads to its tokens, to the next of them at each click.
  function jumper(reason, text) {
    const found = spans.get(reason);
    const button = make("button", text, { type: "button", title: reasons[reason] ?? "Go to them" });
    let next = 0;
    button.addEventListener("click", () => {
      if (!found.length) return;
      const span = found[next++ % found.length];
      go(span.row, span.at, span.to);
    });
    return button;
  }

  let timer = 0;
  function remember() {
    clearTimeout(timer);
    timer = setTimeout(() => history.replaceState(null, "", address()), 120);
  }

  function address() {
    return url({
      row: row.index ? row.key : null,
      at: view.at,
      to: view.at !== null && view.to > view.at ? view.to : null,
      color: view.color === "logprob" ? null : view.color,
      step: row.step && row.step !== row.steps.at(-1) ? row.step.step : null,
      find: view.find || null,
    });
  }

  function go(index, at, to = at) {
    if (index !== row.index) show(index);
    select(at, to);
  }

  // Put the cursor on a token and show it; `to` is the last token of a range.
  function select(at, to = at, cursor = at) {
    if (at === null || !row.n) return;
    const clamp = (one) => Math.min(Math.max(one, 0), row.n - 1);
    [view.at, view.to] = [clamp(at), clamp(Math.max(at, to))];
    surface.reveal(clamp(cursor));
    showPanel();
    remember();
    surface.redraw();
  }

  function step(places, by) {
    if (!places.length) return;
    const here = view.at ?? (by > 0 ? -1 : row.n);
    const next = by > 0 ? places.find((at) => at > here) : places.findLast((at) => at < here);
    select(next ?? (by > 0 ? places[0] : places.at(-1)));
  }

  const jumps = {
    unlikely(by) {
      if (!row.unlikely.length) return;
      const here = row.unlikely.indexOf(view.at);
      const next = here < 0 ? 0 : (here + by + row.unlikely.length) % row.unlikely.length;
      select(row.unlikely[next]);
    },
    span: (by) => step(spans.get("trained").filter((one) => one.row === row.index).map((one) => one.at), by),
    version: (by) => step(row.changes, by),
    drift() {
      if (row.drift) return select(row.drift.at);
      const fork = rows.findIndex((one) => one.cause !== null && one.cause !== "start");
      if (fork < 0) return undefined;
      show(fork);
      return row.drift ? select(row.drift.at) : undefined;
    },
  };

  function find(text) {
    view.find = text;
    view.hits = [];
    view.hit = -1;
    row.hit.fill(0);
    if (text) {
      const exact = /\p{Lu}/u.test(text);
      const pieces = exact ? row.text : row.text.map((one) => one.toLowerCase());
      const whole = pieces.join("");
      const starts = [];
      let length = 0;
      for (const piece of pieces) {
        starts.push(length);
        length += piece.length;
      }
      let token = 0;
      for (let at = whole.indexOf(text); at >= 0 && view.hits.length < 10000; at = whole.indexOf(text, at + text.length)) {
        while (token + 1 < starts.length && starts[token + 1] <= at) token++;
        let end = token;
        while (end + 1 < starts.length && starts[end + 1] < at + text.length) end++;
        view.hits.push([token, end]);
        row.hit.fill(1, token, end + 1);
      }
    }
    hits();
    surface.repaint();
  }

  function hits() {
    const found = view.hits.length;
    element("hits").textContent = !view.find ? "" : !found ? "not found" : view.hit < 0 ? count(found, "place") : `${number(view.hit + 1)} of ${number(found)}`;
  }

  function nextHit(by) {
    if (!view.hits.length) return;
    view.hit = (view.hit + by + view.hits.length) % view.hits.length;
    hits();
    select(...view.hits[view.hit]);
  }

  function show(index, step = null) {
    row = view.row = model.open(index, step);
    view.at = view.to = null;
    element("row").value = row.key;
    const steps = element("step");
    steps.replaceChildren(...row.steps.map((one) => make("option", String(one.step))));
    element("step-label").hidden = row.steps.length < 2;
    if (row.step) steps.value = String(row.step.step);
    surface.layout();
    stream.scrollTop = 0;
    find(view.find);
    showAbout();
    showLegend();
    showLists();
    showPanel();
    for (const button of document.querySelectorAll("[data-jump]")) button.disabled = !possible(button.dataset.jump);
    surface.redraw();
  }

  function possible(jump) {
    if (jump === "unlikely") return row.unlikely.length > 0;
    if (jump === "version") return row.changes.length > 0;
    if (jump === "drift") return row.drift !== null || rows.some((one) => one.cause !== null && one.cause !== "start");
    return rows[row.index].trains > 0;
  }

  // What the URL asks for.
  function follow() {
    const query = new URLSearchParams(location.search);
    const wanted = query.get("color");
    view.color = ["ratio", "version", "none"].includes(wanted) ? wanted : "logprob";
    element("color").value = view.color;
    view.find = query.get("find") ?? "";
    document.getElementById("filter").value = view.find;
    show(keys.get(query.get("row")) ?? 0, query.get("step"));
    const place = (name) => (/^\d+$/.test(query.get(name) ?? "") ? Number(query.get(name)) : null);
    const ofTurn = (one) => String(turns[one.place].index) === query.get("turn");
    const span = query.has("drop") ? spans.get(query.get("drop"))?.[0] : query.has("turn") && [...spans.values()].flat().find(ofTurn);
    if (place("at") !== null) select(place("at"), place("to") ?? place("at"));
    else if (span) go(span.row, span.at, span.to);
  }

  let anchor = null;
  stream.addEventListener("pointerdown", (event) => {
    const at = event.button === 0 && event.target === element("canvas") ? surface.tokenAt(event) : null;
    if (at === null) return;
    if (event.shiftKey && view.at !== null) select(Math.min(anchor ?? view.at, at), Math.max(anchor ?? view.at, at), at);
    else {
      anchor = at;
      select(at);
      stream.setPointerCapture(event.pointerId);
    }
  });
  stream.addEventListener("pointermove", (event) => {
    const at = surface.tokenAt(event);
    if (event.buttons & 1 && anchor !== null && stream.hasPointerCapture(event.pointerId)) {
      if (at !== null) select(Math.min(anchor, at), Math.max(anchor, at), at);
      return;
    }
    tip(at, event);
  });
  stream.addEventListener("pointerleave", () => tip(null));
  stream.addEventListener("scroll", () => {
    tip(null);
    surface.redraw();
  });

  function tip(at, event) {
    const box = element("tip");
    box.hidden = at === null;
    if (at === null) return;
    box.textContent = facts(at).map(([name, value]) => (typeof value === "string" ? `${name} ${value}` : value.textContent)).join(" · ");
    const frame = stream.parentElement.getBoundingClientRect();
    box.style.left = `${Math.min(event.clientX - frame.left + 12, Math.max(0, stream.clientWidth - 320))}px`;
    box.style.top = `${event.clientY - frame.top + 18}px`;
  }

  stream.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const here = view.at === null ? 0 : anchor !== null && view.to > view.at && anchor === view.at ? view.to : view.at;
    const line = surface.lineOf(here);
    const beside = (by) => {
      let other = line + by;
      while (row.heads[other] >= 0) other += by;
      if (other < 0 || other >= row.lines.length) return here;
      let at = row.lines[other];
      while (at + 1 < surface.lineEnd(other) && row.x[at] + row.wide[at] <= row.x[here]) at++;
      return at;
    };
    const moves = {
      ArrowLeft: () => here - 1,
      ArrowRight: () => (view.at === null ? 0 : here + 1),
      ArrowUp: () => beside(-1),
      ArrowDown: () => beside(1),
      Home: () => row.lines[line],
      End: () => surface.lineEnd(line) - 1,
    };
    const move = moves[event.key];
    if (!move) return;
    event.preventDefault();
    const at = Math.min(Math.max(move(), 0), row.n - 1);
    if (event.shiftKey && view.at !== null) {
      anchor ??= view.at;
      select(Math.min(anchor, at), Math.max(anchor, at), at);
    } else {
      anchor = at;
      select(at);
    }
  });

  const letters = { n: ["unlikely", 1], p: ["unlikely", -1], s: ["span", 1], S: ["span", -1], v: ["version", 1], V: ["version", -1], d: ["drift", 1] };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const [name, by] = letters[event.key] ?? [];
    if (name) jumps[name](by);
  });
  for (const button of document.querySelectorAll("[data-jump]")) {
    button.addEventListener("click", (event) => jumps[button.dataset.jump](event.shiftKey ? -1 : 1));
  }

  map.addEventListener("pointerdown", (event) => {
    const box = map.getBoundingClientRect();
    const jump = (one) => surface.scrollTo((one.clientY - box.top) / box.height);
    map.setPointerCapture(event.pointerId);
    map.onpointermove = jump;
    map.onpointerup = () => (map.onpointermove = null);
    jump(event);
  });

  element("row").addEventListener("change", (event) => {
    show(keys.get(event.target.value));
    remember();
  });
  element("step").addEventListener("change", (event) => {
    model.compute(row, event.target.value);
    showAbout();
    showPanel();
    remember();
    surface.repaint();
  });
  element("color").addEventListener("change", (event) => {
    view.color = event.target.value;
    showLegend();
    remember();
    surface.repaint();
  });
  element("at").addEventListener("keydown", (event) => {
    const wanted = event.target.value.replaceAll(",", "").trim();
    if (event.key === "Enter" && /^\d+$/.test(wanted)) select(Number(wanted));
  });
  const search = document.getElementById("filter");
  search.addEventListener("input", () => {
    find(search.value);
    remember();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
  });
  document.addEventListener("click", (event) => {
    const found = event.target.closest?.("a.token-link");
    if (!found || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    history.pushState(null, "", found.href);
    follow();
    stream.focus({ preventScroll: true });
  });
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.addEventListener("click", async () => {
      const texts = {
        text: rangeText,
        ids: () => row.ids.slice(view.at, view.to + 1).join(" "),
        link: () => new URL(address(), location.href).href,
      };
      const box = element("text");
      box.value = texts[button.dataset.copy]();
      box.select();
      try {
        await navigator.clipboard.writeText(box.value);
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = `Copy ${button.dataset.copy}`), 1500);
      } catch {
        button.title = "The browser does not allow it: the text is selected, press Ctrl+C."; // over plain HTTP
      }
    });
  }

  addEventListener("popstate", follow);
  new ResizeObserver(surface.resize).observe(stream);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    surface.readColors();
    surface.repaint();
  });

  const groups = new Map();
  for (const [at, one] of rows.entries()) {
    const name = one.try ? `lost try ${one.try}` : one.cause === null ? "dropped calls" : "rows";
    if (!groups.has(name)) groups.set(name, make("optgroup", "", { label: name }));
    const what = one.cause === null ? `turn ${turns[one.parts.at(-1)[0]].index}, ${turns[one.parts.at(-1)[0]].dropped}` : one.cause === "start" ? "conversation" : `fork (${one.cause})`;
    groups.get(name).append(make("option", `${one.key}: ${what}, ${count(rows[at].length, "token")}, ${number(one.trains)} trainable`, { value: one.key }));
  }
  element("row").append(...groups.values());
  surface.readColors();
  showLedger();
  follow();
  performance.mark("tokens-drawn");
})();
