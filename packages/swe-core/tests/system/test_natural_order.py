"""Names in natural order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swe_core.system.natural_order import natural_key


def test_numbers_count_by_value() -> None:
    names = ["task-10-0", "task-2-10", "task-2-9", "task-1", "task", "a__b-100", "a__b-99", "9", "10"]
    assert sorted(names, key=natural_key) == [
        "9", "10", "a__b-99", "a__b-100", "task", "task-1", "task-2-9", "task-2-10", "task-10-0",
    ]  # fmt: skip


def test_leading_zeros_and_huge_numbers_are_compared() -> None:
    assert sorted(["a-010", "a-9", "a-10"], key=natural_key) == ["a-9", "a-010", "a-10"]
    huge = "a-" + "9" * 10_000  # int() refuses it
    assert sorted([huge, "a-1"], key=natural_key) == ["a-1", huge]


@given(st.lists(st.text(alphabet="a1२0-")))
def test_different_names_have_different_keys(names: list[str]) -> None:
    assert len({natural_key(name) for name in names}) == len(set(names))
