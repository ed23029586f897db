"""Remove the run's secrets from replies, for every engine and dialect.

A provider may echo its key, and a model may repeat a token from its prompt. Neither may enter a sandbox, a
record or a recording.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from swe_core.api.deltas import Indices
from swe_core.api.engine import Completion, Delta
from swe_core.system.redaction import MARK, SHORTEST, Redactor

_Place = str | int | tuple[str, ...]
"""Position of a text: a field of the message, the arguments of the call of this index, or further inside."""


def redacted(completion: Completion, redactor: Redactor) -> Completion:
    """Return `completion` without secrets; its token ids stay as sampled."""
    return replace(
        completion,
        message=redactor.value(completion.message),
        finish_reason=redactor.value(completion.finish_reason),
        model=redactor.value(completion.model),
    )


class RedactedPieces:
    """The pieces of one streamed reply without secrets, also secrets that span pieces.

    Clients join message fields and arguments of calls. The end of such a text is held back while it may begin
    a secret: until more text, another text, or the end of the reply arrives. Other values pass at once.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._texts: dict[_Place, _Text] = {}
        self._indices = Indices()
        self._last: str | int | None = None

    def add(self, deltas: Iterable[Delta]) -> Iterator[Delta]:
        """Return what may be sent after `deltas`."""
        for delta in deltas:
            yield from self._add(delta)

    def rest(self) -> Iterator[Delta]:
        """Return what is still held at the end of the reply."""
        for place, text in self._texts.items():
            if not isinstance(place, tuple) and (held := text.rest()):
                yield _piece(place, held)

    def _add(self, delta: Delta) -> Iterator[Delta]:
        fields = {self._redactor.value(key): value for key, value in delta.items()}
        given = fields.get("tool_calls")
        calls = given if isinstance(given, list) and all(isinstance(one, Mapping) for one in given) else []
        indices = [self._indices.of(call) for call in calls]
        texts: list[str | int] = [key for key, value in fields.items() if _is_joined(key, value)]
        places = [*texts, *indices]
        last = self._last
        if places and last is not None and last not in places and (held := self._text(last).let_go()):
            yield _piece(last, held)
        self._last = places[-1] if places else last
        shown: dict[str, Any] = {}
        for key, value in fields.items():
            if key in texts:
                shown[key] = self._joined(key, value)
            elif calls and key == "tool_calls":
                shown[key] = [self._call(index, call) for index, call in zip(indices, calls, strict=True)]
            else:
                shown[key] = self._at_once(value, (key,))
        if not all(key in texts and not value for key, value in shown.items()):
            yield shown

    def _call(self, index: int, call: Mapping[str, Any]) -> dict[str, Any]:
        shown = {}
        for key, value in call.items():
            if key == "function" and isinstance(value, Mapping) and isinstance(value.get("arguments"), str):
                others = {name: one for name, one in value.items() if name != "arguments"}
                function = self._at_once(others, ("tool_calls", str(index), key))
                shown[key] = {**function, "arguments": self._joined(index, value["arguments"])}
            else:
                shown[self._redactor.value(key)] = self._at_once(value, ("tool_calls", str(index), key))
        return shown

    def _joined(self, place: str | int, text: str) -> str:
        known = self._text(place)
        return known.add(text) + (known.let_go() if place != self._last else "")

    def _at_once(self, value: Any, place: tuple[str, ...]) -> Any:
        """Return `value`; a text at a place continues the previous text at that place."""
        if isinstance(value, str):
            text = self._text(place)
            return text.add(value) + text.cut()
        if isinstance(value, Mapping):
            return {
                self._redactor.value(key): self._at_once(one, (*place, str(key)))
                for key, one in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._at_once(one, place) for one in value]
        return value

    def _text(self, place: _Place) -> _Text:
        text = self._texts.get(place)
        if text is None:
            text = self._texts[place] = _Text(self._redactor)
        return text


class _Text:
    """One text that arrives in pieces: its sent end, and its held end, which may begin a secret."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._gone = ""
        self._held = ""

    def add(self, text: str) -> str:
        """Return what may be sent after `text`."""
        gone = self._gone
        known = gone + self._held + text
        safe, held = self._redactor.split(known)
        begun = len(known) - len(held)
        if begun < len(gone):
            self._gone, self._held = gone[begun:], held[len(gone) - begun :]
            return ""
        self._gone, self._held = "", held
        return safe[len(gone) :] if safe.startswith(gone) else safe

    def let_go(self) -> str:
        """Return the held text, if it is too short to reveal a secret."""
        if len(self._gone) + len(self._held) >= SHORTEST:
            return ""
        held, self._held = self._held, ""
        self._gone += held
        return held

    def cut(self) -> str:
        """Return the held text, or a mark in its place."""
        if (held := self.let_go()) or not self._held:
            return held
        self._gone, self._held = self._gone + self._held, ""
        return MARK

    def rest(self) -> str:
        """Return the held text at the end; the sent text may begin a secret that ends here."""
        safe = self._redactor.text(self._gone + self._held)
        return safe[len(self._gone) :] if safe.startswith(self._gone) else safe


def _is_joined(key: str, value: object) -> bool:
    return isinstance(value, str) and value != "" and key != "role"


def _piece(place: str | int, text: str) -> Delta:
    if isinstance(place, str):
        return {place: text}
    return {"tool_calls": [{"index": place, "function": {"arguments": text}}]}
