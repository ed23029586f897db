"""Numbers of things in sentences."""

from __future__ import annotations

import pytest

from swe_core.system.plural import counted


@pytest.mark.parametrize(
    ("number", "nouns", "said"),
    [
        (0, ("rollout",), "0 rollouts"),
        (1, ("rollout",), "1 rollout"),
        (2438, ("task",), "2,438 tasks"),
        (1, ("sandbox", "sandboxes"), "1 sandbox"),
        (2, ("sandbox", "sandboxes"), "2 sandboxes"),
        (1, ("task has", "tasks have"), "1 task has"),
    ],
)
def test_noun_agrees_with_its_number(number: int, nouns: tuple[str, ...], said: str) -> None:
    assert counted(number, *nouns) == said
