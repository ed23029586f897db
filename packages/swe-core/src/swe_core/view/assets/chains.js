// The page of chains: turns in lanes, why rows fork, and where two turns differ first.
"use strict";

(() => {
  const source = document.getElementById("token-data");
  const drawn = document.getElementById("chains-lanes");
  if (!source || !drawn) return;
  const { make, number, count, lines, seen, transcript, url } = TokenText;
  const element = (name) => document.getElementById(`chains-${name}`);
  const data = JSON.parse(source.textContent);
  const messages = JSON.parse(element("messages").textContent);
  const { ids, turns, rows, homes, totals, dropped, noReward } = TokenRows(data);

  const LANE = 56; // height of a lane, pixels
  const AROUND = 30; // tokens shown on each side of a difference
  const NEAR = 160; // characters shown on each side of a difference of messages
  const view = { turn: null, other: null, x: "order" };

  const nameOf = (place) => `turn ${turns[place].index}${turns[place].try ? ` of ${turns[place].try}` : ""}`;
  const placeOf = new Map(turns.map((turn, place) => [turn.try ? `${turn.try}.${turn.index}` : String(turn.index), place]));
  const keyOf = (place) => (turns[place].try ? `${turns[place].try}.${turns[place].index}` : String(turns[place].index));
  const tokensLink = (row, at, text) => make("a", text, { href: `${source.dataset.tokens}?row=${encodeURIComponent(row)}&at=${at}` });

  // The messages of a turn's request.
  const requests = new Map();
  function request(place) {
    if (!requests.has(place)) {
      const { earlier, kept, new: added } = messages[place];
      requests.set(place, [...(earlier === null ? [] : request(earlier).slice(0, kept)), ...added]);
    }
    return requests.get(place);
  }

  // Where the request of `after` leaves the history of `before`: the first token, and the first message.
  function compare(before, after) {
    const [one, other] = [ids.whole(before), ids.whole(after)];
    const prompt = ids.promptSize(after);
    let at = ids.difference(one, other.subarray(0, prompt));
    const samePrompt = at === prompt && prompt <= one.length; // only the replies can differ
    if (samePrompt) at = ids.difference(one, other);
    const past = [...request(before), ...(messages[before].message ? [messages[before].message] : [])];
    const now = request(after);
    let message = 0;
    while (message < past.length && message < now.length && same(past[message], now[message])) message++;
    const differs = message < now.length && message < past.length;
    return { before, after, one, other, at, samePrompt, extends: at === one.length && !samePrompt, past, now, message: differs ? message : null };
  }

  const same = (one, other) => one[0] === other[0] && one[1] === other[1] && one[3] === other[3];

  // The turns to compare for a row that forked; null where no earlier turn is known.
  function forkOf(row) {
    if (row.cause === null || row.cause === "start") return null;
    const fork = row.cause === "branch" ? row.parts.find(([, isTrained]) => isTrained)[0] : row.parts[0][0];
    return { fork, expected: turns[fork].expected };
  }

  // The message that stands at a position of a turn's whole prompt, where its text was found there.
  function markAt(place, at) {
    for (let one = place; one !== null; one = turns[one].base) {
      const own = turns[one].base === null ? 0 : turns[one].shared;
      if (at < own) continue;
      const found = turns[one].marks.find(([first, end]) => at >= own + first && at < own + end);
      return found ? { role: found[2], message: found[3] } : null;
    }
    return null;
  }

  // Texts and tables

  function showAbout() {
    const chains = rows.filter((row) => row.cause !== null);
    const starts = chains.filter((row) => row.cause === "start").length;
    const forks = chains.length - starts;
    const alone = rows.length - chains.length;
    const lost = [...dropped].map(([reason, value]) => ` + ${number(value)} dropped (${reason})`).join("");
    element("about").textContent =
      `${count(turns.length, "turn")} in ${count(chains.length, "row")}: ${number(starts)} of them ${starts === 1 ? "begins a conversation" : "begin conversations, such as those of sub-agents"}` +
      `, ${count(forks, "fork")}${alone ? `; ${count(alone, "dropped call")} in none` : ""}. ${count(totals.sampled, "token")} sampled = ${number(totals.trained)} trainable${lost}.`;
  }

  function token(array, at) {
    if (at >= array.length) return "(end)";
    return seen(ids.decode(array.subarray(at, at + 1)).shown[0]);
  }

  function showForks() {
    const body = element("forks").querySelector("tbody");
    for (const row of rows) {
      const found = forkOf(row);
      if (!found) continue;
      const line = make("tr", "", { class: "row" });
      const { fork, expected } = found;
      const cell = (value, kind = "") => {
        const made = make("td", typeof value === "string" ? value : "", kind ? { class: kind } : {});
        if (typeof value !== "string") made.append(...[value].flat());
        line.append(made);
      };
      cell(row.key);
      if (expected === null) {
        cell(nameOf(fork));
        cell(`${row.cause}: ${data.causes[row.cause]}`, "text");
        cell("no earlier turn to compare with");
        cell("");
      } else {
        const link = make("a", `${nameOf(fork)} after ${nameOf(expected)}`, { href: pair(fork, expected), class: "item chains-link", title: "Why did this fork?" });
        cell(link);
        cell(`${row.cause}: ${data.causes[row.cause]}`, "text");
        const difference = compare(expected, fork);
        const { at, one, other } = difference;
        cell([tokensLink(row.key, at, `position ${number(at)}`), ": ", make("code", token(one, at)), " became ", make("code", token(other, at))]);
        cell(behind(difference), "text");
      }
      body.append(line);
    }
    element("forks").hidden = !body.childElementCount;
  }

  // The message behind a difference, in words.
  function behind({ message, now, past, after, at, samePrompt, extends: continues }) {
    if (samePrompt) return "none: the request is the same, and the replies differ";
    if (continues) return "none: the second begins with all tokens of the first";
    if (message !== null) return `message ${message} (${now[message][0]}): ${whatDiffers(past[message], now[message])}`;
    const mark = markAt(after, at);
    return `no message changed: the same messages became other token ids${mark ? `, in message ${mark.message} (${mark.role})` : ""}`;
  }

  function whatDiffers(one, other) {
    if (one[0] !== other[0]) return `it was of the ${one[0]}`;
    if (one[1] === other[1]) return "the messages differ beyond what the page has";
    if (one[1].trim() === other[1].trim()) return "white space changed";
    return `it had ${count(one[1].length + one[2], "character")}, and now has ${number(other[1].length + other[2])}`;
  }

  const pair = (turn, other) => url({ turn: keyOf(turn), with: keyOf(other) });

  // Lanes

  const svg = (name, attributes, text = "") => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.textContent = text;
    return made;
  };

  function drawLanes() {
    const placed = place();
    const width = Math.max(...placed.map((one) => one.x + one.wide), 0) + 40;
    const root = svg("svg", { width, height: rows.length * LANE + 18, viewBox: `0 0 ${width} ${rows.length * LANE + 18}` });
    drawTime(root);
    for (const at of rows.keys()) root.append(svg("line", { class: "lane-rule", x1: 0, x2: width, y1: (at + 1) * LANE, y2: (at + 1) * LANE }));
    for (const [at, row] of rows.entries()) {
      row.parts.slice(1).forEach(([next], part) => connect(root, placed[row.parts[part][0]], placed[next], "lane-edge"));
      const found = forkOf(row);
      if (!found) continue;
      const target = placed[found.fork];
      if (found.expected !== null && row.cause !== "branch") connect(root, placed[found.expected], target, "lane-fork");
      root.append(svg("text", { class: "lane-cause", x: target.x, y: at * LANE + 11 }, row.cause));
    }
    placed.forEach((one, at) => root.append(node(at, one)));
    drawn.replaceChildren(root);
    element("names").replaceChildren(...rows.map(laneName));
  }

  const lasted = Math.max(...turns.map((turn) => turn.at + turn.seconds), 0.001);

  function drawTime(root) {
    if (view.x !== "time") return;
    for (let tick = 0; tick <= 4; tick++) {
      const seconds = (lasted * tick) / 4;
      const text = lasted < 240 ? `${seconds.toFixed(lasted < 20 ? 1 : 0)} s` : `${(seconds / 60).toFixed(1)} min`;
      root.append(svg("text", { class: "lane-time", x: 6 + 250 * tick, y: rows.length * LANE + 13 }, text));
    }
  }

  // Where each turn stands: its lane, and from left to right.
  function place() {
    const narrow = turns.length > 60 ? 18 : 30;
    const most = Math.max(...turns.map((turn) => turn.reply.length), 1);
    return turns.map((turn, at) => {
      const lane = homes.get(at)?.row ?? rows.findIndex((row) => row.parts.some(([place]) => place === at));
      const high = 8 + 22 * Math.sqrt(turn.reply.length / most);
      const x = view.x === "time" ? (turn.at / lasted) * 1000 : at * narrow;
      const wide = view.x === "time" ? Math.max(4, (turn.seconds / lasted) * 1000) : narrow - 8;
      return { lane, x: x + 6, wide, high, middle: Math.max(lane, 0) * LANE + 30 };
    });
  }

  function connect(root, from, to, kind) {
    const [x1, x2] = [from.x + from.wide, to.x];
    const bend = Math.max(12, Math.abs(x2 - x1) / 2);
    const path = from.lane === to.lane ? `M${x1} ${from.middle}H${x2}` : `M${x1} ${from.middle}C${x1 + bend} ${from.middle} ${x2 - bend} ${to.middle} ${x2} ${to.middle}`;
    root.append(svg("path", { class: kind, d: path }));
  }

  function node(at, { lane, x, wide, high, middle }) {
    const turn = turns[at];
    if (lane < 0) return svg("g", {}); // a call that sampled nothing
    const why = turn.dropped ?? noReward[turn.try];
    const state = why === null ? "trained" : "dropped";
    const chosen = at === view.turn || at === view.other ? " chosen" : "";
    const link = svg("a", { href: url({ turn: keyOf(at), with: null }), class: `lane-turn item ${state}${chosen}`, "data-turn": at });
    link.append(svg("title", {}, `${nameOf(at)}: ${count(turn.reply.length, "token")} sampled, ${why ?? "trainable"}${turn.auxiliary ? `, auxiliary (${turn.auxiliary})` : ""}`));
    link.append(svg("rect", { x, y: middle - high / 2, width: wide, height: high, rx: 3 }));
    if (why !== null) link.append(svg("line", { x1: x - 2, x2: x + wide + 2, y1: middle, y2: middle }));
    if (turn.dropped !== null && turns[at - 1]?.dropped !== turn.dropped) {
      link.append(svg("text", { x: x + wide / 2, y: middle - 20 }, turn.dropped));
    }
    const every = view.x === "order" && turns.length > 60 ? 5 : 1;
    if (turn.index % every === 0) link.append(svg("text", { x: x + wide / 2, y: middle + 23 }, String(turn.index)));
    return link;
  }

  function laneName(row) {
    const made = make("div", "", { class: "lane-name" });
    const what = row.cause === null ? "dropped call" : row.cause === "start" ? (row.key === (row.try ? `${row.try}.0` : "0") ? "first conversation" : "another conversation") : `fork: ${row.cause}`;
    made.append(tokensLink(row.key, 0, `row ${row.key}`), make("span", `${row.try ? "lost try, " : ""}${what}`), make("span", `${count(row.length, "token")}, ${number(row.trains)} trainable`, { class: "dim" }));
    return made;
  }

  // What is chosen

  function show() {
    const shown = element("shown");
    shown.replaceChildren();
    element("compare").hidden = view.turn === null;
    for (const link of drawn.querySelectorAll(".lane-turn")) {
      link.classList.toggle("chosen", [view.turn, view.other].includes(Number(link.dataset.turn)));
    }
    if (view.turn === null) return;
    if (view.other !== null && view.other !== view.turn) shown.append(...comparison(...[view.turn, view.other].sort((a, b) => a - b)));
    else shown.append(...single(view.turn));
  }

  function single(at) {
    const turn = turns[at];
    const home = homes.get(at);
    const why = turn.dropped ?? noReward[turn.try];
    const facts = make("p");
    facts.append(
      `${count(ids.promptSize(at), "token")} of prompt${turn.base === null ? "" : `, ${number(turn.prompt.length)} of them new`}; ${count(turn.reply.length, "token")} of reply, ${why === null ? "trainable" : `dropped (${why}): ${data.reasons[why] ?? ""}`}` +
        `${turn.versions.length ? `; policy version ${turn.versions.map(([version]) => version).join(", ")}` : ""}; ${turn.seconds.toFixed(1)} s; ${turn.error ?? turn.finish ?? ""}. `,
    );
    if (home) facts.append(tokensLink(rows[home.row].key, home.start, "Its tokens"), " · ");
    facts.append(make("a", "in the transcript", { href: transcript(source.dataset.rollout, turn) }));
    if (turn.expected !== null && turn.base === null) {
      facts.append(" · ", make("a", "Why did it fork?", { href: pair(at, turn.expected), class: "chains-link" }));
    }
    const heads = [make("h2", `Turn ${turn.index}${turn.try ? ` of ${turn.try}` : ""}${turn.auxiliary ? `, auxiliary (${turn.auxiliary})` : ""}`), facts];
    const { kept, new: added, message } = messages[at];
    const first = make("p", kept ? `The request repeats ${count(kept, "message")} and adds:` : "The request:", { class: "dim" });
    return [...heads, first, ...added.map((each, place) => messageBox(each, kept + place)), ...(message ? [make("p", "The reply:", { class: "dim" }), messageBox(message)] : [])];
  }

  function messageBox([role, text, left], place = null) {
    const box = make("details", "", { class: "chains-message" });
    box.open = text.length < 1500;
    const head = make("summary", `${place === null ? "" : `message ${place}, `}${role}: ${count(text.length + left, "character")}`);
    box.append(head, make("pre", lines(text) + (left ? `\n… ${number(left)} more characters` : "")));
    return box;
  }

  function comparison(before, after) {
    const found = compare(before, after);
    const { at, one, other, message, past, now, samePrompt } = found;
    const parts = [make("h2", `Turn ${turns[before].index} and turn ${turns[after].index}: ${found.extends ? "no token differs" : "the first drifted token"}`)];
    const row = rows[homes.get(after)?.row];
    const text = make("p");
    if (found.extends) text.append(`Turn ${turns[after].index} begins with all ${number(one.length)} tokens of turn ${turns[before].index}: it extends it.`);
    else {
      text.append(samePrompt ? `Both have the same prompt of ${count(ids.promptSize(after), "token")}. ` : "");
      text.append("They have ", row ? tokensLink(row.key, at, `the first ${count(at, "token")}`) : `the first ${count(at, "token")}`, " in common. Then comes ");
      text.append(make("code", token(one, at)), ` (${at < one.length ? `id ${one[at]}` : "nothing"}) in turn ${turns[before].index}, and `);
      text.append(make("code", token(other, at)), ` (${at < other.length ? `id ${other[at]}` : "nothing"}) in turn ${turns[after].index}.`);
    }
    parts.push(text);
    const cause = row && forkOf(row)?.fork === after ? row.cause : null;
    if (cause) parts.push(make("p", `Turn ${turns[after].index} is a fork (${cause}): ${data.causes[cause]}.`, { class: "note" }));
    if (!found.extends) parts.push(around(before, one, at), around(after, other, at));
    parts.push(make("h3", "The message behind it"), make("p", `It is ${behind(found)}.`.replace("It is none:", "None:").replace("It is no message", "No message")));
    if (message !== null && !samePrompt) parts.push(textDifference(past[message], now[message], before, after));
    const box = make("p");
    for (const place of [before, after]) box.append(make("a", `Turn ${turns[place].index} alone`, { href: url({ turn: keyOf(place), with: null }), class: "chains-link" }), " ");
    return [...parts, box];
  }

  // The tokens around a difference, the first differing one marked.
  function around(place, array, at) {
    const start = Math.max(0, at - AROUND);
    const part = array.subarray(start, at + AROUND + 1);
    const { shown } = ids.decode(part);
    const box = make("pre", "", { class: "chains-tokens", "aria-label": `Tokens of turn ${turns[place].index}` });
    box.append(make("b", `turn ${turns[place].index} `));
    if (start) box.append("… ");
    shown.forEach((text, offset) => {
      const here = offset === at - start;
      box.append(make(here ? "mark" : "span", here ? seen(text) : text, { class: start + offset < at ? "dim" : "", title: `position ${number(start + offset)}, id ${part[offset]}` }));
    });
    if (at >= array.length) box.append(make("mark", "(end)"));
    else if (array.length > at + AROUND + 1) box.append(" …");
    return box;
  }

  // Two texts, with what only one of them has.
  function textDifference([, one, leftOne], [, other, leftOther], before, after) {
    const shorter = Math.min(one.length, other.length);
    let head = 0;
    while (head < shorter && one[head] === other[head]) head++;
    let tail = 0;
    while (tail < shorter - head && one.at(-1 - tail) === other.at(-1 - tail)) tail++;
    const box = make("pre", "", { class: "chains-difference" });
    const clip = (text) => (text.length > 4000 ? `${text.slice(0, 4000)} … ${number(text.length - 4000)} more characters` : text);
    box.append(head > NEAR ? "… " : "", lines(one.slice(Math.max(0, head - NEAR), head)));
    box.append(make("del", lines(clip(one.slice(head, one.length - tail))), { title: `only in turn ${turns[before].index}` }));
    box.append(make("ins", lines(clip(other.slice(head, other.length - tail))), { title: `only in turn ${turns[after].index}` }));
    box.append(lines(one.slice(one.length - tail, one.length - tail + NEAR)), tail > NEAR ? " …" : "");
    if (leftOne || leftOther) box.append(make("span", `\n(The page has the first ${number(one.length)} and ${number(other.length)} characters.)`, { class: "dim" }));
    return box;
  }

  // What a reader does

  function choose(turn, other = null) {
    [view.turn, view.other] = [turn, other];
    history.replaceState(null, "", address());
    element("compare").setAttribute("aria-pressed", "false");
    show();
  }

  const address = () =>
    url({ turn: view.turn === null ? null : keyOf(view.turn), with: view.other === null ? null : keyOf(view.other), x: view.x === "order" ? null : view.x });

  drawn.addEventListener("click", (event) => {
    const link = event.target.closest("[data-turn]");
    if (!link || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const at = Number(link.dataset.turn);
    const second = view.turn !== null && (event.shiftKey || element("compare").getAttribute("aria-pressed") === "true");
    if (second) choose(view.turn, at);
    else choose(at);
  });
  element("compare").addEventListener("click", (event) => {
    const pressed = event.target.getAttribute("aria-pressed") !== "true";
    event.target.setAttribute("aria-pressed", String(pressed));
  });
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a.chains-link");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    history.pushState(null, "", link.href);
    follow();
    element("shown").scrollIntoView({ block: "nearest" });
  });
  element("x").addEventListener("change", (event) => {
    view.x = event.target.value;
    history.replaceState(null, "", address());
    drawLanes();
  });
  addEventListener("popstate", follow);

  function follow() {
    const query = new URLSearchParams(location.search);
    view.turn = placeOf.get(query.get("turn")) ?? null;
    view.other = placeOf.get(query.get("with")) ?? null;
    view.x = query.get("x") === "time" ? "time" : "order";
    element("x").value = view.x;
    drawLanes();
    show();
  }

  showAbout();
  showForks();
  follow();
  performance.mark("chains-drawn");
})();
