"""Cutting a message into streamed pieces and joining them again."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.deltas import cut, join, merge, whole

_calls = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.text("abc123", min_size=1),
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": st.text("xyz", min_size=1), "arguments": st.text()}),
        }
    ),
    min_size=1,
    max_size=3,
)
messages = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | st.text()},
    optional={
        "reasoning_content": st.text(),
        "refusal": st.text(),
        "tool_calls": _calls,
        "annotations": st.lists(st.dictionaries(st.text(), st.integers()), min_size=1),
    },
)


@given(messages, st.integers(1, 20))
def test_join_undoes_cut(message: dict[str, Any], size: int) -> None:
    assert join(cut(message, size)) == message


@given(messages)
def test_whole_message_is_a_delta(message: dict[str, Any]) -> None:
    assert join([whole(message)]) == message


@given(st.data())
def test_interleaved_pieces_join_to_the_whole(data: st.DataObject) -> None:
    """Every text is split at points of its own, and the pieces of different tool calls are mixed."""
    message = data.draw(messages)
    strands: list[list[dict[str, Any]]] = []
    for key in ("content", "reasoning_content", "refusal"):
        if message.get(key) is not None:
            strands.append([{key: piece} for piece in _split(data, message[key])])
    if "annotations" in message:
        strands.append([{"annotations": [note]} for note in message["annotations"]])
    for index, call in enumerate(message.get("tool_calls", ())):
        head = {"index": index, **call, "function": {"name": call["function"]["name"]}}
        tail = [
            {"index": index, "function": {"arguments": piece}}
            for piece in _split(data, call["function"]["arguments"])
        ]
        strands.append([{"tool_calls": [piece]} for piece in [head, *tail]])
    deltas: list[dict[str, Any]] = [{"role": "assistant"}]
    while strands:
        deltas.append(data.draw(st.sampled_from(strands)).pop(0))
        strands = [rest for rest in strands if rest]
    assert join(deltas) == message


def _split(data: st.DataObject, text: str) -> list[str]:
    points = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    return [text[a:b] for a, b in zip([0, *points], [*points, len(text)], strict=True)]


def test_cut_bounds_the_length_of_pieces() -> None:
    message = {"role": "assistant", "content": "x" * 10, "tool_calls": []}
    assert [delta.get("content") for delta in cut(message, 4)] == [None, "xxxx", "xxxx", "xx"]


def test_join_accepts_calls_without_index_and_repeated_names() -> None:
    deltas = [
        {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "1"}}]},
        {"tool_calls": [{"function": {"arguments": "2"}}]},
        {"tool_calls": [{"id": "b", "function": {"name": "g", "arguments": "3"}}]},
    ]
    calls = join(deltas)["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [("a", "12"), ("b", "3")]
    piece = {"index": 0, "id": "a", "function": {"name": "bash", "arguments": "x"}}
    assert join([{"tool_calls": [piece]}] * 3)["tool_calls"] == [
        {"type": "function", "id": "a", "function": {"name": "bash", "arguments": "xxx"}}
    ]


def test_join_rejects_malformed_calls() -> None:
    for calls in ("text", [1], [{"function": "f"}]):
        with pytest.raises(ValueError, match="tool"):
            join([{"tool_calls": calls}])


def test_merge_joins_consecutive_text_only() -> None:
    call = {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}
    pieces = [{"content": "a"}, {}, {"content": "b", "reasoning_content": "c"}, call, call, {"content": "d"}]
    found = list(merge(pieces))
    assert found == [{"content": "ab", "reasoning_content": "c"}, call, call, {"content": "d"}]
    assert join(found) == join(pieces)
    others = [{"content": "a"}, {"content": None}, {"role": "assistant", "content": "b"}]
    assert list(merge(others)) == others
    views = [MappingProxyType({"content": "a"}), MappingProxyType({"tool_calls": []})]
    assert [type(piece) for piece in merge(views)] == [dict, dict]  # the JSON encoder takes dicts only
