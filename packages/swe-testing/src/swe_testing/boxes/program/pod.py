"""The kubelet's part for one pod: its container's process, and commands beside it.

A connection to the socket is one command. The client sends its argv as a line of JSON, then messages: one
byte of channel, four of length, and the data, in both directions. The channels are those of Kubernetes' exec:
standard input, output, error, and the end, whose data is a `Status`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import socketserver
import struct
import subprocess
import threading
import time
from typing import Any

from .spaces import CHILDREN

HEAD = struct.Struct("!BI")
STDIN, STDOUT, STDERR, STATUS = range(4)
PIECE = 32 * 1024
DRAIN = 1.0


class Pod(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Process 1 of a box."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, path: str, command: list[str], env: dict[str, str]) -> None:
        self.env = env
        listening = env.get("KUBERNETES_SERVICE_HOST", "").startswith("127.")
        if listening:  # a network that nobody has cut off
            self.outside = socket.create_server(("127.0.0.1", int(env["KUBERNETES_SERVICE_PORT"])))
        super().__init__(path + ".new", _Command)
        os.chmod(path + ".new", 0o666)
        os.rename(path + ".new", path)  # the file exists once the server listens
        null = subprocess.DEVNULL
        CHILDREN.start(command, env=env, stdin=null, stdout=null, stderr=null)
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        """Reap orphans, as the container's own process does in a real pod."""
        while True:
            time.sleep(0.2)
            CHILDREN.reap()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing for a client that left."""


class _Command(socketserver.StreamRequestHandler):
    server: Pod

    def handle(self) -> None:
        argv = json.loads(self.rfile.readline())
        self.lock = threading.Lock()
        pipe = subprocess.PIPE
        try:
            process = CHILDREN.start(argv, env=self.server.env, cwd="/", stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            message = f'exec: "{argv[0]}": executable file not found in $PATH: {error}'
            self.end({"status": "Failure", "reason": "InternalError", "message": message})
            return
        threading.Thread(target=self.feed, args=(process,), daemon=True).start()
        pumps = [
            threading.Thread(target=self.pump, args=(channel, stream), daemon=True)
            for channel, stream in ((STDOUT, process.stdout), (STDERR, process.stderr))
        ]
        for pump in pumps:
            pump.start()
        code = process.wait()
        for pump in pumps:  # a child in the background may keep a stream open for longer
            pump.join(DRAIN)
        if code == 0:
            self.end({"status": "Success"})
            return
        causes = [{"reason": "ExitCode", "message": str(128 - code if code < 0 else code)}]
        message = "command terminated with non-zero exit code"
        self.end(
            {
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": message,
                "details": {"causes": causes},
            }
        )

    def feed(self, process: subprocess.Popen[bytes]) -> None:
        """Carry standard input. It ends with the connection, which ends nothing else."""
        with contextlib.suppress(OSError, ValueError), process.stdin as stream:  # type: ignore[union-attr]  # it was opened with a pipe
            while True:
                head = self.rfile.read(HEAD.size)
                if len(head) < HEAD.size:
                    return
                stream.write(self.rfile.read(HEAD.unpack(head)[1]))
                stream.flush()

    def pump(self, channel: int, stream: Any) -> None:
        with contextlib.suppress(OSError), stream:
            for piece in iter(lambda: os.read(stream.fileno(), PIECE), b""):
                self.tell(channel, piece)

    def end(self, status: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self.tell(STATUS, json.dumps(status).encode())

    def tell(self, channel: int, data: bytes) -> None:
        with self.lock:
            self.wfile.write(HEAD.pack(channel, len(data)) + data)
