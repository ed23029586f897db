"""Which calls are one conversation: sub-agents, compactions, retries, rewritten histories."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from swe_core.api.agent import AgentEvent
from swe_core.api.messages import Message
from swe_core.api.records import UNDELIVERED, Turn, TurnTokens
from swe_core.api.request_diff import RequestDiff
from swe_core.errors import UsageError
from swe_core.export.conversations import conversations, told
from swe_testing.records import make_turn

SYSTEM = {"role": "system", "content": "You are an agent."}


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
        """Of each conversation its texts, and the calls of its replies in their order."""
        return [
            ([one["content"] for one in each.messages], [turn.index for turn in each.replies.values()])
            for each in conversations(self.turns)
        ]


def test_conversation_grows_with_each_call() -> None:
    calls = Calls()
    calls.add(SYSTEM, user("a"), reply=said("b"))
    calls.add(SYSTEM, user("a"), said("b"), user("c"), reply=said("d"))
    assert calls.found() == [(["You are an agent.", "a", "b", "c", "d"], [0, 1])]


def test_compaction_ends_a_conversation() -> None:
    calls = Calls()
    calls.add(user("a"), reply=said("b"))
    calls.add(user("summary"), reply=said("c"))
    assert calls.found() == [(["a", "b"], [0]), (["summary", "c"], [1])]


def test_sub_agents_are_conversations_of_their_own() -> None:
    calls = Calls()
    calls.add(user("main"), reply=said("ask both"))
    calls.add(user("left"), reply=said("ls"))
    calls.add(user("right"), reply=said("ls"))  # the same words
    calls.add(user("left"), said("ls"), user("l.py"), reply=said("left done"))
    calls.add(user("right"), said("ls"), user("r.py"), reply=said("right done"))
    calls.add(user("main"), said("ask both"), user("results"), reply=said("done"))
    assert calls.found() == [
        (["left", "ls", "l.py", "left done"], [1, 3]),
        (["right", "ls", "r.py", "right done"], [2, 4]),
        (["main", "ask both", "results", "done"], [0, 5]),
    ]


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


def test_client_that_edits_its_history_stays_in_its_conversation() -> None:
    """It clears old results and shortens old replies."""
    calls = Calls()
    calls.add(user("a"), reply=said("one"))
    calls.add(user("a"), said("one"), user("a long result"), reply=said("two"))
    calls.add(user("a"), said("(cut)"), user("(cleared)"), said("two"), user("more"), reply=said("three"))
    assert calls.found() == [(["a", "(cut)", "(cleared)", "two", "more", "three"], [1, 2])]


def test_two_continuations_of_a_reply_are_two_conversations() -> None:
    calls = Calls()
    calls.add(user("a"), reply=said("b"))
    calls.add(user("a"), said("b"), user("c"), reply=said("d"))
    calls.add(user("a"), said("b"), user("e"), reply=said("f"))
    assert calls.found() == [(["a", "b", "c", "d"], [0, 1]), (["a", "b", "e", "f"], [0, 2])]


def test_conversation_has_the_tools_of_its_last_call() -> None:
    tools = [{"type": "function", "function": {"name": "bash"}}]
    body = {"messages": [user("a")], "tools": tools}
    known = {"started_at": datetime.now(UTC), "seconds": 0.0, "reply": said("b")}
    (one,) = conversations([Turn.from_request(RequestDiff(), 0, body, **known)])
    assert one.tools == tools


def test_parts_become_text() -> None:
    calls = Calls()
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    calls.add({"role": "user", "content": parts}, reply={"role": "assistant", "content": None})
    assert calls.found() == [(["ab", ""], [0])]


def test_call_with_an_image_is_an_error() -> None:
    calls = Calls()
    calls.add({"role": "user", "content": [{"type": "image_url"}]}, reply=said("a cat"))
    with pytest.raises(UsageError, match="call 0 is no conversation of text"):
        calls.found()


def test_transcript_is_a_conversation() -> None:
    events = [
        AgentEvent(kind="info", text="begin"),
        AgentEvent(kind="reasoning", text="hm"),
        AgentEvent(kind="tool_call", text='{"command": "ls"}', tool="bash"),
        AgentEvent(kind="tool_call", text='{"path": "a.py"}', tool="read"),
        AgentEvent(kind="tool_result", text="text of a.py", tool="read"),
        AgentEvent(kind="tool_result", text="a.py", tool="bash"),
        AgentEvent(kind="tool_result", text="nobody asked", tool="other"),
        AgentEvent(kind="text", text="done"),
    ]
    found = told(events)
    assert found is not None
    assert [one["role"] for one in found.messages] == [
        "system", "assistant", "assistant", "assistant", "tool", "tool", "tool", "assistant",
    ]  # fmt: skip
    asked = [one["tool_calls"][0]["id"] for one in found.messages if "tool_calls" in one]
    answered = [one.get("tool_call_id") for one in found.messages if one["role"] == "tool"]
    assert answered == [asked[1], asked[0], None]
    assert told([]) is None
