// Runs inside a sandbox: `forward.mjs SOCKET` carries TCP connections to the unix socket SOCKET.
//
// The same as forward.py, for sandboxes that have Node (>= 18) and no Python: listens on 127.0.0.1 only,
// prints `ready PORT` once it does, and runs until it is killed.
import net from "node:net";

const path = process.argv[process.argv.length - 1];
const options = { allowHalfOpen: true, noDelay: true };

const server = net.createServer(options, (near) => {
  const far = net.createConnection({ path, allowHalfOpen: true });
  far.write("caller unknown\n"); // which process called: forward.py tells
  // pipe() carries back-pressure and the end of a direction; an error on one side breaks off the other.
  near.pipe(far);
  far.pipe(near);
  near.on("error", () => far.destroy());
  far.on("error", () => near.resetAndDestroy());
});
server.listen({ host: "127.0.0.1", port: 0, backlog: 1024 }, () => {
  process.stdout.write(`ready ${server.address().port}\n`);
});
