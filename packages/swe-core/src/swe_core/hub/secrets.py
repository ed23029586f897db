"""What must not leave this machine with a push, beside what a run has redacted already."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from swe_core.system.redaction import MARK, Redactor

_NAMES = re.compile(r"token|secret|passw|credential|api_?key|_key$|_pat$", re.IGNORECASE)
_TOKENS = re.compile(r"(?:swe_tok_|hf_)[A-Za-z0-9_-]{30,}")
"""Tokens of rollouts, which `patch.diff` holds as it was graded, and of the Hub, whoever they belong to."""


class PushRedactor(Redactor):
    """Knows the secrets of a run and of this process, and what tokens look like."""

    def text(self, text: str) -> str:
        """See `Redactor.text`."""
        return _TOKENS.sub(MARK, super().text(text))


def secret_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables whose names say that they are secrets, such as `OPENAI_API_KEY`, with their values."""
    return {name: value for name, value in environment.items() if _NAMES.search(name)}


def push_redactor(known: Iterable[str] = (), environment: Mapping[str, str] = os.environ) -> PushRedactor:
    """A redactor that knows `known`, and the values of the `secret_variables` of `environment`."""
    redactor = PushRedactor()
    for secret in (*known, *secret_variables(environment).values()):
        redactor.add(secret)
    return redactor
