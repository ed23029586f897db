"""Turns keep what a request added; all of them together give every request back."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_core.api import request_diff as module
from swe_core.api.records import Turn, requests_of
from swe_core.api.request_diff import RequestDiff
from swe_core.errors import UsageError
from swe_testing.records import make_turn

_message = st.builds(
    lambda role, content: {"role": role, "content": content},
    st.sampled_from(["user", "tool"]),
    st.text("ab", max_size=2),
)
USER = {"role": "user", "content": "a"}
TOOLS = [[{"type": "function", "function": {"name": "bash"}}], [{"type": "other"}], []]
_tools = st.sampled_from(TOOLS)
_body = st.fixed_dictionaries(
    {"messages": st.lists(_message, min_size=1, max_size=5)},
    optional={"tools": _tools, "temperature": st.sampled_from([0, 1]), "model": st.just("m")},
)


def _turns(bodies: list[dict[str, Any]]) -> list[Turn]:
    diff = RequestDiff()
    turns = []
    for index, body in enumerate(bodies):
        turn = Turn.from_request(diff, index, body, started_at=datetime.now(UTC), seconds=0, reply=None)
        turns.append(Turn.model_validate_json(turn.model_dump_json()))
    return turns


@st.composite
def _agents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Requests of alternating agents: each extends a history, whole or cut, its own or another's."""
    bodies: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 12))):
        before = draw(st.sampled_from([{"messages": []}, *bodies]))
        history = before["messages"][: -draw(st.integers(0, 3)) or None]
        body = {**before, "messages": [*history, *draw(st.lists(_message, min_size=1, max_size=2))]}
        bodies.append({**body, "tools": draw(_tools)} if draw(st.booleans()) else body)
        if draw(st.integers(0, 5)) == 0:
            bodies[-1].pop("tools", None)
    return bodies


@given(_agents() | st.lists(_body, max_size=6))
@example([{"messages": [USER], "tools": [{"type": "other"}]}, {"messages": [USER]}])
@example([{"messages": [{**USER, "content": str(at)}], "tools": TOOLS[at % 2]} for at in range(4)])
def test_requests_round_trip_and_are_stored_minimally(bodies: list[dict[str, Any]]) -> None:
    """A turn repeats no message of an earlier request, and no tools of the one that it goes on from."""
    turns = _turns(bodies)
    assert list(requests_of(turns)) == bodies
    for index, (body, turn) in enumerate(zip(bodies, turns, strict=True)):
        shared = [_shared(earlier["messages"], body["messages"]) for earlier in bodies[:index]]
        assert turn.kept == max(shared, default=0)
        before = {} if turn.after is None else bodies[turn.after]
        assert ("tools" in turn.params) is (before.get("tools") != body.get("tools"))
        if not turn.kept and body.get("tools") in [earlier.get("tools") for earlier in bodies[:index]]:
            assert "tools" not in turn.params, "they are those of an earlier request"


@given(_agents())
def test_requests_round_trip_after_forgetting(bodies: list[dict[str, Any]]) -> None:
    with mock.patch.object(module, "_KNOWN", 3):
        assert list(requests_of(_turns(bodies))) == bodies


def _shared(one: list[Any], other: list[Any]) -> int:
    return len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def test_known_requests_are_bounded() -> None:
    diff = RequestDiff()
    with mock.patch.object(module, "_KNOWN", 100):
        for index in range(1000):
            diff.added(index, {"messages": [{**USER, "content": str(index)}] * 2})
            assert len(diff._known) <= 103


def test_turn_without_reference_follows_the_previous() -> None:
    messages = [{"role": "user", "content": text} for text in "abc"]
    turns = [make_turn(index, kept=index, messages=[messages[index]]) for index in range(3)]
    assert [body["messages"] for body in requests_of(turns)] == [messages[:1], messages[:2], messages]


def test_requests_of_rejects_turn_without_its_predecessor() -> None:
    turns = _turns([{"messages": [USER]}] * 3)
    with pytest.raises(UsageError, match="turn 1 continues turn 0, which is not among the turns before it"):
        list(requests_of(turns[1:]))


@pytest.mark.parametrize(("one", "other"), [(True, 1), (0.0, -0.0)])
def test_json_values_equal_in_python_are_kept_apart(one: object, other: object) -> None:
    bodies = [{"messages": [{"role": "user", "content": "x", "hint": {"cache": v}}]} for v in (one, other)]
    assert [*map(orjson.dumps, requests_of(_turns(bodies)))] == [*map(orjson.dumps, bodies)]
