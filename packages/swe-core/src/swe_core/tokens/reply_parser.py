"""ReplyParser: what a sampled reply says: reasoning, text and calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any

from swe_core.api.messages import Message
from swe_core.errors import RequestRefused
from swe_core.tokens.argument_types import Types
from swe_core.tokens.call_formats import CALL_FORMATS, Call, CallFormat, Harmony, Malformed, Tagged
from swe_core.tokens.encoder import takes_characters_back
from swe_core.tokens.probe_messages import reply, user
from swe_core.tokens.renderer import Parsed, Tools
from swe_core.tokens.wire_messages import is_name, settled

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINKING = (
    ("<think>", "</think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|content_thinking|>", "<|end_message|>"),
    (" to=self<|message|>", "<|eom|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""Marks around reasoning."""
_CUE = 8
"""Ids of the prompt's end in which a mark may open the reasoning."""
_TRIED = 500_000
"""Characters after malformed blocks, all together, that are read once more."""
_SPELLED = ("\ufdd0", "\ufdd1", "\ufdd2")
"""Characters that no text has (Unicode's noncharacters), one of which breaks marks that are spelled out."""


class ReplyParser:
    """Reads replies.

    A mark counts as one only if it was sampled as its token, where the tokenizer has a token for it.

    Args:
        calls: The notation of calls; None where it is unknown: they are text.
        source: The chat template, which may name marks of reasoning that are no tokens; None if any may be.

    Attributes:
        streams: Whether no later id turns text into reasoning or a call.
        marks: See `Renderer.marks`.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, calls: CallFormat | None, source: str | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._calls = calls
        self.finds_calls = calls is not None
        added = tokenizer.get_added_vocab()
        names = sorted(filter(str.strip, added), key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names)) or r"(?!)")
        self.marks = frozenset(added.values())
        self._named = frozenset(added[name] for name in names)
        self._thinking = [pair for pair in THINKING if all(map(self._names.match, pair))]
        spelled = not self._thinking
        if spelled:
            self._thinking = [pair for pair in THINKING if source is None or pair[1] in source]
        opens = calls is None or (calls.streams and any(map(calls.opener.match, added)))
        plain = not (spelled and self._thinking) and not takes_characters_back(tokenizer)
        self.streams = opens and plain

    def parse(self, completion: Sequence[int], tail: Sequence[int], tools: Tools, ended: bool) -> Parsed:
        """Return the content of a completion's ids, without the token that stops it. See `Renderer.parse`."""
        cue = self._text(tail[-_CUE:]).rstrip()
        text, spelled = self._written(completion)
        found = read_reply(self._calls, text, cue, tools, ended, self._thinking)
        if spelled is None:
            return found
        calls = tuple((name, text.replace(spelled, ""), id_) for name, text, id_ in found.calls)
        reasoning = found.reasoning and found.reasoning.replace(spelled, "")
        return Parsed(found.content.replace(spelled, ""), reasoning, calls)

    def _written(self, ids: Sequence[int]) -> tuple[str, str | None]:
        """Return the text of ids, and the character that breaks marks in it that are no tokens, if any."""
        whole = self._text(ids)
        sampled = sum(map(self._named.__contains__, ids))
        if len(self._names.findall(whole)) == sampled:
            return whole, None
        spelled = next((one for one in _SPELLED if one not in whole), "")
        parts, start = [], 0
        for end, id_ in [*enumerate(ids), (len(ids), None)]:
            if id_ is None or id_ in self._named:
                part = self._text(ids[start:end])
                parts.append(self._names.sub(lambda mark: mark[0][0] + spelled + mark[0][1:], part))
                parts.append("" if id_ is None else self._text([id_]))
                start = end + 1
        return "".join(parts), spelled or None

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


def until(ids: Sequence[int], stop_ids: Collection[int]) -> Sequence[int]:
    """Return `ids` up to the first of `stop_ids`."""
    stop = next((at for at, id_ in enumerate(ids) if id_ in stop_ids), None)
    return ids if stop is None else ids[:stop]


