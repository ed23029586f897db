# Prints `open` where code in this pod can connect to the cluster's API server or name server, `closed` where it
# cannot, and nothing where that cannot be found out. Both are addresses that every pod of a cluster knows.
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
[ -n "$KUBERNETES_SERVICE_HOST" ] || exit 0
set -- "$KUBERNETES_SERVICE_HOST" "${KUBERNETES_SERVICE_PORT:-443}"
while read -r word name _; do
  [ "$word" != nameserver ] || set -- "$@" "$name" 53
done 2>/dev/null </etc/resolv.conf
py='
import socket, sys, threading
opened = []
def connect(host, port):
    try:
        socket.create_connection((host, int(port)), 2).close()
        opened.append(host)
    except OSError:
        pass
threads = [threading.Thread(target=connect, args=pair) for pair in zip(sys.argv[1::2], sys.argv[2::2])]
for thread in threads: thread.start()
for thread in threads: thread.join()
print("open" if opened else "closed")
'
js='
const net = require("node:net"), words = process.argv.slice(1);
let left = words.length / 2, opened = false;
const over = () => { if (!--left) console.log(opened ? "open" : "closed"); };
for (let i = 0; i < words.length; i += 2) {
  const socket = net.connect(Number(words[i + 1]), words[i], () => { opened = true; socket.destroy(); });
  socket.setTimeout(2000, () => socket.destroy());
  socket.on("error", () => {}).on("close", over);
}
'
for python in python3 /opt/swe/*/bin/python3; do
  "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 6))' 2>/dev/null || continue
  exec "$python" -I -S -c "$py" "$@"
done
for node in node /opt/swe/*/bin/node; do
  "$node" --version >/dev/null 2>&1 || continue
  exec "$node" -e "$js" "$@"
done
command -v bash >/dev/null && command -v timeout >/dev/null || exit 0
said=closed
while [ $# -gt 1 ]; do
  timeout 2 bash -c 'exec 3<>"/dev/tcp/$1/$2"' bash "$1" "$2" 2>/dev/null && said=open
  shift 2
done
echo $said
