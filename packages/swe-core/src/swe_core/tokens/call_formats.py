"""The notations in which models write tool calls. Each is read such that values stay as they were sampled."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from swe_core.tokens.argument_types import Types, json_value, written
from swe_core.tokens.renderer import Parsed
from swe_core.tokens.wire_messages import is_utf8, settled

_scan = json.JSONDecoder(strict=False).raw_decode
_BETWEEN, _COLON = re.compile(r"[\s;,]*"), re.compile(r"\s*:\s*")
_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args")
_ENDS = 256
"""Places at which a literal of Python may end that are tried."""


class Call(NamedTuple):
    """A tool call.

    Args:
        arguments: JSON as sampled; if it is no JSON, what was sampled in its place.
        id: Its id; None where the notation has none.
    """

    name: str
    arguments: str
    id: str | None = None


class Malformed(ValueError):
    """What begins like a call is none, or not complete."""


class CallFormat(ABC):
    """One notation.

    Attributes:
        opener: Where calls begin.
        streams: Whether only a token begins calls or reasoning, so that text before it is text for certain.
        frame: What a reply has around texts.
    """

    opener: re.Pattern[str]
    streams = True
    frame: re.Pattern[str] | None = None

    @abstractmethod
    def read(self, text: str, at: int, types: Types) -> tuple[list[Call], int]:
        """Return the calls that begin at `at`, where `opener` matches, and where they end.

        Raises:
            Malformed: There are none.
        """


class Tagged(CallFormat):
    """Values between tags, strings as they are: `<parameter=path>a.py</parameter>`.

    What follows a closing tag, and the declared type, show whether it ends the value or is a part of it.

    Args:
        open: Begins a block of calls.
        close: Ends the block.
        call: Pattern that begins a call, with a group `name`.
        ends: Pattern that ends a call; empty where the next one or the block's end does.
        key: Pattern before a value, with a group `key`; a group `text` is "true" for a string.
        value: Ends a value.
        lines: Whether values stand on lines of their own.
    """

    def __init__(
        self,
        open: str,
        close: str,
        call: str,
        ends: str,
        key: str,
        value: str,
        *,
        lines: bool = False,
        frame: str = "",
    ) -> None:
        self.frame = re.compile(frame) if frame else None
        self.opener = re.compile(re.escape(open))
        self._open, self._close, self._value_end, self._lines = open, close, value, lines
        self._call, self._key = re.compile(rf"\s*{call}"), re.compile(rf"\s*{key}")
        self._bare = re.compile(call) if ends else re.compile(r"(?!)")
        # A model that has ended its last call may leave out the block's end.
        closed = rf"(?P<closed>{re.escape(close)}|\Z)" if ends else rf"(?P<closed>{re.escape(close)})"
        self._end, self._closed = re.compile(rf"\s*{ends}"), re.compile(rf"\s*{closed}")
        follows = [_nameless(key), rf"{ends}\s*{closed}", *([rf"{ends}\s*{_nameless(call)}"] if ends else [])]
        self._follows = re.compile(rf"\s*(?:{'|'.join(follows)})")

    def read(self, text: str, at: int, types: Types) -> tuple[list[Call], int]:
        calls: list[Call] = []
        at += len(self._open)
        while (head := self._call.match(text, at)) is not None:
            at, values = head.end(), {}
            while (key := self._key.match(text, at)) is not None:
                value, at = self._value(text, key.end(), partial(types.may_be, head["name"], key["key"]))
                marked = key.groupdict().get("text")
                is_text = None if marked is None else marked == "true"
                values[key["key"]] = types.value(head["name"], key["key"], value, is_text)
            end = self._end.match(text, at)
            if end is None:
                raise Malformed
            at = end.end()
            calls.append(Call(head["name"], _object(values)))
        closed = self._closed.match(text, at)
        if closed is None or not calls:
            raise Malformed
        return calls, closed.end()

    def unopened(self, text: str, types: Types) -> list[Call]:
        """Return calls of offered tools at the end of a reply, where a block's begin was left out."""
        head = self._bare.search(text)
        if head is None:
            return []
        opened = self._open + text[head.start() :]
        try:
            calls, end = self.read(opened, 0, types)
        except Malformed:
            return []
        return [] if opened[end:].strip() or not all(types.offers(call.name) for call in calls) else calls

    def _value(self, text: str, start: int, may_be: Callable[[str], bool]) -> tuple[str, int]:
        """Return the value from `start` on, and where its end tag ends."""
        found, tries = -1, _TRIES
        end = text.find(self._value_end, start)
        while end >= 0:
            follows = self._follows.match(text, end + len(self._value_end))
            if follows is not None:
                doubtful = self._dangles(text, follows) or (tries > 0 and not may_be(text[start:end]))
                if found < 0 or not doubtful:
                    found = end
                if not doubtful:
                    break
                tries -= 1
            end = text.find(self._value_end, end + 1)
        if found < 0:
            raise Malformed
        value = text[start:found]
        if self._lines:
            value = value.removeprefix("\n").removesuffix("\n")
        return value, found + len(self._value_end)

    def _dangles(self, text: str, follows: re.Match[str]) -> bool:
        """Return whether the block ends once more after `follows`, so that it does not end there."""
        if follows["closed"] is None:
            return False
        close, opened = text.find(self._close, follows.end()), text.find(self._open, follows.end())
        return close >= 0 and not 0 <= opened < close


