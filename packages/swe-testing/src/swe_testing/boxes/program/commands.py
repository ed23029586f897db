"""Foreground commands and background processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from typing import Any

from .answers import PIECE, Answers
from .spaces import Background, Refused, exit_of

KEPT_PROCESSES = 100


class Commands(Answers):
    """Run commands."""

    def exec(self) -> None:
        body = self.loaded()
        began = time.monotonic()
        pipe = subprocess.PIPE
        given = None if body.get("stdin") is None else str(body["stdin"]).encode()
        process = self.space.start(
            body, stdin=subprocess.DEVNULL if given is None else pipe, stdout=pipe, stderr=pipe
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        lock = threading.Lock()
        done = threading.Event()

        def tell(**event: Any) -> None:
            with lock:
                self.chunk(json.dumps(event).encode() + b"\n")

        def pump(name: str, stream: Any) -> None:
            for piece in iter(lambda: os.read(stream.fileno(), PIECE), b""):
                # Text, and lossy, as in the real one, whose wire format is JSON.
                with contextlib.suppress(OSError):
                    tell(event=name, data=piece.decode(errors="replace"))
            stream.close()

        def feed() -> None:
            with contextlib.suppress(BrokenPipeError), process.stdin as stream:  # type: ignore[union-attr]  # it was opened with a pipe
                stream.write(given or b"")

        def pings() -> None:
            while not done.wait(self.server.ping):
                with contextlib.suppress(OSError):
                    tell(event="ping")

        tell(event="start", pid=process.pid)
        pumps = [
            threading.Thread(target=pump, args=(name, stream), daemon=True)
            for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
        ]
        extra = [threading.Thread(target=pings, daemon=True)]
        if given is not None:
            extra.append(threading.Thread(target=feed, daemon=True))
        for thread in (*pumps, *extra):
            thread.start()
        timed_out = False
        try:
            process.wait(body.get("timeout"))
        except subprocess.TimeoutExpired:
            timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for thread in pumps:  # a child in the background may keep a stream open for longer
            thread.join(1.0)
        done.set()
        milliseconds = int((time.monotonic() - began) * 1000)
        tell(event="exit", **exit_of(process), timed_out=timed_out, duration_ms=milliseconds)
        with lock:
            self.wfile.write(b"0\r\n\r\n")

    def processes(self, parts: list[str]) -> None:
        kept = self.space.processes
        if self.command == "POST" and not parts:
            body = self.loaded()
            null = subprocess.DEVNULL
            process = self.space.start(body, stdin=null, stdout=null, stderr=null)
            started = Background(body["cmd"], process)
            ended = [one for one in kept if not one.running]
            for one in ended[: max(0, len(ended) - KEPT_PROCESSES)]:
                kept.remove(one)
            kept.append(started)
            self.json({"id": started.id, "pid": process.pid, "tag": None})
        elif self.command == "GET" and not parts:
            self.json([one.json() for one in kept])
        elif self.command == "DELETE" and len(parts) == 1:
            for one in kept:
                if one.id == parts[0]:
                    self.json({"killed": one.kill()})
                    return
            raise Refused(404, f"no process {parts[0]}")
        else:
            raise Refused(405, "method not allowed")
