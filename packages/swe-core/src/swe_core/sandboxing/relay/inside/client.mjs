// Runs inside a sandbox: `client.mjs METHOD PORT PATH` makes one request to 127.0.0.1 and prints the answer's body.
//
// The same as client.py, for sandboxes that have Node (>= 18) and no Python.
import { closeSync, openSync, readFileSync } from "node:fs";
import http from "node:http";

const [method, port, path] = process.argv.slice(-3);
const given = readFileSync(0);
closeSync(0); // where it is a file, others could read it through /proc
openSync("/dev/null");
const end = given.indexOf(10);
const headers = JSON.parse(given.toString("utf8", 0, end));
const body = given.subarray(end + 1);

function fail(why) {
  process.stderr.write(`${why}\n`, () => process.exit(1));
}

const request = http.request({ host: "127.0.0.1", port, path, method, headers, agent: false });
request.on("error", fail);
request.on("response", (answer) => {
  if (answer.statusCode !== 200) return fail(`status ${answer.statusCode}`);
  answer.on("error", fail);
  answer.pipe(process.stdout);
});
request.end(body);