class Headed(CallFormat):
    """A name in tags, then arguments as JSON: `[TOOL_CALLS]bash[ARGS]{"command": "ls"}`.

    Args:
        open: Pattern that begins a section of calls.
        head: Pattern before the arguments, with a group `name`, and perhaps `id`.
        tail: Pattern after them.
        close: Pattern that ends the section.
    """

    def __init__(self, open: str, head: str, tail: str = "", close: str = "") -> None:
        self.opener = re.compile(open)
        self._head = re.compile(rf"\s*{head}\s*")
        self._tail, self._tails = re.compile(rf"\s*{tail}"), re.compile(tail)
        self._marked, self._close = bool(tail), re.compile(rf"\s*(?:{close})?")

    def read(self, text: str, at: int, types: Types) -> tuple[list[Call], int]:
        calls: list[Call] = []
        at = _after(self.opener, text, at)
        while (head := self._head.match(text, at)) is not None:
            try:
                value, raw, at = _value(text, head.end())
                arguments = _text(value, raw)
                end = self._tail.match(text, at)
            except Malformed:
                end = self._tails.search(text, head.end()) if self._marked else None
                arguments = text[head.end() : end.start()].rstrip() if end else ""
            if end is None:
                raise Malformed
            at = end.end()
            calls.append(Call(head["name"], arguments, head.groupdict().get("id")))
        return calls, _after(self._close, text, at)


class Objects(CallFormat):
    """JSON objects with a name and arguments, or a list of them: `{"name": "bash", "arguments": {}}`.

    Args:
        open: Pattern before them.
        close: Pattern after them.
        offered: Whether nothing but the JSON marks a call, so that only offered tools are called.
    """

    def __init__(self, open: str, close: str = "", *, offered: bool = False, frame: str = "") -> None:
        self.opener, self._close = re.compile(open), re.compile(rf"\s*(?:{close}|\Z)")
        self._offered = offered
        self.frame = re.compile(frame) if frame else None
        self.streams = not offered and not frame

    def read(self, text: str, at: int, types: Types) -> tuple[list[Call], int]:
        at = _after(self.opener, text, at)
        if text.startswith("[", at):
            _, _, end = _value(text, at)
            calls = [call for call, _ in self._each(text, at + 1, types)]
        else:
            found = list(self._each(text, at, types))
            calls, end = [call for call, _ in found], found[-1][1] if found else at
        closed = self._close.match(text, end)
        if closed is None or not calls:
            raise Malformed
        return calls, closed.end()

    def _each(self, text: str, at: int, types: Types) -> Iterable[tuple[Call, int]]:
        """Return each object's call, and where the object ends."""
        while text.startswith("{", at := _after(_BETWEEN, text, at)):
            members, end = _members(text, at)
            found = [members[key] for key in _NAMES if key in members]
            name = found[0][0] if found else None
            arguments: tuple[Any, str] = next(
                (members[key] for key in _ARGUMENTS if key in members), ({}, "{}")
            )
            if not isinstance(name, str) or (self._offered and not types.offers(name)):
                raise Malformed
            id_ = members.get("id", (None, ""))[0]
            yield Call(name, _text(*arguments), id_ if isinstance(id_, str) else None), end
            at = end


