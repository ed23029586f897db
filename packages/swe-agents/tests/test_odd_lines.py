"""Lines that no agent should print: no parser raises, and every event can be written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest

from swe_agents.claude_code import ClaudeCode
from swe_agents.codex import Codex
from swe_agents.gemini_cli import GeminiCli
from swe_agents.kimi_code import KimiCode
from swe_agents.opencode import OpenCode
from swe_agents.qwen_code import QwenCode
from swe_core import AgentEvent, AgentSpec

from .trials import odd_lines

AGENTS = (ClaudeCode(), Codex(), GeminiCli(), KimiCode(), OpenCode(), QwenCode())


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent.name)
def test_odd_lines_are_shown_as_they_are(agent: AgentSpec) -> None:
    assert {event.kind for event in odd_lines(agent)} == {"info"}


@pytest.mark.parametrize(
    ("agent", "line", "kinds", "values"),
    [
        (
            ClaudeCode(),
            '{"type": "KIND", "message": VALUE, "is_error": 1, "subtype": "api_retry"}',
            ("assistant", "user", "result", "system", "brand_new"),
            ("{}", "1", '{"content": "text"}', '{"content": [1, {}, {"type": "text"}]}'),
        ),
        (
            Codex(),
            '{"type": "KIND", "item": VALUE, "message": VALUE, "error": 1}',
            ("item.started", "item.completed", "error", "turn.failed", "brand.new"),
            ("{}", "[]", '{"type": "file_change"}', '{"type": "file_change", "changes": [1]}'),
        ),
        (
            OpenCode(),
            '{"type": "KIND", "part": VALUE, "error": VALUE}',
            ("text", "reasoning", "tool_use", "step_finish", "error", "brand_new"),
            ("{}", "1", '{"state": 1}', '{"reason": []}', '{"text": ["x"]}'),
        ),
    ],
    ids=("claude-code", "codex", "opencode"),
)
def test_no_line_raises(agent: AgentSpec, line: str, kinds: Sequence[str], values: Sequence[str]) -> None:
    for kind, value in product(kinds, values):
        for event in agent.parse_event(line.replace("KIND", kind).replace("VALUE", value)):
            assert AgentEvent.model_validate_json(event.model_dump_json()) == event
