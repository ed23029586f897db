"""Turns keep what a request added; all of them together give every request back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from swe_core.record import Turn
from swe_core.testing.records import make_turn
from swe_core.turns import RequestDiff, requests

_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "tool"]), "content": st.text("ab", max_size=2)}
)
_tools = st.sampled_from([[], [{"type": "function", "function": {"name": "bash"}}], [{"type": "other"}]])
_body = st.fixed_dictionaries(
    {"messages": st.lists(_message, min_size=1, max_size=5)},
    optional={"tools": _tools, "temperature": st.sampled_from([0, 1]), "model": st.just("m")},
)


def _turns(bodies: list[dict[str, Any]]) -> list[Turn]:
    diff = RequestDiff()
    turns = []
    for index, body in enumerate(bodies):
        kept, messages, params = diff.added(body)
        turn = make_turn(index, kept=kept, messages=messages, params=params)
        turns.append(Turn.model_validate_json(turn.model_dump_json()))
    return turns


@given(st.lists(_body, max_size=6))
def test_requests_come_back_whatever_their_history(bodies: list[dict[str, Any]]) -> None:
    assert list(requests(_turns(bodies))) == bodies


def test_a_growing_conversation_is_stored_once() -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}]
    history = [{"role": "user", "content": str(number)} for number in range(50)]
    bodies = [{"messages": history[: end + 1], "tools": tools} for end in range(50)]
    turns = _turns(bodies)
    assert [len(turn.messages) for turn in turns] == [1] * 50
    assert [turn.kept for turn in turns] == list(range(50))
    assert ["tools" in turn.params for turn in turns] == [True] + [False] * 49


def test_tools_that_go_away_are_gone() -> None:
    message = {"role": "user", "content": "a"}
    bodies = [{"messages": [message], "tools": [{"type": "other"}]}, {"messages": [message]}]
    turns = _turns(bodies)
    assert turns[1].params == {"tools": None}
    assert list(requests(turns)) == bodies
