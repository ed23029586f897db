"""Check: one thing that `swe-core doctor` looks at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "missing", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Args:
        state: "ok"; "missing" where something that the check's subject needs is not there; "info" where there
            is nothing to judge.
        text: What is there, in a few words; never a secret.
        remedy: What to do, one sentence; empty unless missing.
    """

    state: State
    text: str
    remedy: str = ""

    @classmethod
    def missing(cls, sentence: str, separator: str = "; ") -> Finding:
        """What is missing, by a sentence of ours: what comes after its last `separator` is the remedy."""
        text, _, remedy = sentence.rpartition(separator)
        if not text:
            return cls("missing", sentence)
        return cls("missing", text, f"{remedy[:1].upper()}{remedy[1:]}.")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing to look at.

    Args:
        name: Two or three words, such as "Docker Engine".
        needed_for: What does not work without it, such as "--sandbox docker".
        look: Looks; at most a few seconds. What it raises is shown as missing.
    """

    name: str
    needed_for: str
    look: Callable[[], Finding]
