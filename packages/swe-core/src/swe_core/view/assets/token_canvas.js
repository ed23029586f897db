// The canvas of a row: the lines in view, and a map of the whole row beside them.
"use strict";

// view: the row, its colour, the selected tokens (at, to), and the places that a search found (hits).
const TokenCanvas = (model, view, { stream, canvas, map, space }) => {
  const { CONTEXT, TRAINED, DROPPED, ELSEWHERE, turns, noReward, ownPrompt } = model;
  const { number, count } = TokenText;
  const LINE = 20; // height of a line, pixels
  const GUTTER = 124; // where a line begins; before it stand the position, the role and the policy version
  const HEAT = [0.9, 0.5, 0.1, 0.01, 0.001]; // lower ends of the classes of probability
  const RATIO = [0.5, 0.8, 0.95, 1.05, 1.25, 2]; // upper ends of the classes of the ratio
  const FONT = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace";

  const context = canvas.getContext("2d");
  let row; // that of the last layout
  const widths = new Map();
  let letter = 8;
  let size = { width: 0, height: 0, map: 0 };
  let colors = {};
  let overview = null; // the map without the frame of what is in view

  function readColors() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(`--${name}`).trim();
    const many = (name, length) => Array.from({ length }, (_, at) => read(`${name}-${at}`));
    colors = {
      page: read("page"), ink: read("ink"), dim: read("dim"), grid: read("grid"), main: read("main"), error: read("error"),
      mark: read("mark"), panel: read("panel"), heat: many("heat", 6), ratio: many("ratio", 7), version: many("version", 6),
      dark: read("heat-ink"), // text on the classes of the least likely tokens
    };
  }

  function width(shown) {
    let found = widths.get(shown);
    if (found === undefined) {
      found = /^[\x20-\x7e]*$/.test(shown) ? shown.length * letter : context.measureText(shown).width;
      widths.set(shown, found);
    }
    return found;
  }

  function layout() {
    row = view.row;
    const box = stream.getBoundingClientRect();
    const scale = devicePixelRatio || 1;
    size = { width: stream.clientWidth, height: Math.floor(box.height) - 2, map: map.clientWidth };
    for (const [one, wide] of [[canvas, size.width], [map, size.map]]) {
      one.width = Math.round(wide * scale);
      one.height = Math.round(size.height * scale);
      one.style.height = `${size.height}px`;
    }
    canvas.style.width = `${size.width}px`;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.font = `13px ${FONT}`;
    letter = context.measureText("0000000000").width / 10;
    const right = size.width - 6;
    row.x = new Float32Array(row.n);
    row.wide = new Float32Array(row.n);
    row.lines = []; // first token of each line
    row.heads = []; // of a line that names what follows: twice its part, plus 1 for a reply; else -1
    let x = 0;
    const begin = (at, head = -1) => {
      row.lines.push(at);
      row.heads.push(head);
      x = GUTTER;
    };
    let broken = true;
    let change = 0;
    row.parts.forEach((_, part) => {
      const ends = [row.prompts[part], row.starts[part + 1] ?? row.n];
      let at = row.starts[part];
      ends.forEach((end, section) => {
        if (at === end) return;
        begin(at, 2 * part + section);
        broken = true;
        for (; at < end; at++) {
          const wide = width(row.shown[at]) + (row.named[at] ? 8 : 3);
          const chip = at === row.changes[change] ? 4 + letter * (1 + String(row.version[at]).length) : 0;
          if (chip) change++;
          if (broken || x + chip + wide > right) begin(at);
          row.x[at] = x + chip;
          row.wide[at] = wide;
          x += chip + wide;
          broken = !row.named[at] && row.text[at].includes("\n");
        }
      });
    });
    space.style.height = `${Math.max(0, row.lines.length * LINE - size.height)}px`;
    overview = null;
  }

  // The line of a token: the last one that begins at or before it.
  function lineOf(at) {
    let low = 0;
    let high = row.lines.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (row.lines[middle] <= at) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  const lineEnd = (line) => row.lines[line + 1] ?? row.n;

  function heat(logprob) {
    const share = Math.exp(logprob);
    const found = HEAT.findIndex((end) => share >= end);
    return found < 0 ? HEAT.length : found;
  }

  function ratioClass(value) {
    const found = RATIO.findIndex((end) => value < end);
    return found < 0 ? RATIO.length : found;
  }

  const versionColor = (version) => colors.version[version % colors.version.length];

  // The fill of a trained token, or of one that is dropped but has a log-probability.
  function fillOf(at) {
    if (view.color === "version") return versionColor(row.version[at]);
    if (view.color === "ratio") return Number.isNaN(row.trainer[at]) ? colors.panel : colors.ratio[ratioClass(row.ratio[at])];
    if (view.color === "logprob" && !Number.isNaN(row.logprob[at])) return colors.heat[heat(row.logprob[at])];
    return view.color === "none" && row.kind[at] === TRAINED ? colors.heat[0] : colors.panel;
  }

  function inkOf(at) {
    if (row.kind[at] === CONTEXT || row.kind[at] === ELSEWHERE) return colors.dim;
    const strong = view.color === "logprob" && heat(row.logprob[at]) >= 4;
    return strong ? colors.dark : colors.ink;
  }


  let waiting = false;
  function redraw() {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      draw();
    });
  }

  function draw() {
    const top = stream.scrollTop;
    context.fillStyle = colors.page;
    context.fillRect(0, 0, size.width, size.height);
    context.textBaseline = "middle";
    const first = Math.floor(top / LINE);
    const last = Math.min(row.lines.length - 1, Math.floor((top + size.height) / LINE));
    for (let line = first; line <= last; line++) {
      const y = line * LINE - top;
      if (row.heads[line] >= 0) drawHead(row.heads[line], y);
      else drawLine(line, y);
    }
    if (overview !== null) drawMap(first, last);
    else requestAnimationFrame(() => drawMap(first, last)); // the lines come first
  }

  function drawHead(head, y) {
    const [place] = row.parts[head >> 1];
    const turn = turns[place];
    const start = head & 1 ? row.prompts[head >> 1] : row.starts[head >> 1];
    const length = head & 1 ? turn.reply.length : ownPrompt(place);
    context.fillStyle = colors.grid;
    context.fillRect(0, y + LINE - 2, size.width, 1);
    context.fillStyle = colors.dim;
    context.font = "12px system-ui, sans-serif";
    context.fillText(headText(head, turn, length, start), 6, y + LINE / 2);
    context.font = `13px ${FONT}`;
  }

  function headText(head, turn, length, start) {
    if (!(head & 1)) return `Turn ${turn.index}, prompt: ${count(length, "token")} of context`;
    const why = turn.dropped ?? noReward[turn.try];
    const versions = turn.versions.map(([version]) => version).join(", ");
    const state = why !== null ? `dropped (${why})` : row.kind[start] === ELSEWHERE ? "context here, trained in another row" : "trained";
    return `Turn ${turn.index}, reply: ${count(length, "token")}, ${state}${versions ? `, policy version ${versions}` : ""}`;
  }

  function drawLine(line, y) {
    const start = row.lines[line];
    const end = lineEnd(line);
    const middle = y + LINE / 2 + 1;
    context.fillStyle = colors.dim;
    const position = number(start);
    context.fillText(position, 58 - position.length * letter, middle);
    for (let at = start; at < end; at++) {
      const role = row.roles.get(at);
      if (role) {
        context.font = "11px system-ui, sans-serif";
        context.fillText(role.role.slice(0, 9), 64, middle);
        context.font = `13px ${FONT}`;
        break;
      }
    }
    for (let at = start; at < end; at++) {
      if (row.version[at] >= 0) {
        context.fillStyle = versionColor(row.version[at]);
        context.fillRect(GUTTER - 8, y, 4, LINE);
        break;
      }
    }
    const low = view.at === null ? -1 : view.at;
    for (let at = start; at < end; at++) {
      const x = row.x[at];
      const wide = row.wide[at];
      const kind = row.kind[at];
      const named = row.named[at] === 1;
      if (kind === TRAINED || kind === DROPPED) {
        context.fillStyle = fillOf(at);
        context.fillRect(x, y + 1, wide, LINE - 2);
      }
      if (row.hit[at]) {
        context.fillStyle = colors.mark;
        context.fillRect(x, y + 1, wide, LINE - 2);
      }
      if (at >= low && at <= view.to && view.to > low) {
        context.globalAlpha = 0.25;
        context.fillStyle = colors.main;
        context.fillRect(x, y, wide, LINE);
        context.globalAlpha = 1;
      }
      context.fillStyle = row.hit[at] ? colors.ink : inkOf(at);
      context.fillText(row.shown[at], x + (named ? 4 : 1), middle);
      if (named) {
        context.strokeStyle = colors.dim;
        context.strokeRect(x + 1.5, y + 2.5, wide - 3, LINE - 5);
      } else {
        context.fillStyle = colors.grid;
        context.fillRect(x + wide - 1, y + 3, 1, LINE - 6);
      }
      if (kind === DROPPED) {
        context.fillStyle = colors.error;
        context.fillRect(x, y + LINE / 2, wide, 1.5);
      } else if (kind === ELSEWHERE) {
        context.fillStyle = colors.dim;
        for (let dot = x; dot < x + wide - 1; dot += 4) context.fillRect(dot, y + LINE - 3, 2, 1);
      }
      if (row.clipped[at]) {
        context.fillStyle = colors.ink;
        context.fillRect(x, y + LINE - 3, wide - 1, 2);
      }
      if (row.drift?.at === at) drawFlag(x, y, colors.error);
      if (at === low) {
        context.strokeStyle = colors.main;
        context.lineWidth = 2;
        context.strokeRect(x, y + 1, wide, LINE - 2);
        context.lineWidth = 1;
      }
    }
    drawChanges(start, end, y, middle);
  }

  function drawFlag(x, y, color) {
    context.fillStyle = color;
    context.beginPath();
    context.moveTo(x - 1, y);
    context.lineTo(x + 7, y);
    context.lineTo(x - 1, y + 7);
    context.fill();
  }

  function drawChanges(start, end, y, middle) {
    for (const at of row.changes) {
      if (at < start || at >= end) continue;
      const text = `v${row.version[at]}`;
      const wide = text.length * letter;
      context.fillStyle = colors.ink;
      context.fillRect(row.x[at] - wide - 3, y + 2, wide + 2, LINE - 4);
      context.fillStyle = colors.page;
      context.fillText(text, row.x[at] - wide - 2, middle);
    }
  }

  // The map: a pixel is some lines, with the least likely of their trained tokens.
  function drawMap(first, last) {
    const paint = map.getContext("2d");
    const scale = devicePixelRatio || 1;
    const total = Math.max(row.lines.length, Math.floor(size.height / LINE));
    const toY = (line) => (line / total) * size.height;
    if (overview === null) {
      overview = document.createElement("canvas");
      [overview.width, overview.height] = [map.width, map.height];
      const draft = overview.getContext("2d");
      draft.scale(scale, scale);
      draft.fillStyle = colors.panel;
      draft.fillRect(0, 0, size.map, size.height);
      for (let y = 0; y < size.height; y++) {
        const line = Math.floor((y / size.height) * total);
        if (line >= row.lines.length) break;
        paintMapLine(draft, y, row.lines[line], row.lines[Math.ceil(((y + 1) / size.height) * total)] ?? row.n);
      }
      draft.fillStyle = colors.error;
      for (const at of row.drift ? [row.drift.at] : []) draft.fillRect(0, toY(lineOf(at)) - 1, size.map, 2);
      draft.fillStyle = colors.ink;
      for (const at of row.changes) draft.fillRect(size.map - 12, toY(lineOf(at)) - 1, 12, 2);
      draft.fillStyle = colors.main;
      for (const [at] of view.hits) draft.fillRect(0, toY(lineOf(at)) - 1, 5, 2);
    }
    paint.setTransform(1, 0, 0, 1, 0, 0);
    paint.drawImage(overview, 0, 0);
    paint.setTransform(scale, 0, 0, scale, 0, 0);
    paint.strokeStyle = colors.main;
    paint.lineWidth = 2;
    paint.strokeRect(1, toY(first), size.map - 2, Math.max(6, toY(last + 1) - toY(first)));
  }

  function paintMapLine(draft, y, start, end) {
    let worst = -1;
    let struck = false;
    let version = -1;
    const rank = (at) => (view.color === "ratio" ? Math.abs(Math.log(row.ratio[at])) : -row.logprob[at]);
    for (let at = start; at < end; at++) {
      if (row.version[at] >= 0) version = row.version[at];
      if (row.kind[at] === DROPPED) struck = true;
      if (row.kind[at] === TRAINED && (worst < 0 || rank(at) > rank(worst))) worst = at;
    }
    const wide = size.map - 20;
    draft.fillStyle = worst >= 0 ? fillOf(worst) : struck ? colors.error : colors.grid;
    draft.fillRect(6, y, worst >= 0 || struck ? wide : wide / 4, 1);
    if (version >= 0) {
      draft.fillStyle = versionColor(version);
      draft.fillRect(size.map - 10, y, 6, 1);
    }
  }

  // The token at a point of the window; null beside them.
  function tokenAt(event) {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top + stream.scrollTop];
    const line = Math.floor(y / LINE);
    if (line < 0 || line >= row.lines.length || row.heads[line] >= 0) return null;
    for (let at = row.lines[line]; at < lineEnd(line); at++) {
      if (x >= row.x[at] && x < row.x[at] + row.wide[at]) return at;
    }
    return null;
  }

  // Scroll until a token is in view.
  function reveal(at) {
    const y = lineOf(at) * LINE;
    if (y < stream.scrollTop + LINE || y > stream.scrollTop + size.height - 2 * LINE) {
      stream.scrollTop = Math.max(0, y - size.height / 3);
    }
  }

  // Scroll to a height of the map, from 0 to 1.
  function scrollTo(share) {
    const total = Math.max(row.lines.length, Math.floor(size.height / LINE));
    stream.scrollTop = share * total * LINE - size.height / 2;
  }

  // Lay out again where the window has another size.
  function resize() {
    if (stream.clientWidth === size.width && Math.floor(stream.getBoundingClientRect().height) - 2 === size.height) return;
    const at = row.lines[Math.floor(stream.scrollTop / LINE)] ?? 0;
    layout();
    stream.scrollTop = lineOf(at) * LINE;
    draw();
  }

  // Draw again with another colour, or with other marks on the map.
  function repaint() {
    overview = null;
    redraw();
  }

  return { readColors, layout, redraw, repaint, resize, reveal, scrollTo, tokenAt, lineOf, lineEnd, size: () => size };
};
