"""The proxy to the ports inside."""

from __future__ import annotations

import http.client
import os
import socket
from typing import TYPE_CHECKING

from .answers import PIECE, Answers
from .spaces import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

# Headers of one connection, and the proxy's own credentials.
NOT_FORWARDED = {
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer"),
    *("transfer-encoding", "upgrade", "content-length", "authorization", "x-sandbox-token"),
}


class Proxy(Answers):
    """Forward requests to ports."""

    def proxy(self, port: str, target: str) -> None:
        if not port.isdigit() or not 0 < int(port) < 65536:
            raise Refused(400, f"invalid port: {port}")
        connection = http.client.HTTPConnection("127.0.0.1", int(port))
        try:
            if self.space.home is None:
                connection.connect()
            else:
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.connect(os.path.join(self.space.home, ".proxy", f"{port}.sock"))
            connection.putrequest(self.command, target, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in NOT_FORWARDED:
                    connection.putheader(name, value)
            if self.body or self.command in ("POST", "PUT", "PATCH"):
                connection.putheader("Content-Length", str(len(self.body)))
            connection.putheader("Connection", "close")
            connection.endheaders(self.body or None)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise Refused(502, f"nothing answers on port {port}: {error}") from error
        try:
            self.pass_on(answer)
        except http.client.HTTPException:
            self.close_connection = True  # the answer broke off: break off ours
        finally:
            answer.close()
            connection.close()

    def pass_on(self, answer: http.client.HTTPResponse) -> None:
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in NOT_FORWARDED:
                self.send_header(name, value)
        length = answer.getheader("Content-Length")
        bare = self.command == "HEAD" or answer.status in (204, 304)
        if length is not None:
            self.send_header("Content-Length", length)
        elif not bare:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if bare:
            return
        sent = 0
        for piece in pieces(answer):
            sent += len(piece)
            if length is None:
                self.chunk(piece)
            else:
                self.wfile.write(piece)
        if length is None:
            self.wfile.write(b"0\r\n\r\n")
        elif sent < int(length):
            raise http.client.IncompleteRead(b"", int(length) - sent)


def pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield data as it arrives."""
    while True:
        piece = answer.read1(PIECE)
        if not piece:
            return
        yield piece
