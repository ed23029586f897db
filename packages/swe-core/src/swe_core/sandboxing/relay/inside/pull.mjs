// Runs inside a sandbox: HTTP requests of an agent wait here until a host has pulled them and pushed the answers.
//
// The same as pull.py, for sandboxes that have Node (>= 18) and no Python; docs/internals/relay.md has the protocol.
import { createHmac, timingSafeEqual } from "node:crypto";
import { closeSync, openSync, readFileSync } from "node:fs";
import http from "node:http";

const BATCH = 1 << 20;
const MAX_BODY = 32 << 20;
const MAX_UNREAD = 64 << 20;
const MAX_AT_ONCE = 64;
const LINGER = 5000; // ms
const TARGET = /^\/[!-~]*$/;
const NEWLINE = 10;

const settings = JSON.parse(readFileSync(0, "utf8"));
closeSync(0); // where it is a file, others could read it through /proc
openSync("/dev/null");
const secret = Buffer.from(settings.secret, "hex");

// The log of bytes for the host, from the offset `base` on, in pieces.
const up = { base: 0, end: 0, pieces: [] };
const answers = new Map(); // by the number of the request
const waiting = []; // requests that wait for a place
let places = MAX_AT_ONCE;
const big = []; // bodies that wait until fewer bytes are up
let held = 0;
let number = 0;
let have = 0; // offset in the host's log up to which this side has read
let down = Buffer.alloc(0);
let current = null; // the pull that is served; a newer one takes its place

class Refused extends Error {
  constructor(status) {
    super(`refused with ${status}`);
    this.status = status;
  }
}

function append(bytes) {
  up.pieces.push({ at: up.end, bytes });
  up.end += bytes.length;
  current?.wake();
}

function acknowledge(offset) {
  if (offset > up.end) throw new Refused(409);
  while (up.pieces.length && up.pieces[0].at + up.pieces[0].bytes.length <= offset) up.pieces.shift();
  up.base = Math.max(up.base, offset);
}

function read(start) {
  if (start < up.base) throw new Refused(409);
  const found = [];
  let left = BATCH;
  for (const { at, bytes } of up.pieces) {
    if (left <= 0) break;
    const part = bytes.subarray(Math.max(start - at, 0), Math.max(start - at, 0) + left);
    found.push(part);
    left -= part.length;
  }
  return Buffer.concat(found);
}

function tell(frame, payload = Buffer.alloc(0)) {
  append(Buffer.concat([Buffer.from(`${JSON.stringify({ ...frame, n: payload.length })}\n`), payload]));
}

function reply(res, status, body = "") {
  res.sendDate = false;
  res.writeHead(status, { "Content-Length": Buffer.byteLength(body), ...(status === 200 ? {} : { Connection: "close" }) });
  res.end(body);
}

// Read the body. The rest of one that is too long is dropped, so that its sender reads the answer.
function bodyOf(req, limit) {
  return new Promise((resolve, reject) => {
    if (req.destroyed) throw new Error("the sender has left");
    const parts = [];
    let size = 0;
    let timer;
    req.on("data", (part) => {
      size += part.length;
      if (size <= limit) parts.push(part);
      else timer ??= setTimeout(() => reject(new Refused(413)), LINGER);
    });
    req.on("end", () => {
      clearTimeout(timer);
      if (size <= limit) resolve(Buffer.concat(parts));
      else reject(new Refused(413));
    });
    req.on("close", () => reject(new Error("the sender has left")));
  });
}

function serve(respond) {
  // No time limit: an answer may take any time.
  const options = { keepAliveTimeout: 0, requestTimeout: 0, headersTimeout: 0, maxHeaderSize: 65536 };
  return http.createServer(options, (req, res) => {
    res.on("error", () => {});
    respond(req, res).catch((error) => {
      if (error instanceof Refused) reply(res, error.status);
      else res.destroy();
    });
  });
}

// The agent's side

async function place() {
  if (places > 0) places -= 1;
  else await new Promise((resolve) => waiting.push(resolve));
}

function leave() {
  const next = waiting.shift();
  if (next) next();
  else places += 1;
}

// In their order, or a big one might wait for ever.
function admitted(size) {
  return new Promise((go) => {
    big.push({ size, go });
    hold(0);
  });
}

function hold(change) {
  held += change;
  while (big.length && (!held || held + big[0].size <= settings.bodies)) {
    const { size, go } = big.shift();
    held += size;
    go();
  }
}

async function ask(req, res) {
  if (!TARGET.test(req.url)) throw new Refused(400);
  await place();
  let size = 0;
  try {
    const body = await bodyOf(req, MAX_BODY);
    await admitted(body.length);
    size = body.length;
    if (res.destroyed) return;
    const id = ++number;
    const headers = [];
    for (let i = 0; i < req.rawHeaders.length; i += 2) headers.push(req.rawHeaders.slice(i, i + 2));
    res.sendDate = false;
    const over = new Promise((resolve) => {
      res.on("close", () => {
        answers.delete(id);
        if (!res.writableEnded && !res.failed) tell({ kind: "gone", id });
        resolve();
      });
      res.on("finish", resolve);
    });
    answers.set(id, res);
    tell({ kind: "request", id, method: req.method, path: req.url, headers }, body);
    await over;
  } finally {
    hold(-size);
    leave();
  }
}

