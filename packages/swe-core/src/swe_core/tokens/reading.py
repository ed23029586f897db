"""Reader: the text of a reply while it is sampled, without reading the reply again for each id."""

from __future__ import annotations

from collections.abc import Sequence

from swe_core.tokens.renderer import Renderer, Tools
from swe_core.tokens.wire_messages import lasting, settled

_REASONING, _CONTENT, _HIDDEN = 0, 1, 2
_Texts = tuple[str, str]


class Reader:
    """Reads one reply as it grows.

    Only marks, which are the tokenizer's added tokens, change what the ids after them are: reasoning, content
    or part of a call. So the reply is parsed whole at each mark, and until a parse has shown which text the
    ids after the mark go to. From there on the ids are decoded and appended, a few at a time.

    Args:
        ids: What was sampled, a list that grows.
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
        self._segment = 0  # where the ids after the last mark begin
        self._open: int | None = None  # which text they go to
        self._clean = 0  # where the ids begin that are not decoded for good
        self._base = ""  # that text up to there
        self._blank = ""  # the white space that was decoded after it

    def may_tell(self) -> bool:
        """Whether the ids that came since the last look may show in the texts."""
        start, self._looked = self._looked, len(self._ids)
        return self._open != _HIDDEN or not self._renderer.marks.isdisjoint(self._ids[start:])

    def read(self) -> _Texts:
        """The reasoning and the content as far as they will stay, whatever ids follow."""
        end = len(self._ids)
        new = self._ids[self._read : end]
        marks = self._renderer.marks
        if self._open is None or not marks.isdisjoint(new):
            if self._open is None and len(new) < end // 20:  # so all parses cost some twenty of the last one
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
        """Find out which text the ids since the last mark went to."""
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
        """Add the ids since the last reading to the text that they go to."""
        decoded = self._blank + self._renderer.text(self._ids[self._clean : end])
        shown = lasting(decoded)
        text = self._base + shown
        self._texts = (text, self._texts[1]) if self._open == _REASONING else (self._texts[0], text)
        if not decoded.endswith("\ufffd"):
            self._base, self._blank, self._clean = text, decoded[len(shown) :], end
