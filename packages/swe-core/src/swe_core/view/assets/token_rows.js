// The rows of a rollout: where each sampled token is, why it is not trained, and what is known of a row's tokens.
"use strict";

const TokenRows = (data) => {
  const [CONTEXT, TRAINED, DROPPED, ELSEWHERE] = [0, 1, 2, 3];
  const UNLIKELY = 20; // tokens in the list of the least likely ones
  const { tries, turns, rows, trained } = data;
  const ids = TokenText.load(data);

  const noReward = Object.fromEntries(tries.map((one) => [one.name, one.no_reward]));
  const keys = new Map(rows.map((row, at) => [row.key, at]));
  const homes = new Map(); // turn → the row that trains it, or shows it dropped
  for (const [at, row] of rows.entries()) {
    row.starts = [];
    row.length = 0;
    row.trains = 0;
    for (const [place, isTrained] of row.parts) {
      row.starts.push(row.length);
      row.length += ownPrompt(place) + turns[place].reply.length;
      const known = homes.get(place);
      if (isTrained || (known === undefined && turns[place].dropped !== null)) {
        homes.set(place, { row: at, start: row.length - turns[place].reply.length });
      }
    }
  }

  function ownPrompt(place) {
    const turn = turns[place];
    return (turn.base === null ? turn.shared : 0) + turn.prompt.length;
  }

  // Why the reply's id `at` of a turn is not trained; null if it is.
  function reasonOf(turn, at) {
    if (turn.dropped !== null) return turn.dropped;
    return turn.logprobs[at] === null ? "no_logprobs" : noReward[turn.try];
  }

  const spans = new Map([["trained", []]]); // reason → where its tokens are; "trained" is one of them
  const totals = { sampled: 0, trained: 0 };
  const dropped = new Map();
  for (const [place, turn] of turns.entries()) {
    const home = homes.get(place);
    totals.sampled += turn.reply.length;
    let last = null;
    for (let at = 0; at < turn.reply.length; at++) {
      const reason = reasonOf(turn, at) ?? "trained";
      if (reason === "trained") {
        totals.trained++;
        rows[home.row].trains++;
      } else dropped.set(reason, (dropped.get(reason) ?? 0) + 1);
      if (!spans.has(reason)) spans.set(reason, []);
      if (last?.reason === reason) last.to++;
      else {
        last = { reason, place, row: home.row, at: home.start + at, to: home.start + at };
        spans.get(reason).push(last);
      }
    }
  }

  // The tokens of a row, in arrays by position, and what the trainer computed in a step.
  function open(index, step) {
    const chosen = rows[index];
    const n = chosen.length;
    const row = {
      index, n, key: chosen.key, parts: chosen.parts, starts: chosen.starts,
      ids: new Int32Array(n), kind: new Uint8Array(n), part: new Int32Array(n),
      logprob: new Float32Array(n).fill(NaN), trainer: new Float32Array(n).fill(NaN), ratio: new Float32Array(n).fill(NaN),
      version: new Int32Array(n).fill(-1), clipped: new Uint8Array(n), hit: new Uint8Array(n),
      prompts: [], roles: new Map(), steps: [], step: null, changes: [], unlikely: [], drift: null,
    };
    row.ids.set(ids.whole(row.parts.at(-1)[0]));
    for (const [number_, [place, isTrained]] of row.parts.entries()) {
      const turn = turns[place];
      const start = row.starts[number_];
      const reply = start + ownPrompt(place);
      row.prompts.push(reply);
      row.part.fill(number_, start, reply + turn.reply.length);
      for (const [first, , role, message] of turn.marks) row.roles.set(start + first, { role, message });
      const kind = (turn.dropped ?? noReward[turn.try]) !== null ? DROPPED : isTrained ? TRAINED : ELSEWHERE;
      for (let at = 0; at < turn.reply.length; at++) {
        const logprob = turn.logprobs[at];
        row.kind[reply + at] = logprob === null ? DROPPED : kind;
        row.logprob[reply + at] = logprob ?? NaN;
      }
      let here = reply;
      for (const [version, length] of turn.versions) {
        row.version.fill(version, here, here + length);
        here += length;
      }
    }
    Object.assign(row, ids.decode(row.ids));
    let version = -1;
    for (let at = 0; at < n; at++) {
      if (row.version[at] < 0) continue;
      if (version >= 0 && row.version[at] !== version) row.changes.push(at);
      version = row.version[at];
    }
    row.unlikely = unlikely(row);
    row.drift = driftOf(row, chosen);
    row.steps = chosen.try === "" ? trained.filter((one) => String(one.row) === chosen.key) : [];
    compute(row, step);
    return row;
  }

  // The least likely tokens that the row itself sampled, the least likely first.
  function unlikely(row) {
    const found = [];
    let limit = Infinity; // a token above it is not among them
    for (let at = 0; at < row.n; at++) {
      const logprob = row.logprob[at];
      if (!(logprob < limit) || row.kind[at] === ELSEWHERE) continue;
      let place = found.length;
      while (place > 0 && row.logprob[found[place - 1]] > logprob) place--;
      found.splice(place, 0, at);
      if (found.length > UNLIKELY) found.pop();
      if (found.length === UNLIKELY) limit = row.logprob[found.at(-1)];
    }
    return found;
  }

  // The first place where a row that forked differs from the turn that it should have extended.
  function driftOf(row, chosen) {
    if (chosen.cause === null || chosen.cause === "start") return null;
    const fork = chosen.cause === "branch" ? chosen.parts.find(([, isTrained]) => isTrained)[0] : chosen.parts[0][0];
    const expected = turns[fork].expected;
    if (expected === null) return null;
    return { at: Math.min(ids.difference(ids.whole(expected), row.ids), row.n - 1), fork, expected };
  }

  // What the trainer computed in a step, the last one by default.
  function compute(row, step) {
    row.step = row.steps.find((one) => String(one.step) === step) ?? row.steps.at(-1) ?? null;
    row.trainer.fill(NaN);
    row.ratio.fill(NaN);
    row.clipped.fill(0);
    const own = row.step?.logprobs;
    row.fits = !own || own.length === rows[row.index].trains;
    if (!own || !row.fits) return;
    let place = 0;
    for (let at = 0; at < row.n; at++) {
      if (row.kind[at] !== TRAINED) continue;
      row.trainer[at] = own[place++] ?? NaN;
      row.ratio[at] = Math.exp(row.trainer[at] - row.logprob[at]);
    }
    // The loss clips an id whose ratio is beyond the limit on the side of the advantage's sign: the farthest ones.
    const { clipped, advantage } = row.step;
    if (!clipped || !advantage) return;
    const order = row.ratio.filter((one) => one === one).sort();
    const limit = advantage > 0 ? order.at(-clipped) : order[clipped - 1];
    for (let at = 0; at < row.n; at++) {
      if (advantage > 0 ? row.ratio[at] >= limit : row.ratio[at] <= limit) row.clipped[at] = 1;
    }
  }

  return {
    CONTEXT, TRAINED, DROPPED, ELSEWHERE,
    ids, turns, rows, keys, homes, spans, totals, dropped, noReward, ownPrompt, reasonOf, open, compute,
  };
};
