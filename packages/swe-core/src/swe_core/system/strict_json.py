"""Parse JSON and refuse duplicate keys; `json` would keep the last value."""

from __future__ import annotations

import json


class DuplicateKey(Exception):
    """An object has the key `key` twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def loads(text: str) -> object:
    """Return the value of a JSON text.

    Raises:
        ValueError: The text is not JSON, or a number has too many digits.
        RecursionError: The nesting is too deep.
        DuplicateKey: An object has a key twice.
    """
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made: dict[str, object] = {}
    for key, value in pairs:
        if key in made:
            raise DuplicateKey(key)
        made[key] = value
    return made
