"""Feed: a decoder of the output of `inside/follow.sh` that restores the exact bytes after interruptions."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from swe_core.api.sandbox import Stream
from swe_core.sandboxing.followed.failures import Garbled

_STREAMS: dict[str, Stream] = {"o": "stdout", "e": "stderr"}


LONGEST = 2 * 1024 * 1024
"""Maximum characters of an unfinished line. follow.sh encodes 1 MiB at a time, with some base64 programs
without newlines."""
_NUMBER, _CODE = re.compile(r"[0-9]{1,15}"), re.compile(r"[0-9]{1,3}")


@dataclass(slots=True)
class Feed:
    """The received state of one command.

    After an interruption of the text, call `broken`, start follow.sh again at `offsets`, and add its text.

    Attributes:
        started: Whether the command has started.
        code: Its exit code, once it has ended and all of its output has arrived.
        offsets: Received bytes of each stream.
    """

    started: bool = False
    code: int | None = None
    offsets: dict[Stream, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    _line: str = ""
    _stream: Stream | None = None

    def add(self, text: str) -> Iterator[tuple[Stream, bytes]]:
        """Add a piece of text, and yield the bytes that it completes.

        Raises:
            Garbled: The text is not the output of follow.sh.
        """
        whole, newline, rest = text.rpartition("\n")
        if not newline:
            if len(self._line) + len(text) > LONGEST:
                raise Garbled(f"a line of more than {LONGEST} characters: {self._line[:100]}")
            self._line += text
            return
        lines = (self._line + whole).split("\n")
        self._line = rest
        held: list[str] = []
        for line in lines:
            if not line:  # an endless sequence of them must fail
                raise Garbled("an empty line")
            if not line.startswith("."):
                held.append(line)
                continue
            yield from self._decoded(held)
            held = []
            self._marker(line)
        yield from self._decoded(held)

    def broken(self) -> None:
        """Drop the unfinished line after an interruption of the text."""
        self._line = ""
        self._stream = None

    def _marker(self, line: str) -> None:
        match line.split(" "):
            case [".s"]:
                self.started = True
            case [".t"]:
                pass
            case [".o" | ".e" as letter, offset] if _NUMBER.fullmatch(offset):
                self._stream = _STREAMS[letter[1]]
                if int(offset) != self.offsets[self._stream]:
                    raise Garbled(f"byte {offset} of {self._stream}, expected {self.offsets[self._stream]}")
            case [".x", code] if _CODE.fullmatch(code):
                self.code = int(code)
            case _:
                raise Garbled(line[:100])

    def _decoded(self, lines: list[str]) -> Iterator[tuple[Stream, bytes]]:
        if not lines:
            return
        text = "".join(lines)
        if self._stream is None:
            raise Garbled(text[:100])
        try:
            data = binascii.a2b_base64(text, strict_mode=True)
        except ValueError:  # also non-ASCII text
            raise Garbled(text[:100]) from None
        self.offsets[self._stream] += len(data)
        yield self._stream, data
