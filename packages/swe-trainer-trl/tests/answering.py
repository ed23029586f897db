"""Servers on loopback that answer in the words of a test."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass
class Asked:
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes


class Loopback(ThreadingHTTPServer):
    """Answers as `reply` says: with a status and a body, or, as where a server dies, not at all."""

    daemon_threads = allow_reuse_port = True

    def __init__(self, reply: Callable[[Asked], tuple[int, bytes] | None]) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                answer = reply(Asked(self.path, dict(self.headers), body))
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, format: str, *args: object) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.place = socket.socket()
        self.place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._thread = Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    def die(self) -> None:
        """Stop listening. The port stays taken, or another program might answer there."""
        self.place.bind(self.server_address)
        self.end()

    def end(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


@contextmanager
def replying(reply: Callable[[Asked], tuple[int, bytes] | None]) -> Iterator[Loopback]:
    server = Loopback(reply)
    with server.place:
        yield server
        server.end()


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server with one answer: its URL, and the headers of each request."""
    asked: list[dict[str, str]] = []

    def reply(request: Asked) -> tuple[int, bytes]:
        asked.append(request.headers)
        return status, body

    with replying(reply) as server:
        yield server.url, asked
