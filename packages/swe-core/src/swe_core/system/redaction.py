"""Keeping secrets out of everything that is written: one place, used by every writer.

Who makes a secret, or is given one, says so with `hide`, be it a provider, an engine or a grader: from then
on it is in no record, log line, display or error of the run. Nobody has to be handed a redactor for that.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, AnyStr

from swe_core.system.printable import printable

MARK = "[redacted]"
SHORTEST = 8
"""Characters of a secret that is replaced, at least."""
_LONGEST_START = 4 * SHORTEST - 1
"""Bytes of so many characters but one, at most."""
_CREDENTIAL = re.compile(
    r"(?:token|secret|passw(?:or)?ds?|passphrase|credentials?|authorization|api[-_]?keys?"
    r"|(?:access|secret|private|signing|ssh|hf)[-_]?key|(?-i:_PAT|_KEY))$",
    re.IGNORECASE,
)
_OF_A_TEXT = re.compile(
    r"(?:^|[._])(?:bos|eos|pad|unk|sep|cls|mask|stop|start|end|newline|image|audio|video|special)_token$",
    re.IGNORECASE,
)
"""Tokens of the other kind, which a model reads."""


class Redactor:
    """Replaces known secrets in texts and bytes before they are written. Threads may share it.

    A secret is found as it is, and as JSON and JSON within JSON write it. Secrets shorter than eight
    characters are not replaced: they would tear ordinary text apart. Those that begin with the same eight, as
    the tokens of all rollouts do, cost one search together, however many.
    """

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._forms: Mapping[str, Sequence[str]] = {}
        """First characters → all forms that begin so, the longest first: one may begin another. Replaced as a
        whole, so that readers need no lock."""
        self._starts: Mapping[type, frozenset[str] | frozenset[bytes]] = {}
        """All that those characters begin with, as texts and as bytes: one look for all secrets together."""
        self._changing = threading.Lock()

    def add(self, secret: str) -> None:
        """Know `secret` from now on."""
        if len(secret) >= SHORTEST:
            self._change(secret, known=True)

    def known(self) -> set[str]:
        """Every secret that is known now."""
        return set(self._known)

    def discard(self, secret: str) -> None:
        """Forget a secret that is worth nothing any more."""
        self._change(secret, known=False)

    def _change(self, secret: str, *, known: bool) -> None:
        with self._changing:
            self._known = self._known | {secret} if known else self._known - {secret}
            found = dict(self._forms)
            for form in _forms(secret):
                alike = set(found.pop(form[:SHORTEST], ()))
                alike = alike | {form} if known else alike - {form}
                if alike:
                    found[form[:SHORTEST]] = sorted(alike, key=len, reverse=True)
            if found.keys() != self._forms.keys():
                self._starts = {str: _starts(found), bytes: _starts(map(str.encode, found))}
            self._forms = found

    def text(self, text: str) -> str:
        """`text` with every known secret replaced by `MARK`."""
        return self._redacted(text)

    def data(self, data: bytes) -> bytes:
        """The same as `text` for bytes."""
        return self._redacted(data)

    def value(self, value: Any) -> Any:
        """The same for every text in what JSON can hold, names of fields included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return value

    def unfinished(self, text: AnyStr) -> int:
        """How much of the end of `text` may be the beginning of a secret that goes on after it."""
        starts = self._starts.get(type(text), frozenset())
        lengths = range(min(_LONGEST_START, len(text)), 0, -1)
        longest = next((length for length in lengths if text[-length:] in starts), 0)
        for beginning, alike in self._forms.items():
            if _like(text, beginning) in text:
                for form in (_like(text, form) for form in alike):
                    for length in range(min(len(form) - 1, len(text)), longest, -1):
                        if text.endswith(form[:length]):
                            longest = length
                            break
        return longest

    def split(self, text: AnyStr) -> tuple[AnyStr, AnyStr]:
        """What of `text` may go on at once, without secrets, and its `unfinished` end, which has to wait."""
        whole = self._redacted(text)
        end = len(text) - self.unfinished(text)
        if end == len(text):
            return whole, text[end:]
        before, held = self._redacted(text[:end]), text[end:]
        if before + self._redacted(held) != whole:  # a secret ends where another one may begin
            end = len(whole) - self.unfinished(whole)
            before, held = whole[:end], whole[end:]
        return before, held

    def _redacted(self, text: AnyStr) -> AnyStr:
        found = [
            span
            for beginning, alike in self._forms.items()
            if _like(text, beginning) in text
            for form in alike
            for span in _places(text, _like(text, form))
        ]
        shown, end = text[:0], 0
        for begin, after in sorted(found):
            if begin >= end:  # else it overlaps the one before, and both are one
                shown += text[end:begin] + _like(text, MARK)
            end = max(end, after)
        return shown + text[end:]


