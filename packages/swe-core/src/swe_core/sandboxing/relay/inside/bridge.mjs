// Runs inside a sandbox: `bridge.mjs PORT` carries its standard streams to a port of 127.0.0.1.
//
// The same as bridge.py, for sandboxes that have Node (>= 18) and no Python.
import net from "node:net";

const port = Number(process.argv[process.argv.length - 1]);
const connection = net.createConnection({ host: "127.0.0.1", port, noDelay: true }, () => {
  process.stdout.write("ready\n");
  process.stdin.pipe(connection);
  connection.pipe(process.stdout);
});
connection.on("error", () => process.exit(1));
connection.on("close", () => process.exit(0));
process.stdin.on("close", () => process.exit(0));
