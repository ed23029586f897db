"""The messages between both halves of the pull relay: frames in two byte logs, with proofs of the sender.

A frame is one line of JSON whose `n` is the number of raw bytes after it. An empty line is a sign of life.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from swe_core.errors import SandboxError
from swe_core.sandboxing.relay.transport import TransportError

MAX_LINE = 1 << 19
"""Bytes of a frame's line: 64 KiB of headers; JSON may escape a byte with six."""
MAX_BODY = 32 << 20
"""Bytes of a request's body."""
MAX_PROOF = 100
"""Bytes of an answer's first line; a proof has 64."""
_EMPTY = re.compile(rb"\n*")


_Token = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
_Value = Annotated[str, Field(pattern=r"^[\t -~\x80-\xff]*$", description="bytes as Latin-1")]


class ProtocolError(SandboxError):
    """The program inside broke the protocol, so it was replaced: it is started again."""


class Imposture(ProtocolError):
    """Repeated answers of something that never proves to be the program inside."""


class Unproven(TransportError):
    """An answer without the proof of the program inside."""


class _Frame(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    id: int = Field(ge=1, lt=1 << 53)
    n: int = Field(ge=0, le=MAX_BODY)


class RequestFrame(_Frame):
    """An agent's request; its body follows."""

    kind: Literal["request"]
    method: _Token
    path: str = Field(pattern=r"^/[!-~]*$")
    headers: tuple[tuple[_Token, _Value], ...]


class Gone(_Frame):
    """The client of that request has closed its connection."""

    kind: Literal["gone"]


_UP: TypeAdapter[RequestFrame | Gone] = TypeAdapter(
    Annotated[RequestFrame | Gone, Field(discriminator="kind")], config=ConfigDict(defer_build=True)
)


class Unpacker:
    """Decode frames from pieces of bytes of any size. The bytes come from a sandbox: all is checked.

    Attributes:
        signs: Number of signs of life.
    """

    def __init__(self) -> None:
        self.signs = 0
        self._data = bytearray()
        self._searched = 0
        self._frame: RequestFrame | Gone | None = None

    def feed(self, data: bytes) -> Iterator[tuple[RequestFrame | Gone, bytes]]:
        """Return the frames that `data` completes, each with its payload.

        Raises:
            ProtocolError: The data is no frame.
        """
        self._data += data
        while True:
            if self._frame is None:
                if self._data.startswith(b"\n") and (empty := _EMPTY.match(self._data)):
                    self.signs += empty.end()
                    del self._data[: empty.end()]
                end = self._data.find(b"\n", self._searched)
                if (end if end >= 0 else len(self._data)) > MAX_LINE:
                    raise ProtocolError("the relay inside sent a line that is too long")
                if end < 0:
                    self._searched = len(self._data)
                    return
                self._searched = 0
                line = bytes(self._data[:end])
                del self._data[: end + 1]
                try:
                    self._frame = _UP.validate_json(line)
                except ValidationError as error:
                    raise ProtocolError(
                        f"the relay inside sent an invalid frame ({error.errors()[0]['msg']})"
                    ) from None
            if len(self._data) < self._frame.n:
                return
            payload = bytes(self._data[: self._frame.n])
            del self._data[: self._frame.n]
            frame, self._frame = self._frame, None
            yield frame, payload


def pack(kind: str, id: int, payload: bytes = b"", **fields: object) -> bytes:
    """Encode a frame for the program inside: `head`, `data`, `end` or `fail`."""
    return orjson.dumps({"kind": kind, "id": id, "n": len(payload), **fields}) + b"\n" + payload


def signature(secret: bytes, role: str, nonce: str, path: str, body: bytes = b"") -> str:
    """Return the proof (hex) that the owner of `secret` sent `body` in the request of that nonce and path.

    Args:
        role: `host` or `relay`: neither can replay the other's proof.
    """
    return hmac.new(secret, f"{role}\n{nonce}\n{path}\n".encode() + body, "sha256").hexdigest()


class Question:
    """One request to the program inside, whose answer must carry a proof."""

    def __init__(self, secret: bytes, path: str, body: bytes = b"") -> None:
        self._secret = secret
        self._nonce = secrets.token_hex(16)
        self.path = path
        self.headers: Mapping[str, str] = {
            "X-Relay-Nonce": self._nonce,
            "X-Relay-Proof": signature(secret, "host", self._nonce, path, body),
        }

    def check(self, proof: bytes, body: bytes = b"") -> None:
        """Check a proof.

        Raises:
            Unproven: The proof is wrong.
        """
        wanted = signature(self._secret, "relay", self._nonce, self.path, body).encode()
        if not hmac.compare_digest(wanted, proof):
            raise Unproven("a request to the relay inside was answered, but not by the relay")

    def opened(self, answer: bytes) -> bytes:
        """Return a complete answer without its first line, which is the proof.

        Raises:
            Unproven: The proof is missing or wrong.
        """
        end = answer.find(b"\n", 0, MAX_PROOF + 1)
        body = answer[end + 1 :] if end >= 0 else b""
        self.check(answer[: max(end, 0)], body)
        return body
