"""Reading Pi's output: what each line says, and that no line can raise. The real Pi is in test_pi_real."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_agents_pi.agent import PiAgent
from swe_agents_pi.events import parse_line
from swe_core import AgentEvent, AgentExit

EVENTS = (
    "session", "agent_start", "message_start", "message_update", "message_end", "tool_execution_end",
    "turn_end", "agent_end", "agent_settled", "auto_retry_start", "auto_retry_end", "compaction_start",
    "compaction_end", "something_new",
)  # fmt: skip
KEYS = (
    "message", "messages", "role", "content", "type", "text", "thinking", "name", "arguments",
    "argumentsError", "stopReason", "errorMessage", "willRetry", "toolName", "success", "reason",
)  # fmt: skip
STRINGS = st.sampled_from(
    ["assistant", "toolResult", "text", "thinking", "toolCall", "error", "length", "stop", "\ud83d"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | STRINGS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=8),
    max_leaves=20,
)
LINES = st.builds(
    lambda type, rest: json.dumps({**rest, "type": type}),
    st.sampled_from(EVENTS),
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4),
)


@given(st.text() | JSON.map(json.dumps) | LINES)
def test_no_line_raises_and_every_event_can_be_written(line: str) -> None:
    for event in parse_line(line):
        assert AgentEvent.model_validate_json(event.model_dump_json()) == event


@pytest.mark.parametrize("line", ["[" * 100_000, '{"type":' + "9" * 5000 + "}", "\x00", '{"type": "x"'])
def test_lines_that_no_parser_likes(line: str) -> None:
    (event,) = parse_line(line)
    assert event.kind == "info"
    assert line.startswith(event.text)
    assert len(event.text) <= 2000


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([{"type": "text", "text": "cut \ud83d"}], "cut �"),
        ([{"type": "text", "text": "Read image"}, {"type": "image", "data": "AAAA"}], "Read image\n[image]"),
    ],
    ids=("torn surrogate pair", "image"),
)
def test_content_of_a_tool_result(blocks: list[dict[str, str]], text: str) -> None:
    message = {"role": "toolResult", "toolName": "bash", "content": blocks}
    (event,) = parse_line(json.dumps({"type": "message_end", "message": message}))
    assert event == AgentEvent(kind="tool_result", text=text, tool="bash")


def test_failed_call_is_a_failure_although_pi_exits_with_0() -> None:
    error = AgentEvent(kind="error", text="401: no", fatal=True)
    assert PiAgent().failure(AgentExit(0, None, "")) is None
    assert PiAgent().failure(AgentExit(0, error, "")) == "Pi ended with an error: 401: no"


def test_empty_reply_after_error_leaves_no_last_error_and_an_empty_line_says_nothing() -> None:
    assert parse_line("") == parse_line("  \r") == ()
    message: dict[str, Any] = {"role": "assistant", "content": [], "stopReason": "stop"}
    (event,) = parse_line(json.dumps({"type": "message_end", "message": message}))
    assert event.kind == "text"
