"""Handler: routing and authorisation of requests."""

from __future__ import annotations

import hmac
import time
from urllib.parse import parse_qs, unquote, urlsplit

from .commands import Commands
from .files import Files
from .proxy import Proxy
from .spaces import Refused, Space

VERSION = "0.7.0"
PROTOCOL = 3


class Handler(Commands, Files, Proxy):
    """One connection."""

    def do_GET(self) -> None:  # noqa: N802  # the base class's name
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            self.route()
        except Refused as refused:
            self.json({"error": refused.message}, refused.status)

    do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = do_GET  # noqa: N815  # the base class's names

    def route(self) -> None:
        url = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        root, *parts = url.path.strip("/").split("/")
        if url.path == "/health":
            self.json({"status": "ok", "version": VERSION, "protocol": PROTOCOL})
        elif root != "v1":
            raise Refused(404, "not found")
        elif self.server.capacity is None:
            self.require(self.server.base.token)
            self.operate(self.server.base, parts)
        elif parts[:1] != ["sandboxes"]:
            raise Refused(404, "this is a pool's host: use /v1/sandboxes")
        else:
            self.server.base.active = time.monotonic()
            self.host(parts[1:])

    def require(self, *tokens: str) -> None:
        """Refuse a request without one of these tokens."""
        given = self.headers.get("X-Sandbox-Token", "").encode()
        if not any(hmac.compare_digest(given, token.encode()) for token in tokens):
            raise Refused(401, "invalid sandbox token")

    def host(self, parts: list[str]) -> None:
        """Handle a request to a pool's host."""
        managing = self.server.base.token
        if not parts:
            self.require(managing)
            self.sandboxes()
            return
        space = self.server.spaces.get(parts[0])
        if space is None:
            self.require(managing)
            raise Refused(404, "no such sandbox")
        if parts[1:] == ["token"]:
            self.require(managing)
            self.json({"token": space.token})
            return
        self.require(managing, space.token)
        if parts[1:]:
            self.operate(space, parts[1:])
        elif self.command == "DELETE":
            self.server.remove(space)
            self.json({"deleted": True})
        else:
            raise Refused(405, "method not allowed")

    def sandboxes(self) -> None:
        if self.command == "POST":
            self.json(self.server.create(self.loaded()))
        elif self.command == "GET":
            self.json([{"id": id} for id in list(self.server.spaces)])
        else:
            raise Refused(405, "method not allowed")

    def operate(self, space: Space, parts: list[str]) -> None:
        """Handle a request to a sandbox."""
        self.space = space
        space.active = time.monotonic()
        if parts == ["exec"] and self.command == "POST":
            self.exec()
        elif parts[:1] == ["processes"]:
            self.processes(parts[1:])
        elif parts[:1] == ["files"] and len(parts) == 2:
            self.files(parts[1])
        elif parts[:1] == ["proxy"] and len(parts) >= 2:
            # Unchanged: nothing is decoded or normalised on the way to a port.
            self.proxy(unquote(parts[1]), "/" + self.path.split("/proxy/", 1)[1].partition("/")[2])
        else:
            raise Refused(404, "not found")