class Gemma(CallFormat):
    """Gemma 4: `<|tool_call>call:bash{command:<|"|>ls<|"|>,all:true}<tool_call|>`."""

    opener = re.compile(r"<\|tool_call>\s*")
    streams = False  # "thought" after a token may be the name of a channel
    _QUOTE = '<|"|>'
    _HEAD = re.compile(r"call:(?P<name>[^{]+)\{")
    _KEY = re.compile(
        r"(?P<key>.*?):\s*(?=<\|\"\|>|[\[{]|(?:-?[\d.]+(?:[eE][+-]?\d+)?|[Tt]rue|[Ff]alse|null|None)\s*[,}\]])",
        re.DOTALL,
    )
    _END = re.compile(r"\}\s*(?:<tool_call\|>|\Z)")
    _AFTER = re.compile(r"\s*[,\]}]")
    _BARE = re.compile(r"[^,\]}]*")

    def read(self, text: str, at: int, types: Types) -> tuple[list[Call], int]:
        head = self._HEAD.match(text, _after(self.opener, text, at))
        if head is None:
            raise Malformed
        value, at = self._object(text, head.end())
        end = self._END.match(text, at - 1)
        if end is None:
            raise Malformed
        return [Call(head["name"], value)], end.end()

    def _object(self, text: str, at: int) -> tuple[str, int]:
        values: dict[str, str] = {}
        while not text.startswith("}", at := _after(_BETWEEN, text, at)):
            key = self._KEY.match(text, at)
            if key is None:
                raise Malformed
            name = key["key"].removeprefix(self._QUOTE).removesuffix(self._QUOTE)
            values[name], at = self._any(text, key.end())
        return _object(values), at + 1

    def _list(self, text: str, at: int) -> tuple[str, int]:
        values = []
        while not text.startswith("]", at := _after(_BETWEEN, text, at)):
            value, at = self._any(text, at)
            values.append(value)
        return f"[{', '.join(values)}]", at + 1

    def _any(self, text: str, at: int) -> tuple[str, int]:
        if text.startswith("{", at):
            return self._object(text, at + 1)
        if text.startswith("[", at):
            return self._list(text, at + 1)
        if not text.startswith(self._QUOTE, at):
            end = _after(self._BARE, text, at)
            if end == at:
                raise Malformed
            return Types(None).value("", "", text[at:end].strip()), end
        start = at + len(self._QUOTE)
        end = text.find(self._QUOTE, start)
        while end >= 0 and not self._AFTER.match(text, end + len(self._QUOTE)):
            end = text.find(self._QUOTE, end + 1)
        if end < 0:
            raise Malformed
        return _string(text[start:end]), end + len(self._QUOTE)


class Pythonic(CallFormat):
    """LFM2: calls of functions in Python, `<|tool_call_start|>[bash(command='ls')]<|tool_call_end|>`.

    Some templates print strings with escapes, others as they are. What is no literal of Python is the latter.
    """

    opener = re.compile(r"<\|tool_call_start\|>\s*\[?")
    _CLOSE = r"\]?+\s*<\|tool_call_end\|>"
    _CALL = re.compile(r"\s*+,?\s*(?P<name>[\w.-]+)\(")
    _KEY = re.compile(r"\s*+,?\s*(?P<key>\w+)\s*=\s*")
    _CLOSED = re.compile(rf"\s*+{_CLOSE}")
    _CLOSERS: ClassVar = {"'": "'", '"': '"', "[": "]", "{": "}", "(": ")"}
    _END = re.compile(rf"(?=,\s*\w+\s*=|\)\s*(?:,\s*[\w.-]+\(|{_CLOSE}))")

    def read(self, text: str, at: int, types: Types) -> tuple[list[Call], int]:
        calls = []
        at = _after(self.opener, text, at)
        while (head := self._CALL.match(text, at)) is not None:
            at, values = head.end(), {}
            while (key := self._KEY.match(text, at)) is not None:
                values[key["key"]], at = self._literal(text, key.end())
            if not text.startswith(")", at):
                raise Malformed
            at += 1
            calls.append(Call(head["name"], _object(values)))
        end = self._CLOSED.match(text, at)
        if end is None or not calls:
            raise Malformed
        return calls, end.end()

    def _literal(self, text: str, start: int) -> tuple[str, int]:
        quote, raw = text[start : start + 1], None
        found = ((text[start : end.start()].rstrip(), end) for end in self._END.finditer(text, start + 1))
        closer = self._CLOSERS.get(quote, "")
        for literal, end in islice((one for one in found if one[0].endswith(closer)), _ENDS):
            value = json_value(literal)
            if value is not None:
                return value[1], end.end()
            if raw is None and quote in ("'", '"') and len(literal) > 1:
                raw = _string(literal[1:-1]), end.end()
        if raw is None:
            raise Malformed
        return raw


