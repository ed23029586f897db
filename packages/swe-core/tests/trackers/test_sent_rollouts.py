"""The file of what a tracker has."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.errors import UsageError
from swe_core.trackers.sent_rollouts import Destination, SentRollouts

from ..hub.runs import error, rollout

TO = Destination(project="p", run="r")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sent.jsonl"


def test_sent_rollouts_are_read_again(path: Path) -> None:
    sent = SentRollouts(path)
    assert (sent.destination, sent.next_step) == (None, 0)
    sent.add(rollout("t-0"), TO)
    sent.add(error("t-1", "it died"), TO)
    again = SentRollouts(path)
    assert (again.destination, again.next_step, again.steps()) == (TO, 2, {0, 1})
    assert again.has(rollout("t-0"))
    assert not again.has(rollout("t-2"))
    assert again.outcomes == {"resolved": 1, "error": 1}


def test_rollout_that_ran_again_counts_once(path: Path) -> None:
    sent = SentRollouts(path)
    sent.add(error("t-0", "it died"), TO)
    later = rollout("t-0", minute=5)
    assert not sent.has(later)
    sent.add(later, TO)
    assert sent.has(later)
    assert +sent.outcomes == {"resolved": 1}


def test_lost_steps_are_forgotten(path: Path) -> None:
    sent = SentRollouts(path)
    for number in range(3):
        sent.add(rollout(f"t-{number}"), TO)
    sent.forget({1})
    for one in (sent, SentRollouts(path)):
        assert (one.steps(), one.next_step) == ({0, 2}, 3)
        assert not one.has(rollout("t-1"))


def test_line_that_a_kill_cut_is_removed(path: Path) -> None:
    SentRollouts(path).add(rollout("t-0"), TO)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    sent = SentRollouts(path)
    assert sent.steps() == {0}
    assert path.read_bytes() == whole


def test_damaged_line_is_named(path: Path) -> None:
    SentRollouts(path).add(rollout("t-0"), TO)
    path.write_bytes(path.read_bytes() + b"{}\n")
    with pytest.raises(UsageError, match=r"line 2 of .* is damaged: remove the file"):
        SentRollouts(path)
