"""Check: one check of `swe-core doctor`, and its Finding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

State = Literal["ok", "missing", "info"]
Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""Role → component → its settings, as the user gave them: not validated."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Args:
        state: "ok"; "missing" where a requirement is not met; "info" for plain information.
        text: What the check found, in a few words without secrets.
        remedy: What to do, one sentence; empty unless missing.
    """

    state: State
    text: str
    remedy: str = ""

    @classmethod
    def missing(cls, sentence: str, separator: str = "; ") -> Finding:
        """Make a "missing" finding of an error message; its part after the last `separator` is the remedy."""
        text, _, remedy = sentence.rpartition(separator)
        if not text:
            return cls("missing", sentence)
        return cls("missing", text, f"{remedy[:1].upper()}{remedy[1:]}.")


@dataclass(frozen=True, slots=True)
class Check:
    """One check of this machine.

    Args:
        name: The subject in two or three words, such as "Docker Engine".
        needed_for: What needs the subject, such as "--sandbox docker".
        look: Runs the check, in at most a few seconds. An exception counts as missing.
    """

    name: str
    needed_for: str
    look: Callable[[], Finding]
