// Runs inside: the same as request.py, for Node.
import http from "node:http";
import { readFileSync } from "node:fs";

const [port, method, path] = process.argv.slice(-3);
const input = readFileSync(0);
const end = input.indexOf(10);
const body = input.subarray(end + 1);
const headers = { ...JSON.parse(input.subarray(0, end).toString()), "Content-Length": body.length };
const fail = (why) => {
  console.error(String(why));
  process.exit(1);
};
const request = http.request({ host: "127.0.0.1", port, method, path, headers }, (answer) => {
  if (answer.statusCode !== 200) fail(`status ${answer.statusCode}`);
  answer.on("error", fail);
  answer.on("aborted", () => fail("aborted"));
  answer.pipe(process.stdout);
});
request.on("error", fail);
request.end(body);