function take(frame, payload) {
  const res = answers.get(frame.id);
  if (!res) return; // its client has left
  if (frame.kind === "head") {
    res.writeHead(frame.status, frame.reason, frame.headers.flat());
    // It would send other characters as UTF-8. They go with the first bytes of the body, as they are.
    if (frame.headers.flat().every((text) => /^[ -~\t]*$/.test(text))) res.flushHeaders();
  } else if (frame.kind === "data") {
    res.write(payload);
    if (res.writableLength > MAX_UNREAD) res.destroy(); // as if the client had left
  } else if (frame.kind === "end") {
    answers.delete(frame.id);
    res.end();
  } else {
    fail(res);
  }
}

// End the connection early.
function fail(res) {
  res.failed = true;
  res.destroy();
}

// The host's side

function signature(role, nonce, path, body = "") {
  return createHmac("sha256", secret).update(`${role}\n${nonce}\n${path}\n`, "latin1").update(body).digest("hex");
}

function proves(proof, wanted) {
  const [given, right] = [Buffer.from(proof, "latin1"), Buffer.from(wanted)];
  return given.length === right.length && timingSafeEqual(given, right);
}

async function command(req, res) {
  const body = await bodyOf(req, 2 * BATCH);
  const nonce = req.headers["x-relay-nonce"] ?? "";
  const proof = req.headers["x-relay-proof"] ?? "";
  if (!proves(proof, signature("host", nonce, req.url, body))) throw new Refused(401);
  const url = new URL(req.url, "http://relay");
  const value = (name) => Number(url.searchParams.get(name));
  const opening = (said) => `${signature("relay", nonce, req.url, said)}\n`;
  let said;
  if (url.pathname === "/push") {
    said = push(value("at"), value("up"), body);
  } else if (url.pathname === "/pull") {
    acknowledge(value("from"));
    if (value("stream") === 1) return stream(res, opening(""), value("from"), value("hold"));
    said = await poll(res, value("from"), value("hold"));
  } else {
    throw new Refused(404);
  }
  reply(res, 200, Buffer.concat([Buffer.from(opening(said)), said]));
}

// Append the new bytes of the host's log, which `body` holds from `start` on.
function push(start, acknowledged, body) {
  acknowledge(acknowledged);
  if (start > have) throw new Refused(409);
  const fresh = body.subarray(have - start);
  have += fresh.length;
  down = Buffer.concat([down, fresh]);
  for (;;) {
    const end = down.indexOf(NEWLINE);
    if (end < 0) break;
    const frame = JSON.parse(down.toString("utf8", 0, end));
    const next = end + 1 + frame.n;
    if (down.length < next) break;
    const payload = down.subarray(end + 1, next);
    down = down.subarray(next);
    take(frame, payload);
  }
  return Buffer.from(String(have));
}

// A pull that waits: `wake` is called when there is news or a newer pull takes its place.
function begin() {
  const previous = current;
  const pull = { wake: () => {} };
  pull.changed = (seconds) =>
    new Promise((resolve) => {
      const timer = setTimeout(() => resolve(false), Math.max(seconds, 0) * 1000);
      pull.wake = () => {
        clearTimeout(timer);
        resolve(true);
      };
    });
  current = pull;
  previous?.wake();
  return pull;
}

const now = () => performance.now() / 1000;

// Stream the log from `start` on as it grows. A sign of life is an empty line of the log itself.
async function stream(res, opening, start, hold) {
  let data = read(start);
  const mine = begin();
  const end = now() + hold;
  let closed = false;
  res.on("close", () => {
    closed = true;
    mine.wake();
  });
  res.sendDate = false;
  res.writeHead(200, {
    "Content-Type": "application/octet-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
    Connection: "close",
  });
  res.write(opening);
  for (;;) {
    if (data.length) {
      start += data.length;
      if (!res.write(data)) {
        await new Promise((resolve) => {
          res.once("drain", resolve);
          res.once("close", resolve);
        });
      }
    } else if (now() >= end) {
      break;
    } else if (!(await mine.changed(Math.min(settings.tick, end - now()))) && current === mine) {
      append(Buffer.from("\n"));
    }
    if (closed || current !== mine) break;
    data = read(start);
  }
  res.end();
}

// Return the log from `start` on, as soon as there is any.
async function poll(res, start, hold) {
  read(start);
  const mine = begin();
  const end = now() + hold;
  while (current === mine && !res.destroyed && now() < end && !read(start).length) await mine.changed(end - now());
  if (current === mine && !read(start).length) append(Buffer.from("\n"));
  return read(start);
}

const agent = serve(ask);
const control = serve(command);
const options = { host: "127.0.0.1", backlog: 1024 };
agent.listen({ ...options, port: settings.port }, () => {
  control.listen({ ...options, port: 0 }, () => {
    process.stdout.write(`ready ${agent.address().port} ${control.address().port}\n`);
  });
});
