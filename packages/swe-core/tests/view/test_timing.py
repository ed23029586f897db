"""Where the time of a rollout went."""

from __future__ import annotations

from datetime import timedelta

import pytest

from swe_core.api.records import Failure, Phases, Retried, Turn
from swe_core.view.timing import Piece, slowest_minute, timing_of
from swe_testing.records import make_rollout, make_turn
from swe_testing.sample_runs import START

TOOL = {"id": "a", "type": "function", "function": {"name": "bash", "arguments": '{"command": "pytest -q"}'}}


def turns(*calls: tuple[float, float]) -> list[Turn]:
    reply = {"role": "assistant", "content": "", "tool_calls": [TOOL]}
    return [
        make_turn(index, started_at=START + timedelta(seconds=start), seconds=seconds, reply=reply)
        for index, (start, seconds) in enumerate(calls)
    ]


def test_agent_phase_is_calls_and_what_lies_between() -> None:
    record = make_rollout(
        started_at=START, seconds=40.0, phases=Phases(open=1, prepare=2, agent=30, export=1, grade=5)
    )
    found = timing_of(record, turns((5, 10), (20, 10)))
    assert [(one.label, pytest.approx(one.start), pytest.approx(one.seconds)) for one in found.pieces] == [
        ("open the sandbox", 0, 1),
        ("prepare the repository", 1, 2),
        ("the agent, before its first call", 3, 2),
        ("LLM call, turn 0", 5, 10),
        ("tools of turn 0: bash pytest -q", 15, 5),
        ("LLM call, turn 1", 20, 10),
        ("tools of turn 1: bash pytest -q", 30, 3),
        ("export the patch", 33, 1),
        ("grade: a fresh sandbox and the tests", 34, 5),
    ]
    assert found.minute is None  # it took less
    assert found.longest(1)[0].turn == 0


def test_calls_of_sub_agents_have_lanes() -> None:
    found = timing_of(None, turns((0, 10), (2, 3), (6, 3), (20, 1)))
    assert [piece.lane for piece in found.pieces if piece.kind == "call"] == [0, 1, 1, 0]
    assert [(piece.start, piece.turn) for piece in found.pieces if piece.kind == "tools"] == [(10, 0)]
    assert found.lanes == 2


def test_lost_tries_come_first() -> None:
    died = Failure(boundary="sandbox", type="E", message="m")
    lost = Retried(failure=died, folder="retried-1", seconds=7.0)
    again = lost.model_copy(update={"folder": None, "seconds": 2.0})
    phases = Phases(open=1, agent=5, grade=3)
    record = make_rollout(started_at=START, seconds=20.0, phases=phases, retried=(lost, again))
    found = timing_of(record, turns((9, 1)))
    assert found.phases == (("open", 7, 1), ("agent", 8, 5), ("grade", 15, 3))
    assert [piece.seconds for piece in found.pieces if piece.kind == "lost"] == [7, 2]


def test_slowest_minute_is_where_the_longest_piece_is() -> None:
    short = [Piece("call", 10.0 * n, 10.0, f"short {n}") for n in range(20)]
    found = slowest_minute(short, 200.0)
    assert found is not None
    assert len(found.filled) == 6
    long = Piece("tools", 200.0, 90.0, "long")
    found = slowest_minute([*short, long], 290.0)
    assert found is not None
    assert (found.start, found.end) == (200.0, 260.0)
    assert [(piece.label, seconds) for piece, seconds in found.filled] == [("long", 60.0)]


def test_unfinished_rollout_counts_from_its_first_call() -> None:
    found = timing_of(None, turns((100, 4)))
    assert (found.seconds, found.phases) == (4.0, (("agent", 0.0, 4.0),))
    assert timing_of(None, []).pieces == ()