def read_reply(
    calls: CallFormat | None,
    text: str,
    cue: str,
    tools: Tools,
    ended: bool = True,
    thinking: Sequence[tuple[str, str]] = (),
) -> Parsed:
    """Return what a reply says.

    Args:
        cue: The end of its prompt, which may open the reasoning.
        ended: See `Renderer.parse`.
        thinking: Marks that may surround reasoning.
    """
    types = Types(tools)
    if isinstance(calls, Harmony):
        return calls.read_reply(text, ended)
    reasoning, at = _reasoning(calls, text, cue, types, thinking, ended)
    texts, found = [], []
    for start, end, block in _blocks(calls, text, at, types):
        texts.append(text[at:start])
        if not ended:  # more of the reply may show that the call ends later
            at = len(text)
            break
        found += block
        at = end
    texts.append(text[at:])
    if ended and not found and isinstance(calls, Tagged):  # as Qwen3-Coder writes; its text was told already
        found = calls.unopened(texts[-1], types)
    if calls is not None and calls.frame is not None:
        texts = [calls.frame.sub("", one) for one in texts]
    content = "\n".join(filter(None, map(str.strip, texts))) if len(texts) > 1 else texts[0]
    return Parsed(
        settled(content, ended),
        settled(reasoning, ended) or None,
        tuple((call.name, call.arguments, call.id) for call in found),
    )


def _reasoning(
    calls: CallFormat | None,
    text: str,
    cue: str,
    types: Types,
    thinking: Sequence[tuple[str, str]],
    ended: bool,
) -> tuple[str, int]:
    """Return the reasoning that begins a reply, and where it ends."""
    thoughts: list[str] = []
    at = 0
    for opened, closed in thinking:
        start = 0 if cue.endswith(opened.rstrip()) else None
        while True:
            if start is None:
                start = at + len(text[at:]) - len(text[at:].lstrip())
                if not text.startswith(opened, start):
                    break
                start += len(opened)
            end = text.find(closed, start)
            if end < 0:  # a call ends reasoning that was left open; what begins like one may become one
                blocks = _blocks(calls, text, start, types)
                first = next((begin for begin, _, block in blocks if block or not ended), len(text))
                return "\n".join([*thoughts, text[start:first]]), first
            thoughts.append(text[start:end])
            at, start = end + len(closed), None
    return "\n".join(thoughts), at


def _blocks(
    calls: CallFormat | None, text: str, at: int, types: Types
) -> Iterator[tuple[int, int, list[Call]]]:
    """Yield start, end and calls of each block of calls; end as start and no calls where it is malformed.

    After many malformed ones the rest is text: each may take as long as the text.
    """
    tried = 0
    while calls is not None and (begin := calls.opener.search(text, at)) is not None:
        start = begin.start()
        try:
            found, at = calls.read(text, start, types)
            if not all(is_name(call.name) for call in found):
                raise Malformed
        except (Malformed, RecursionError):
            at = max(begin.end(), start + 1)
            yield start, start, []
            tried += len(text) - start
            if tried > _TRIED:
                return
        else:
            yield start, at, found


_IDS = (("call00001", "call00002"), ("functions.edit:0", "functions.edit:1"))
"""Ids as formats want them: Mistral nine characters, Kimi the name."""
_TOLD = re.compile(r'<tool_call>\s*\{"name"')
_ASKED = "Kaleidoscope?"
_VALUES = {"path": "  it's \\n\n", "count": 3, "all": True, "lines": [1, {"x": "y"}]}
_ARGUMENTS = json.dumps(_VALUES)
_EDIT: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "edit",
            "description": "Edit a file.",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string", "description": "Its path."},
                    "count": {"type": "integer", "description": "How many."},
                    "all": {"type": "boolean", "description": "Whether all."},
                    "lines": {"type": "array", "description": "Which.", "items": {}},
                },
                "required": ["path"],
            },
        },
    }
]


def recognise(show: Callable[[Sequence[Message], Tools], str]) -> CallFormat | None:
    """Return the notation in which a chat format prints calls: the one that reads a past call back.

    Args:
        show: Returns a conversation as text; raises RequestRefused where it cannot.
    """
    wanted = [("edit", _VALUES), ("edit", _VALUES)]
    for number, ids in product((2, 1), _IDS):
        past = reply("", None, *((id_, "edit", _ARGUMENTS) for id_ in ids[:number]))
        try:
            text = show([user(_ASKED), past], _EDIT).rpartition(_ASKED)[2]
        except RequestRefused:
            continue
        for calls in CALL_FORMATS.values():
            found = read_reply(calls, text, "", _EDIT).calls
            with suppress(ValueError):
                if [(name, json.loads(arguments)) for name, arguments, _ in found] == wanted[:number]:
                    return calls
    with suppress(RequestRefused):  # some templates print no past calls, and tell the model how to write them
        if _TOLD.search(show([user(_ASKED)], _EDIT)):
            return CALL_FORMATS["hermes"]
    return None
