"""The calls of `inside/call.sh`: what a shell tool is asked, and what its reply says."""

from __future__ import annotations

import base64
import binascii
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources

from swe_core.api.sandbox import Stream
from swe_openenv.play.replies import texts

_INSIDE = resources.files("swe_openenv.play") / "inside"


def _script(name: str) -> str:
    """Return a script without its comments, which would travel with every call."""
    lines = (_INSIDE / name).read_text().splitlines()
    return "\n".join(line for line in lines if not line.startswith("#"))


CALL, SUPERVISE = _script("call.sh"), _script("supervise.sh")
OVERHEAD = 2 * (len(CALL) + len(SUPERVISE))
"""Characters of a call apart from its data, with room for quotes."""
SAMPLE = base64.b64encode(bytes(5)).decode()
"""What a check has the programs make."""
_STREAMS: Mapping[str, Stream] = {"o": "stdout", "e": "stderr"}
_LARGEST_CODE = 255
_NUMBER = re.compile(r"[0-9]{1,15}")


class Garbled(Exception):
    """A reply does not hold the answer that `call.sh` gives."""


@dataclass(slots=True)
class News:
    """What a reply says about one command.

    Args:
        chunks: New output: stream, offset, bytes.
        code: The exit code, once all output was sent.
        gone: Whether the files of the command are gone.
    """

    chunks: list[tuple[Stream, int, bytes]] = field(default_factory=list)
    code: int | None = None
    gone: bool = False

    def __bool__(self) -> bool:
        return bool(self.chunks) or self.code is not None or self.gone


@dataclass(slots=True)
class Answer:
    """A parsed reply.

    Args:
        news: Mark of a command → what is new; for a probe the mark is "".
        base: The directory for files of commands.
        padding: Length of a probe's padding as it arrived.
        killed: The exit code of `kill_tree.sh`.
        failure: Why the call failed.
        missing: Programs that are not there any more.
        sample: What the programs made of `SAMPLE`; "" where they could not run.
    """

    news: dict[str, News] = field(default_factory=dict)
    base: str | None = None
    padding: int | None = None
    killed: int | None = None
    failure: str | None = None
    missing: list[str] = field(default_factory=list)
    sample: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """One call, with marks that no other one has.

    Args:
        arguments: ROOM BASE MODE ARGUMENTS... of `call.sh`.
    """

    arguments: Sequence[str]
    first: str = field(default_factory=lambda: secrets.token_hex(8))
    second: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def command(self) -> str:
        """Return the shell command. A shell reads it, and so does what splits it as one would."""
        return shlex.join(["sh", "-c", CALL, "sh", self.first, self.second, *self.arguments])

    @property
    def in_place(self) -> str:
        """Return the command for the shell that the tool runs already, which needs no program for it."""
        return f"( set -- {shlex.join([self.first, self.second, *self.arguments])}\n{CALL}\n)"

    def answer(self, reply: object) -> Answer:
        """Find the answer in a tool's reply.

        Raises:
            Garbled: There is none, or it is incomplete.
        """
        begin, end = f"{self.first}{self.second}<", f">{self.second}{self.first}"
        cut = False
        for text in texts(reply):
            _, found, rest = _unwrapped(text).partition(begin)
            body, complete, _ = rest.partition(end)
            if complete:
                return _parsed(body)
            cut = cut or bool(found)
        raise Garbled("its reply was cut off" if cut else "its reply does not hold the output of the command")


def _unwrapped(text: str) -> str:
    """Return the text without blanks and line breaks: a tool may wrap lines, also within JSON."""
    return "".join(text.split()).replace("\\r", "").replace("\\n", "")


def _parsed(body: str) -> Answer:
    answer = Answer()
    news = answer.news.setdefault("", News())
    for text in filter(None, body.split(";")):
        match text.split(","):
            case ["m", mark]:
                news = answer.news.setdefault(mark, News())
            case ["o" | "e" as letter, offset, size, data] if _NUMBER.fullmatch(offset):
                content = decoded(data)
                if size != str(len(content)):
                    raise Garbled(f"its reply has {len(content)} of {size} bytes")
                news.chunks.append((_STREAMS[letter], int(offset), content))
            case ["x", code] if _NUMBER.fullmatch(code) and int(code) <= _LARGEST_CODE:
                news.code = int(code)
            case ["g", ""]:
                news.gone = True
            case ["b", path]:
                answer.base = decoded(path).decode(errors="replace")
            case ["l", count] if _NUMBER.fullmatch(count):
                answer.padding = int(count)
            case ["k", code] if _NUMBER.fullmatch(code):
                answer.killed = int(code)
            case ["n", program]:
                answer.missing.append(program)
            case ["c", data]:
                answer.sample = data
            case ["f", why]:
                answer.failure = decoded(why).decode(errors="replace")
            case _:
                raise Garbled(f"its reply has {text[:60]!r}")
    return answer


def decoded(data: str) -> bytes:
    """Return the bytes of base64.

    Raises:
        Garbled: It is none.
    """
    try:
        return binascii.a2b_base64(data, strict_mode=True) if data else b""
    except ValueError:  # also non-ASCII text
        raise Garbled("its reply was changed on the way") from None


def encoded(data: bytes) -> str:
    """Return base64 without line breaks."""
    return base64.b64encode(data).decode()


def command_file(argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> bytes:
    """Return the script that runs a program: without a shell in between, and without a file that stays."""
    lines = ['rm -f -- "$d/command" "$d/in"', f"cd {shlex.quote(cwd)} || exit 126"]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    return "\n".join([*lines, f"exec {shlex.join(argv)}", ""]).encode(errors="surrogateescape")
