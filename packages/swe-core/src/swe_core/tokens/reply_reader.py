"""ReplyReader: the text of a growing reply, without parsing the whole reply for each id."""

from __future__ import annotations

from collections.abc import Sequence

from swe_core.tokens.renderer import Renderer, Tools
from swe_core.tokens.wire_messages import lasting, settled

_REASONING, _CONTENT, _HIDDEN = 0, 1, 2
_Texts = tuple[str, str]


class ReplyReader:
    """Read one reply as it grows.

    Only marks (the tokenizer's added tokens) change the kind of the ids after them: reasoning, content, or
    part of a call. So the whole reply is parsed at each mark, and until a parse shows the kind of the
    following ids. From there on ids are decoded and appended.

    Args:
        ids: The sampled ids, a list that grows.
        tail: The end of the prompt, as `Renderer.parse` takes it.
    """

    def __init__(self, renderer: Renderer, ids: Sequence[int], tail: Sequence[int], tools: Tools) -> None:
        self._renderer = renderer
        self._ids = ids
        self._tail = tail
        self._tools = tools
        self._texts: _Texts = ("", "")
        self._read = 0
        self._looked = 0
        self._segment = 0  # start of the ids after the last mark
        self._open: int | None = None  # the text that they belong to
        self._clean = 0  # start of the ids whose decoding may change
        self._base = ""  # that text up to there
        self._blank = ""  # the white space decoded after it

    def may_tell(self) -> bool:
        """Return whether the new ids may change the texts."""
        start, self._looked = self._looked, len(self._ids)
        return self._open != _HIDDEN or not self._renderer.marks.isdisjoint(self._ids[start:])

    def read(self) -> _Texts:
        """Return the reasoning and the content that no later id can change."""
        end = len(self._ids)
        new = self._ids[self._read : end]
        marks = self._renderer.marks
        if self._open is None or not marks.isdisjoint(new):
            if self._open is None and len(new) < end // 20:  # all parses cost some twenty of the last one
                return self._texts
            at = next((n for n in range(end, self._read, -1) if self._ids[n - 1] in marks), self._segment)
            self._segment, self._open = at, None
            self._texts = self._parse(end)
            if self._renderer.splits:
                self._learn(end)
        elif self._open != _HIDDEN:
            self._append(end)
        self._read = end
        return self._texts

    def _parse(self, end: int) -> _Texts:
        parsed = self._renderer.parse(self._ids[:end], self._tail, self._tools, ended=False)
        return parsed.reasoning or "", parsed.content

    def _learn(self, end: int) -> None:
        """Find the text of the ids since the last mark."""
        decoded = self._renderer.text(self._ids[self._segment : end])
        text = settled(decoded, ended=False)
        if not text or decoded.endswith("\ufffd"):
            return
        before = self._parse(self._segment) if self._segment else ("", "")
        grown = [n for n in (_REASONING, _CONTENT) if self._texts[n] != before[n]]
        if not grown and self._segment > 1:  # the first id may begin a header, which is held back
            self._open = _HIDDEN
        elif len(grown) == 1:
            (one,) = grown
            new = self._texts[one].removeprefix(before[one])
            if self._texts[one].startswith(before[one]) and new.lstrip() == text:
                self._open = one
                self._base, self._blank = self._texts[one], decoded[len(lasting(decoded)) :]
                self._clean = end

    def _append(self, end: int) -> None:
        """Append the ids since the last reading to their text."""
        decoded = self._blank + self._renderer.text(self._ids[self._clean : end])
        shown = lasting(decoded)
        text = self._base + shown
        self._texts = (text, self._texts[1]) if self._open == _REASONING else (self._texts[0], text)
        if not decoded.endswith("\ufffd"):
            self._base, self._blank, self._clean = text, decoded[len(shown) :], end
