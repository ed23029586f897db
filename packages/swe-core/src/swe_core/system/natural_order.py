"""Order names as people do: `task-2` before `task-10`."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"([0-9]+)")


def natural_key(text: str) -> tuple[tuple[int, str, str], ...]:
    """Return a sort key that compares the numbers in `text` by value."""
    parts = [(part.lstrip("0") if at % 2 else part, part) for at, part in enumerate(_NUMBER.split(text))]
    return tuple((len(value) if at % 2 else 0, value, part) for at, (value, part) in enumerate(parts))
