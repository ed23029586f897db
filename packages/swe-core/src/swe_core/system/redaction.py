"""Keep secrets out of all output: records, logs, the display and errors.

Code that creates or receives a secret, such as a provider, an engine or a grader, calls `redact`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, AnyStr

from swe_core.system.printable import printable

MARK = "[redacted]"
SHORTEST = 8
"""Minimum length of a secret that is replaced, characters."""
_LONGEST_START = 4 * SHORTEST - 1
"""Maximum size of one character less than `SHORTEST` in UTF-8, bytes."""
_CREDENTIAL = re.compile(
    r"(?:token|secret|passw(?:or)?ds?|passphrase|credentials?|authorization|api[-_]?keys?"
    r"|(?:access|secret|private|signing|ssh|hf)[-_]?key|(?-i:_PAT|_KEY))$",
    re.IGNORECASE,
)
_OF_A_TEXT = re.compile(
    r"(?:^|[._])(?:bos|eos|pad|unk|sep|cls|mask|stop|start|end|newline|image|audio|video|special)_token$",
    re.IGNORECASE,
)
"""Names of a model's special tokens, which are no secrets."""


class Redactor:
    """Replaces known secrets in text and bytes. Thread-safe.

    A secret is found in plain text, in JSON and in JSON within JSON. Secrets shorter than eight characters
    stay, because they occur in ordinary text. Secrets with the same first eight characters, such as the
    tokens of all rollouts, cost one search together.
    """

    def __init__(self) -> None:
        self._known: frozenset[str] = frozenset()
        self._forms: Mapping[str, Sequence[str]] = {}
        """First characters → all forms with that start, longest first, since one may be a prefix of another.
        The map is replaced and not changed, so that readers need no lock."""
        self._starts: Mapping[type, frozenset[str] | frozenset[bytes]] = {}
        """Prefixes of those first characters, as text and as bytes."""
        self._changing = threading.Lock()

    def add(self, secret: str) -> None:
        """Redact `secret` from now on."""
        if len(secret) >= SHORTEST:
            self._change(secret, known=True)

    def known(self) -> set[str]:
        """Return all known secrets."""
        return set(self._known)

    def discard(self, secret: str) -> None:
        """Forget a secret that is no longer valid."""
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
        """Return `text` with every known secret replaced by `MARK`."""
        return self._redacted(text)

    def data(self, data: bytes) -> bytes:
        """Return bytes with every known secret replaced."""
        return self._redacted(data)

    def value(self, value: Any) -> Any:
        """Return a JSON value with every known secret replaced in texts and field names."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(one) for one in value]
        return value

    def unfinished(self, text: AnyStr) -> int:
        """Return the length of the end of `text` that may start a secret."""
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
        """Return the redacted part of `text` that is ready to write, and its `unfinished` end."""
        whole = self._redacted(text)
        end = len(text) - self.unfinished(text)
        if end == len(text):
            return whole, text[end:]
        before, held = self._redacted(text[:end]), text[end:]
        if before + self._redacted(held) != whole:  # a secret ends where another may start
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
            if begin >= end:  # overlapping secrets get one mark
                shown += text[end:begin] + _like(text, MARK)
            end = max(end, after)
        return shown + text[end:]


def _like(text: AnyStr, secret: str) -> AnyStr:
    """Return `secret` in the type of `text`."""
    return secret if isinstance(text, str) else secret.encode()


def _places(text: AnyStr, secret: AnyStr) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each `secret` in `text`."""
    begin = text.find(secret)
    while begin >= 0:
        yield begin, begin + len(secret)
        begin = text.find(secret, begin + 1)


def _starts(beginnings: Iterable[AnyStr]) -> frozenset[AnyStr]:
    return frozenset(one[:length] for one in beginnings for length in range(1, len(one)))


def _forms(secret: str) -> set[str]:
    """Return `secret` in plain text, in JSON, and in JSON within JSON."""
    forms = {secret}
    for _ in range(2):
        for form in list(forms):
            for ascii_only in (True, False):
                written = json.dumps(form, ensure_ascii=ascii_only)[1:-1]
                forms |= {written, written.replace("/", "\\/")}
    return forms


def names_credential(name: str) -> bool:
    """Return whether a variable or setting with this name holds a secret, such as `OPENAI_API_KEY`.

    A name that points to a secret, such as `api_key_env` or `TOKEN_FILE`, does not.
    """
    return _CREDENTIAL.search(name) is not None and _OF_A_TEXT.search(name) is None


def environment_redactor() -> Redactor:
    """Return a redactor of the variables of the environment whose names mark secrets."""
    redactor = Redactor()
    for name, value in os.environ.items():
        if names_credential(name):
            redactor.add(value.strip())
    return redactor


def secret_settings(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the full name of each setting with a value whose name marks a secret."""
    for name, value in settings.items():
        full = f"{prefix}{name}"
        tables = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, Mapping)]
        for table in tables:
            yield from secret_settings(table, f"{full}.")
        if not tables and value and not isinstance(value, bool) and names_credential(full):
            yield full


class RedactingFormatter(logging.Formatter):
    """A log formatter that removes known secrets and control characters, also from tracebacks.

    Args:
        redactor: Redactor of the secrets.
        layout, date: `fmt` and `datefmt` of `logging.Formatter`.
    """

    def __init__(self, redactor: Redactor, layout: str | None = None, date: str | None = None) -> None:
        super().__init__(layout, date)
        self._redactor = redactor

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        shown = printable(self._redactor.text(super().format(record)))
        return self._redactor.text(shown)  # control characters may have split a secret


_REDACTOR: ContextVar[Redactor | None] = ContextVar("swe_core.redactor", default=None)
_TEMPORARY: ContextVar[list[str] | None] = ContextVar("swe_core.temporary_secrets", default=None)


@contextmanager
def redaction_scope() -> Iterator[Redactor]:
    """Yield the redactor that `redact` uses within the context: the enclosing scope's, else a new one."""
    outer = _REDACTOR.get()
    redactor = outer or Redactor()
    token = _REDACTOR.set(redactor)
    try:
        yield redactor
    finally:
        _REDACTOR.reset(token)


@contextmanager
def scoped_secrets() -> Iterator[None]:
    """Forget the temporary secrets of the context at its end, when a rollout's record is written."""
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
    """Keep `secret` out of the run's output and of replies to agents from now on.

    Tasks and anyio's threads belong to the run that started them, other threads to no run. Outside a run the
    call has no effect.

    Args:
        temporary: Whether to forget the secret after its rollout, when it is invalid, such as a sandbox's
            token. Each known secret makes every write slower. Outside a rollout the secret stays.
    """
    redactor, mine = _REDACTOR.get(), _TEMPORARY.get()
    if redactor is None:
        return
    redactor.add(secret)
    if temporary and mine is not None:
        mine.append(secret)
