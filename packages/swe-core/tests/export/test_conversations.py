"""Which calls are one conversation: sub-agents, compactions, retries, rewritten histories."""

from __future__ import annotations

from typing import Any

import pytest

from swe_core.api.agent import AgentEvent
from swe_core.api.messages import Message
from swe_core.api.records import UNDELIVERED, Turn, TurnTokens
from swe_core.api.request_diff import RequestDiff
from swe_core.errors import UsageError
from swe_core.export.conversations import conversations, told
from swe_testing.records import make_turn


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Calls:
    """The calls of one rollout."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self._diff = RequestDiff()

    def add(self, *messages: Message, reply: Message | None, **fields: Any) -> None:
        index = len(self.turns)
        added = self._diff.added(index, {"messages": list(messages)})._asdict()
        self.turns.append(make_turn(index, reply=reply, **added, **fields))

    def found(self) -> list[tuple[list[str], list[int]]]:
        return [
            ([one["content"] for one in each.messages], [turn.index for turn in each.replies.values()])
            for each in conversations(self.turns)
        ]


CASES: dict[str, tuple[list[tuple[list[str], str]], list[tuple[list[str], list[int]]]]] = {
    "it grows with each call": ([(["a"], "b"), (["a", "b", "c"], "d")], [(["a", "b", "c", "d"], [0, 1])]),
    "sub-agents with the same words": (
        [
            (["main"], "ask both"),
            (["left"], "ls"),
            (["right"], "ls"),
            (["left", "ls", "l.py"], "left done"),
            (["right", "ls", "r.py"], "right done"),
            (["main", "ask both", "results"], "done"),
        ],
        [
            (["left", "ls", "l.py", "left done"], [1, 3]),
            (["right", "ls", "r.py", "right done"], [2, 4]),
            (["main", "ask both", "results", "done"], [0, 5]),
        ],
    ),
    "a client that clears old results and shortens old replies": (
        [(["a"], "one"), (["a", "one", "long"], "two"), (["a", "(cut)", "(cleared)", "two", "c"], "three")],
        [(["a", "(cut)", "(cleared)", "two", "c", "three"], [1, 2])],
    ),
    "two continuations of a reply": (
        [(["a"], "b"), (["a", "b", "c"], "d"), (["a", "b", "e"], "f")],
        [(["a", "b", "c", "d"], [0, 1]), (["a", "b", "e", "f"], [0, 2])],
    ),
}
"""What it is → requests, whose messages are by user and model in turn, with replies; conversations."""


@pytest.mark.parametrize("name", CASES)
def test_calls_are_conversations(name: str) -> None:
    asked, expected = CASES[name]
    calls = Calls()
    for texts, reply in asked:
        calls.add(*((said if at % 2 else user)(text) for at, text in enumerate(texts)), reply=said(reply))
    assert calls.found() == expected


def test_failed_lost_and_auxiliary_calls_are_left_out() -> None:
    calls = Calls()
    lost = TurnTokens(
        base=None, prompt=[1], completion=[2], logprobs=[-1.0], versions=[(0, 1)], rendered="full",
        cause="start", dropped=UNDELIVERED,
    )  # fmt: skip
    calls.add(user("title?"), reply=said("A title"), auxiliary="title")
    calls.add(user("a"), reply=None, error="overloaded")
    calls.add(user("a"), reply=said("never arrived"), tokens=lost)
    calls.add(user("a"), reply=said("b"))
    assert calls.found() == [(["a", "b"], [3])]


def test_conversation_has_the_tools_of_its_last_call() -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}]
    (one,) = conversations([make_turn(messages=[user("a")], params={"tools": tools}, reply=said("b"))])
    assert one.tools == tools


def test_call_with_an_image_is_an_error() -> None:
    calls = Calls()
    calls.add({"role": "user", "content": [{"type": "image_url"}]}, reply=said("a cat"))
    with pytest.raises(UsageError, match="call 0 is no conversation of text"):
        calls.found()


def test_transcript_is_a_conversation() -> None:
    events = [
        *(AgentEvent(kind=kind, text="hm") for kind in ("info", "reasoning")),
        *(AgentEvent(kind="tool_call", text="{}", tool=tool) for tool in ("bash", "read")),
        *(AgentEvent(kind="tool_result", text="x", tool=tool) for tool in ("read", "bash", "other")),
        AgentEvent(kind="text", text="done"),
    ]
    found = told(events)
    assert found is not None
    asked = [one["tool_calls"][0]["id"] for one in found.messages if "tool_calls" in one]
    answered = [one.get("tool_call_id") for one in found.messages if one["role"] == "tool"]
    assert answered == [asked[1], asked[0], None]
    assert told([]) is None
