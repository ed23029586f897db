"""Feed: decodes the output of `inside/follow.sh` to exact bytes, however its text is cut or interrupted."""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from swe_core.api.sandbox import Stream

_STREAMS: dict[str, Stream] = {"o": "stdout", "e": "stderr"}


LONGEST = 2 * 1024 * 1024
"""Maximum characters of a line: follow.sh encodes one MiB at a time, and some base64 writes no newlines."""
_NUMBER, _CODE = re.compile(r"[0-9]{1,15}"), re.compile(r"[0-9]{1,3}")


class Garbled(Exception):
    """Output that follow.sh never writes: the connection or the sandbox's shell is broken."""


@dataclass(slots=True)
class Feed:
    """The received state of one command.

    After an interrupted text, call `broken`, then add the text of a follow.sh that starts at `offsets`.

    Attributes:
        started: Whether the command has started.
        code: The exit code, after the command's end and with all output received.
        offsets: Received bytes of each stream.
    """

    started: bool = False
    code: int | None = None
    offsets: dict[Stream, int] = field(default_factory=lambda: {"stdout": 0, "stderr": 0})
    _line: str = ""
    _stream: Stream | None = None

    def add(self, text: str) -> Iterator[tuple[Stream, bytes]]:
        """Add a piece of text and yield the bytes that it completes.

        Raises:
            Garbled: follow.sh does not write such text.
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
            if not line:  # refused, because they could continue for ever
                raise Garbled("an empty line")
            if not line.startswith("."):
                held.append(line)
                continue
            yield from self._decoded(held)
            held = []
            self._marker(line)
        yield from self._decoded(held)

    def broken(self) -> None:
        """Handle an interrupted text: drop the unfinished line."""
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
        except ValueError:  # also what is not ASCII
            raise Garbled(text[:100]) from None
        self.offsets[self._stream] += len(data)
        yield self._stream, data
