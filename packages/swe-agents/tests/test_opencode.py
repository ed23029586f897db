"""OpenCode: its files, its command and its output."""

from __future__ import annotations

import json
from typing import Any

from swe_agents.opencode import OpenCode, OpenCodeConfig
from swe_core import AgentEvent, AgentExit, ChatRequest

from .trials import TOKEN, context, parsed

HOME = "/tmp/swe-home/opencode"


def settings(**config: Any) -> Any:
    files = OpenCode(OpenCodeConfig(**config)).files(context())
    return json.loads(files[f"{HOME}/config/opencode/opencode.json"])


def test_opencode_parses_its_own_output() -> None:
    events = parsed(OpenCode())
    assert events[:4] == [
        ("reasoning", "Let me think.", None, False),
        ("text", "I look.", None, False),
        ("tool_call", '{"command": "echo hi; exit 3"}', "bash", False),
        ("tool_result", "hi\n", "bash", False),
    ]
    assert [(kind, tool) for kind, _, tool, _ in events[4:6]] == [
        ("tool_call", "invalid"),
        ("tool_result", "invalid"),
    ]
    assert events[6:] == [
        ("tool_call", '{"filePath": "/no/such"}', "read", False),
        ("tool_result", "File not found: /no/such", "read", False),
        ("text", "half", None, False),
        ("info", "the reply was cut off at its token limit", None, False),
        ("error", "gone", None, True),
    ]


def test_opencode_reply_that_it_does_not_understand_is_an_error() -> None:
    (event,) = OpenCode().parse_event('{"type": "step_finish", "part": {"reason": "unknown"}}')
    assert event == AgentEvent(kind="error", text="a reply ended as 'unknown'", fatal=True)
    assert OpenCode().failure(AgentExit(0, event, "")) == (
        "OpenCode ended with an error: a reply ended as 'unknown'"
    )


def test_opencode_token_is_in_the_file_that_its_settings_name_and_nowhere_else() -> None:
    agent, ctx = OpenCode(), context()
    files = agent.files(ctx)
    assert [path for path, content in files.items() if TOKEN.encode() in content] == [f"{HOME}/token"]
    provider = settings()["provider"]["rollout"]
    assert provider["options"]["apiKey"] == f"{{file:{HOME}/token}}"
    assert provider["options"]["baseURL"] == ctx.base_url
    assert not [value for value in agent.env(ctx).values() if TOKEN in value or "4000" in value]


def test_opencode_merges_the_users_settings() -> None:
    mine = settings(max_tokens=9, settings={"permission": {"task": "allow"}, "compaction": {"auto": True}})
    assert mine["provider"]["rollout"]["models"]["org/Model-8B:high"]["limit"]["output"] == 9
    assert mine["model"] == mine["small_model"] == "rollout/org/Model-8B:high"
    assert mine["permission"] == {
        "*": "allow", "question": "deny", "skill": "deny", "task": "allow", "todowrite": "deny",
        "webfetch": "deny", "websearch": "deny",
    }  # fmt: skip
    assert mine["compaction"] == {"auto": True, "prune": False}


def test_opencode_names_the_title_as_auxiliary() -> None:
    title = {"role": "system", "content": "You are a title generator. You output ONLY a title."}
    work = {"role": "system", "content": "You are opencode."}
    assert OpenCode().auxiliary(ChatRequest({}, [title])) == "title"
    assert OpenCode().auxiliary(ChatRequest({}, [work])) is None
    assert OpenCode().auxiliary(ChatRequest({}, [])) is None
    assert OpenCode().auxiliary(ChatRequest({}, [title], [{"type": "function"}])) is None
