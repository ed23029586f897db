"""The process that a run runs in: what is hidden from the garbage collector comes back."""

from __future__ import annotations

import gc

import pytest

from swe_core.eventloop import settled


def test_what_is_loaded_is_hidden_and_comes_back_also_after_a_failure() -> None:
    """Libraries that count what is left at the exit of the process complain of what does not."""
    before = gc.get_freeze_count()
    with pytest.raises(ValueError, match="odd"):
        with settled():
            assert gc.get_freeze_count() > before
            raise ValueError("odd")
    assert gc.get_freeze_count() == 0