class Harmony(CallFormat):
    """gpt-oss: each part of a reply is a message of its own, for a channel or a tool."""

    opener = re.compile(r"(?!)")  # calls are messages
    streams = False
    _MESSAGE = re.compile(
        r"\s*+(?:<\|(?:end|call|return)\|>)?(?P<head>(?:(?!<\|message\|>|<\|end\|>).)*)<\|message\|>",
        re.DOTALL,
    )
    _TO = re.compile(r"\bto=functions\.(?P<name>[^\s<]+)")
    _END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|start\|>)|\Z")

    def read(self, text: str, at: int, types: Types) -> tuple[list[Call], int]:
        raise Malformed

    def read_reply(self, text: str, ended: bool) -> Parsed:
        """Return what a reply says: see `Renderer.parse`."""
        texts: dict[str, list[str]] = {"analysis": [], "final": []}
        calls, at = [], 0
        while (message := self._MESSAGE.match(text, at)) is not None:
            start, head = message.end(), message["head"]
            to, at = self._TO.search(head), start
            with suppress(Malformed):  # arguments that are no JSON end as any text does
                at = _value(text, start)[2] if to else start
            end = self._END.search(text, at) or message  # it matches the end of the text
            body, at = text[start : end.start()], end.end()
            if to is not None:
                calls.append((to["name"], body.strip(), None))
            else:
                texts["analysis" if "analysis" in head else "final"].append(body)
        texts["final"].append("" if not ended or at else text)
        content, reasoning = ("\n".join(filter(None, texts[key])) for key in ("final", "analysis"))
        return Parsed(settled(content, ended), settled(reasoning, ended) or None, tuple(calls))


def _nameless(pattern: str) -> str:
    return re.sub(r"\?P<\w+>", "?:", pattern)


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    """Return where `pattern` ends that matches at `at`."""
    found = pattern.match(text, at)
    if found is None:
        raise Malformed
    return found.end()


def _value(text: str, at: int) -> tuple[Any, str, int]:
    """Return the JSON value that begins at `at`, its text, and its end."""
    try:
        value, end = _scan(text, at)
    except (ValueError, RecursionError):
        raise Malformed from None
    return value, text[at:end], end


def _members(text: str, at: int) -> tuple[dict[str, tuple[Any, str]], int]:
    """Return the members of the JSON object that begins at `at`, each with its text, and the object's end."""
    _, _, end = _value(text, at)
    members: dict[str, tuple[Any, str]] = {}
    at = _after(_BETWEEN, text, at + 1)
    while not text.startswith("}", at):
        key, _, at = _value(text, at)
        value, raw, at = _value(text, _after(_COLON, text, at))
        members[key] = value, raw
        at = _after(_BETWEEN, text, at)
    return members, end


def _text(value: object, raw: str) -> str:
    """Return sampled arguments as text: some models write the object as a string."""
    if isinstance(value, str) and is_utf8(value):
        return value
    if value is None:
        return "{}"
    try:
        json.loads(raw)
    except RecursionError:
        pass
    except ValueError:  # a line's end inside a string: models write it, clients refuse it
        return written(value)
    return raw


def _object(values: dict[str, str]) -> str:
    """Return a JSON object of JSON values."""
    return f"{{{', '.join(f'{_string(key)}: {value}' for key, value in values.items())}}}"


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_TRIES = 32  # ends of a value that are compared with its type, each of which may take its whole length
_FUNCTION = (r"<function=(?P<name>[^<>\n]+)>", "</function>", r"<parameter=(?P<key>[^>\n]+)>", "</parameter>")
_INVOKE = (
    r'<invoke name="(?P<name>[^"\n]+)">',
    "</invoke>",
    r'<parameter name="(?P<key>[^"\n]+)">',
    "</parameter>",
)
_ATEM = [
    p.replace("</", "</atem:").replace("<inv", "<atem:inv").replace("<par", "<atem:par") for p in _INVOKE
]
_DSML = (
    r'<｜DSML｜invoke name="(?P<name>[^"\n]+)">',
    "</｜DSML｜invoke>",
    r'<｜DSML｜parameter name="(?P<key>[^"\n]+)"(?: string="(?P<text>true|false)")?>',
    "</｜DSML｜parameter>",
)
_ARGUMENT = (
    r"<arg_key{0}>(?P<key>.*?)</arg_key{0}>\s*<arg_value{0}>",
    "</arg_value{0}>",
)
_SECTION = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_MUSE = r"(?:<\|start\|>assistant|(?<!\s))\s*+to=\w+<\|message\|>|<\|eom\|>"
_INKLING = r"<\|(?:message_model|content_text|end_message)\|>"
_HY = ":opensource"