def _like(text: AnyStr, secret: str) -> AnyStr:
    """`secret` as the type that `text` is of."""
    return secret if isinstance(text, str) else secret.encode()


def _places(text: AnyStr, secret: AnyStr) -> Iterator[tuple[int, int]]:
    """Where each `secret` in `text` begins and ends."""
    begin = text.find(secret)
    while begin >= 0:
        yield begin, begin + len(secret)
        begin = text.find(secret, begin + 1)


def _starts(beginnings: Iterable[AnyStr]) -> frozenset[AnyStr]:
    return frozenset(one[:length] for one in beginnings for length in range(1, len(one)))


def _forms(secret: str) -> set[str]:
    """`secret` as it stands in text, in JSON, and in JSON that is a text in JSON."""
    forms = {secret}
    for _ in range(2):
        for form in list(forms):
            for ascii_only in (True, False):
                written = json.dumps(form, ensure_ascii=ascii_only)[1:-1]
                forms |= {written, written.replace("/", "\\/")}
    return forms


def names_credential(name: str) -> bool:
    """Whether a variable or a setting of this name holds a secret, such as `OPENAI_API_KEY` or `hub_token`.
    One that says where a secret is, such as `api_key_env` or `TOKEN_FILE`, holds none."""
    return _CREDENTIAL.search(name) is not None and _OF_A_TEXT.search(name) is None


def secret_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The full name of each setting that is a secret by its name and has a value."""
    for name, value in settings.items():
        full = f"{prefix}{name}"
        tables = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Mapping)]
        for table in tables:
            yield from secret_settings(table, f"{full}.")
        if not tables and value and not isinstance(value, bool) and names_credential(full):
            yield full


class RedactingFormatter(logging.Formatter):
    """A formatter of log records, tracebacks included, that lets no known secret through, and no control
    character.

    Args:
        redactor: Knows the secrets.
        layout, date: `fmt` and `datefmt` of `logging.Formatter`.
    """

    def __init__(self, redactor: Redactor, layout: str | None = None, date: str | None = None) -> None:
        super().__init__(layout, date)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        shown = printable(self._redactor.text(super().format(record)))
        return self._redactor.text(shown)  # control characters may have parted a secret


_REDACTOR: ContextVar[Redactor | None] = ContextVar("swe_core.redactor", default=None)
_TEMPORARY: ContextVar[list[str] | None] = ContextVar("swe_core.temporary_secrets", default=None)


@contextmanager
def redaction_scope() -> Iterator[Redactor]:
    """For the length of the context `hide` tells the redactor that is yielded: that of a context around this
    one, where there is such a context."""
    outer = _REDACTOR.get()
    redactor = outer or Redactor()
    token = _REDACTOR.set(redactor)
    try:
        yield redactor
    finally:
        _REDACTOR.reset(token)


@contextmanager
def scoped_secrets() -> Iterator[None]:
    """Forget what is hidden as `passing` in this context, at its end: when a rollout's record is written."""
    passing: list[str] = []
    token = _TEMPORARY.set(passing)
    try:
        yield
    finally:
        _TEMPORARY.reset(token)
        if (redactor := _REDACTOR.get()) is not None:
            for secret in passing:
                redactor.discard(secret)


def redact(secret: str, *, temporary: bool = False) -> None:
    """Keep `secret` out of all that this run writes, and of replies to agents, from now on.

    Tasks and anyio's threads belong to the run that started them, other threads to no run. Outside a run the
    call has no effect.

    Args:
        temporary: Whether the secret is worthless once its rollout is over, such as a sandbox's token. It is
            then forgotten, because each known secret adds time to every write. Outside a rollout it stays.
    """
    redactor, mine = _REDACTOR.get(), _TEMPORARY.get()
    if redactor is None:
        return
    redactor.add(secret)
    if temporary and mine is not None:
        mine.append(secret)
