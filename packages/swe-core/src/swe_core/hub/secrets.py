"""Secrets that a push removes, in addition to those that the run has redacted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from swe_core.system.redaction import MARK, Redactor

_NAMES = re.compile(r"token|secret|passw|credential|api_?key|_key$|_pat$", re.IGNORECASE)
_TOKENS = re.compile(r"(?:swe_tok_|hf_)[A-Za-z0-9_-]{30,}")
"""Tokens of rollouts, which `patch.diff` contains if the patch does, and tokens of the Hub."""


class PushRedactor(Redactor):
    """Removes the secrets of a run and of this process, and whatever looks like a token."""

    def text(self, text: str) -> str:
        return _TOKENS.sub(MARK, super().text(text))


def secret_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that are secrets by their names, such as `OPENAI_API_KEY`, with their values."""
    return {name: value for name, value in environment.items() if _NAMES.search(name)}


def push_redactor(known: Iterable[str] = (), environment: Mapping[str, str] = os.environ) -> PushRedactor:
    """Return a redactor for `known` and the values of the `secret_variables` of `environment`."""
    redactor = PushRedactor()
    for secret in (*known, *secret_variables(environment).values()):
        redactor.add(secret)
    return redactor
