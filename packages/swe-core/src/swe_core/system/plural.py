"""Numbers of things in sentences."""

from __future__ import annotations


def counted(number: int, noun: str, nouns: str = "") -> str:
    """Return `1 rollout`, `2 rollouts` or `1,000 rollouts`.

    Args:
        nouns: The plural, if it is not `noun` with an `s`.
    """
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"
