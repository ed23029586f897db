"""What GPUs and memory a machine has, and what `--hardware` says."""

from __future__ import annotations

import subprocess
from unittest.mock import Mock

import pytest

from swe_core.errors import ConfigError
from swe_trainer_trl.planning.cards import GIB, Cards, of_hardware, of_this_machine


@pytest.mark.parametrize(("text", "count", "size"), [("1 x 24", 1, 24.0), (" 2X22.5gib", 2, 22.5)])
def test_hardware_by_its_description(text: str, count: int, size: float) -> None:
    cards = of_hardware(text)
    assert (len(cards.names), cards.smallest) == (count, size * GIB)
    assert str(cards).startswith("1 GPU of" if count == 1 else f"{count} GPUs of")


@pytest.mark.parametrize("text", ["eight", "0x80GB"])
def test_description_that_says_nothing(text: str) -> None:
    with pytest.raises(ConfigError, match=r"worker\.trl\.hardware is .*such as '8x80GB'"):
        of_hardware(text)


LISTED = """\
0, GPU-aaaa1111-0000, 81559
1, GPU-bbbb2222-0000, 24576
2, GPU-cccc3333-0000, [N/A]
"""


@pytest.mark.parametrize(
    ("visible", "smallest"),
    [(("0", "1"), 24 * GIB), (("GPU-bbbb2222",), 24 * GIB), (("0", "2"), None), (("MIG-1234",), None)],
)
def test_memory_as_nvidia_smi_lists_it(
    monkeypatch: pytest.MonkeyPatch, visible: tuple[str, ...], smallest: int | None
) -> None:
    ended = subprocess.CompletedProcess((), 0, stdout=LISTED)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: ended)
    cards = of_this_machine(visible)
    assert (cards.names, cards.smallest) == (visible, smallest)


@pytest.mark.parametrize("error", [FileNotFoundError(), subprocess.TimeoutExpired("nvidia-smi", 1)])
def test_memory_is_unknown_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(subprocess, "run", Mock(side_effect=error))
    cards = of_this_machine(("0", "1"))
    assert cards.smallest is None
    assert str(cards) == "2 GPUs, whose memory is unknown"


def test_without_gpus_the_memory_of_the_machine_counts() -> None:
    cards = of_this_machine(())
    assert cards.ram is not None
    assert 0 < cards.ram < 1 << 50
    assert cards.smallest is None
    assert str(Cards((), {})) == "no GPU"
