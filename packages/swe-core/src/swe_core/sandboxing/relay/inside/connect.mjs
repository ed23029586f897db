// Runs inside a sandbox: `connect.mjs PORT` carries bytes between its standard streams and a local port.
//
// The same as connect.py, for sandboxes that have Node (>= 18) and no Python.
import net from "node:net";

const port = Number(process.argv[process.argv.length - 1]);
const connection = net.createConnection({ host: "127.0.0.1", port, noDelay: true });

// pipe() carries back-pressure; the first end of a direction ends the program.
process.stdin.pipe(connection);
connection.pipe(process.stdout);
process.stdin.on("end", () => process.exit(0));
connection.on("end", () => process.exit(0)); // pipes take what is written at once
connection.on("error", () => process.exit(1));
