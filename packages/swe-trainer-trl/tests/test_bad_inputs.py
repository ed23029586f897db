"""Wrong input of a training, as `bad_inputs.toml` lists it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swe_testing.bad_inputs import BadInput, bad_inputs


@pytest.mark.parametrize("case", bad_inputs(__file__))
def test_bad_input(case: BadInput, refuse: Callable[[BadInput], None]) -> None:
    refuse(case)
