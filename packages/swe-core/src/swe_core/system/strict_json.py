"""JSON whose objects have each key once: of a key that is there twice, `json` keeps the last value."""

from __future__ import annotations

import json


class KeyTwice(Exception):
    """An object has this key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def loads(text: str) -> object:
    """The value that a JSON text stands for.

    Raises:
        ValueError: It is not JSON, or has a number of too many digits.
        RecursionError: It is nested too deep.
        KeyTwice: An object in it has a key twice.
    """
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made: dict[str, object] = {}
    for key, value in pairs:
        if key in made:
            raise KeyTwice(key)
        made[key] = value
    return made