CALL_FORMATS: dict[str, CallFormat] = {
    "qwen3_coder": Tagged("<tool_call>", "</tool_call>", *_FUNCTION, lines=True),
    "seed_oss": Tagged("<seed:tool_call>", "</seed:tool_call>", *_FUNCTION),
    "glm45": Tagged(
        "<tool_call>", "</tool_call>", r"(?P<name>[^\s<{]+)", "", *(p.format("") for p in _ARGUMENT)
    ),
    "hy_v3": Tagged(
        f"<tool_calls{_HY}>",
        f"</tool_calls{_HY}>",
        rf"<tool_call{_HY}>(?P<name>[^<]+?)<tool_sep{_HY}>",
        f"</tool_call{_HY}>",
        *(p.format(_HY) for p in _ARGUMENT),
    ),
    "hermes": Objects(r"<tool_call>\s*", "</tool_call>"),
    "minimax_m2": Tagged("<minimax:tool_call>", "</minimax:tool_call>", *_INVOKE),
    "muse_glimmer": Tagged("<atem:function_calls>", "</atem:function_calls>", *_ATEM, frame=_MUSE),
    "deepseek_v32": Tagged("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", *_DSML),
    "deepseek_v4": Tagged("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", *_DSML),
    "deepseek_v31": Headed(
        _SECTION[0], rf"{_SECTION[1]}(?P<name>[^<\n]+){_SECTION[2]}(?!\S+\n```)", *_SECTION[3:]
    ),
    "deepseek_v3": Headed(
        _SECTION[0],
        rf"{_SECTION[1]}[^<\n]*{_SECTION[2]}(?P<name>[^<\n]+)\n```(?:json)?\n",
        rf"```\s*{_SECTION[3]}",
        _SECTION[4],
    ),
    "kimi_k2": Headed(
        r"<\|tool_calls_section_begin\|>",
        r"<\|tool_call_begin\|>\s*(?P<id>(?:functions\.)?(?P<name>[^<:\s]+)(?::\d+)?)\s*"
        r"<\|tool_call_argument_begin\|>",
        r"<\|tool_call_end\|>",
        r"<\|tool_calls_section_end\|>",
    ),
    "mistral": Headed(
        r"\[TOOL_CALLS\](?!\s*\[)",
        r"(?:\[TOOL_CALLS\])?(?P<name>[^\[\]{}\s]+)(?:\[CALL_ID\](?P<id>[^\[\s]+))?(?:\[ARGS\]|(?=\{))",
    ),
    "mistral_list": Objects(r"\[TOOL_CALLS\]\s*"),
    "gemma4": Gemma(),
    "openai": Harmony(),
    "lfm2": Pythonic(),
    "minimax_m1": Objects(r"<tool_calls>\s*", "</tool_calls>"),
    "nemotron": Objects(r"<TOOLCALL>\s*", "</TOOLCALL>"),
    "granite": Objects(r"<\|tool_call\|>\s*", r"(?:<\|/tool_call\|>)?"),
    "command": Objects(r"<\|START_ACTION\|>\s*", r"<\|END_ACTION\|>"),
    "inkling": Objects(
        r"(?:<\|message_model\|>)?[^<]{0,128}<\|content_invoke_tool_json\|>\s*",
        r"<\|end_message\|>",
        frame=_INKLING,
    ),
    "llama3_json": Objects(r"(?:<\|python_tag\|>\s*)?(?=\{\s*\"(?:type|name|function)\")", offered=True),
}
"""Notations, by vLLM's names of its parsers where it has one. The first that reads a past call is taken."""
