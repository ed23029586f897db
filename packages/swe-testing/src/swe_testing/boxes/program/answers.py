"""HTTP answers of the server."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any

from .server import Server
from .spaces import Refused, Space

PIECE = 64 * 1024


class Answers(BaseHTTPRequestHandler):
    """One connection with its current request."""

    protocol_version = "HTTP/1.1"
    server: Server
    space: Space
    body: bytes
    query: dict[str, str]

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a job's log is its command's."""

    def address_string(self) -> str:
        return "host"

    def json(self, value: Any, status: int = 200) -> None:
        self.send_body(json.dumps(value).encode(), status, "application/json")

    def send_body(
        self, data: bytes, status: int = 200, content_type: str = "application/octet-stream"
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def loaded(self) -> dict[str, Any]:
        try:
            body = json.loads(self.body)
        except ValueError as error:
            raise Refused(400, f"invalid JSON: {error}") from error
        if not isinstance(body, dict):
            raise Refused(400, "the body must be an object")
        return body
