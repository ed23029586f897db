// What the pages of tokens and chains share: the ids of turns, and ids as text.
"use strict";

const TokenText = (() => {
  const HIDDEN = /[\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\u{e0000}-\u{e007f}\x80-\x9f]/gu;
  const CONTROL = /[\x00-\x1f\x7f]/g;
  const LONGEST = 80; // characters of a token that are drawn

  const spelt = (text) =>
    text.replace(HIDDEN, (found) => `<U+${found.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}>`);
  const picture = (found) => (found === "\x7f" ? "␡" : String.fromCharCode(0x2400 + found.charCodeAt(0)));

  // A token's text in one line: nothing in it is invisible or turns the direction of the text around it.
  function visible(text) {
    if (/^[\x20-\x7e]*$/.test(text)) return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
    const line = text.replace(CONTROL, (found) => ({ "\n": "⏎", "\t": "⇥" })[found] ?? picture(found));
    const shown = spelt(line).replace(/^\p{M}/u, "◌$&");
    return shown.length > LONGEST ? `${shown.slice(0, LONGEST)}…` : shown;
  }

  // The same for a token that stands alone: its blanks can be seen.
  const seen = (shown) => shown.replace(/^ +| +$/g, (blanks) => "␣".repeat(blanks.length)) || "(no text)";

  // Text of several lines for an element, as `printable` makes it on the host.
  const lines = (text) => spelt(text).replace(CONTROL, (found) => (/[\n\t]/.test(found) ? found : picture(found)));

  function load(data) {
    const { turns, vocabulary } = data;
    const sizes = [];
    turns.forEach((turn, place) => {
      turn.from = turn.base ?? turn.of;
      if (turn.base !== null) turn.shared = sizes[turn.base];
      sizes[place] = turn.shared + turn.prompt.length + turn.reply.length;
    });

    // The first `count` ids of the prompt and the reply of a turn; all of them without a number.
    function whole(place, count = sizes[place]) {
      const ids = new Int32Array(count);
      for (let at = place; count > 0; at = turns[at].from) {
        const turn = turns[at];
        const parts = [turn.prompt, turn.reply];
        let start = turn.shared;
        for (const part of parts) {
          if (start < count) ids.set(start + part.length > count ? part.slice(0, count - start) : part, start);
          start += part.length;
        }
        count = Math.min(count, turn.shared);
      }
      return ids;
    }

    const promptSize = (place) => sizes[place] - turns[place].reply.length;

    // Each id's bytes (a character each), its text if they are whole characters, and its name if it is special.
    const table = new Map();
    const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    vocabulary?.ids.forEach((id, at) => {
      const bytes = vocabulary.tokens[at];
      const name = vocabulary.special[id] ?? null;
      let text = null;
      if (name !== null) text = name;
      else if (bytes !== null) {
        try {
          text = /^[\x00-\x7f]*$/.test(bytes) ? bytes : strict.decode(Uint8Array.from(bytes, (one) => one.charCodeAt(0)));
        } catch {
          text = null;
        }
      }
      table.set(id, { bytes, text, name, shown: text === null ? null : visible(text) });
    });
    const characters = new Map();
    function drawn(code) {
      let found = characters.get(code);
      if (found === undefined) characters.set(code, (found = visible(String.fromCodePoint(code))));
      return found;
    }
    const unknown = { bytes: null, text: null, name: null, shown: null };
    const entry = (id) => table.get(id) ?? unknown;

    // Ids as text. A character stands at the token that completes it; the tokens before it have none of it.
    // text: what a token adds to the text. shown: the same in one line. named: whether it is special. ends: where the character ends that it begins.
    function decode(ids) {
      const text = new Array(ids.length);
      const shown = new Array(ids.length);
      const named = new Uint8Array(ids.length);
      const ends = new Map();
      // The bytes of the character that is not complete: how many, which, at which tokens, and how many lack.
      let open = 0;
      const bytes = [0, 0, 0, 0];
      const places = [0, 0, 0, 0];
      let need = 0;
      let low = 0x80;
      let high = 0xbf;
      const broken = () => {
        for (let one = 0; one < open; one++) {
          text[places[one]] += "\ufffd";
          shown[places[one]] += `\\x${bytes[one].toString(16).padStart(2, "0")}`;
        }
        open = need = 0;
      };
      const finish = (at) => {
        let code = open > 1 ? bytes[0] & (0x7f >> open) : bytes[0];
        for (let one = 1; one < open; one++) code = (code << 6) | (bytes[one] & 0x3f);
        for (let one = 0; one < open; one++) if (places[one] !== at) ends.set(places[one], at);
        text[at] += String.fromCodePoint(code);
        shown[at] += drawn(code);
        open = 0;
      };
      for (let at = 0; at < ids.length; at++) {
        const known = entry(ids[at]);
        if (known.text !== null && (!open || known.name !== null)) {
          broken();
          text[at] = known.text;
          shown[at] = known.shown;
          if (known.name !== null) named[at] = 1;
          continue;
        }
        if (known.bytes === null) {
          broken();
          text[at] = vocabulary ? "\ufffd" : `${ids[at]} `;
          shown[at] = String(ids[at]);
          continue;
        }
        text[at] = shown[at] = "";
        for (let one = 0; one < known.bytes.length; one++) {
          const byte = known.bytes.charCodeAt(one);
          if (open && (byte < low || byte > high)) broken();
          places[open] = at;
          bytes[open++] = byte;
          if (open > 1) {
            [low, high] = [0x80, 0xbf];
            if (!--need) finish(at);
          } else if (byte < 0x80) finish(at);
          else if (byte < 0xc2 || byte > 0xf4) broken();
          else {
            need = byte >= 0xf0 ? 3 : byte >= 0xe0 ? 2 : 1;
            low = byte === 0xe0 ? 0xa0 : byte === 0xf0 ? 0x90 : 0x80;
            high = byte === 0xed ? 0x9f : byte === 0xf4 ? 0x8f : 0xbf;
          }
        }
      }
      broken();
      for (const at of ends.keys()) shown[at] += "⋯";
      return { text, shown, named, ends };
    }

    // The first place where two arrays of ids differ; the length of the shorter one if it begins the other.
    function difference(one, other) {
      const shorter = Math.min(one.length, other.length);
      let at = 0;
      while (at < shorter && one[at] === other[at]) at++;
      return at;
    }

    const hex = (id) => {
      const { bytes } = entry(id);
      return bytes === null ? "" : Array.from(bytes, (one) => one.charCodeAt(0).toString(16).padStart(2, "0")).join(" ");
    };
    return { whole, sizes, promptSize, entry, decode, difference, hex };
  }

  // A new element with text, and what else it has.
  function make(name, text = "", more = {}) {
    const element = document.createElement(name);
    element.textContent = text;
    for (const [key, value] of Object.entries(more)) element.setAttribute(key, value);
    return element;
  }

  const number = (value) => value.toLocaleString("en");
  const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
  const signed = (value) => (value > 0 ? "+" : "") + Number(value.toFixed(4));
  function percent(logprob) {
    const share = 100 * Math.exp(logprob);
    return `${share >= 10 ? share.toFixed(1) : share >= 0.001 ? share.toPrecision(2) : share.toExponential(1)} %`;
  }

  // The link to a turn in the transcript of its try.
  function transcript(rollout, turn) {
    const page = turn.try ? rollout.replace(/(index\.html)?$/, `try/${encodeURIComponent(turn.try)}/$1`) : rollout;
    return `${page}#turn-${turn.index}`;
  }

  // The URL of this page with some of what it asks for changed; null removes it.
  function url(changes) {
    const query = new URLSearchParams(location.search);
    for (const [key, value] of Object.entries(changes)) {
      if (value === null) query.delete(key);
      else query.set(key, value);
    }
    return `${location.pathname}${query.size ? `?${query}` : ""}`;
  }

  return { load, visible, seen, lines, make, number, count, signed, percent, transcript, url };
})();
