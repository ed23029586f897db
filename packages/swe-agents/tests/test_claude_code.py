"""Claude Code: its licence, its files, its command and its output."""

from __future__ import annotations

import json

import pytest

from swe_agents.claude_code import ClaudeCode, ClaudeCodeConfig, swe_checks
from swe_core import AgentEvent, AgentExit, ChatRequest
from swe_core.errors import ConfigError

from .trials import TOKEN, context, parsed

CUT = (
    "API Error: Claude's response exceeded the 8192 output token maximum. To configure this behavior, set "
    "the CLAUDE_CODE_MAX_OUTPUT_TOKENS environment variable."
)


def test_claude_code_is_not_fetched_before_its_terms_are_accepted() -> None:
    with pytest.raises(ConfigError, match=r"^Claude Code is proprietary.*accept_license = true") as refused:
        ClaudeCode().assets()
    assert "\n" not in str(refused.value)
    assert ClaudeCode(ClaudeCodeConfig(accept_license=True)).recipe().parts


def test_claude_code_check_says_nothing_of_the_terms() -> None:
    (check,) = swe_checks()
    assert check.look().state in ("ok", "info")


def test_claude_code_parses_its_own_output() -> None:
    events = parsed(ClaudeCode())
    assert events[:4] == [
        ("reasoning", "Let me think.", None, False),
        ("text", "I look.", None, False),
        ("tool_call", '{"command": "echo hi; exit 3"}', "Bash", False),
        ("tool_result", "Exit code 3\nhi", None, False),
    ]
    assert [(kind, tool) for kind, _, tool, _ in events[4:8]] == [
        ("tool_call", "Bash"),
        ("tool_result", None),
        ("tool_call", "browse"),
        ("tool_result", None),
    ]
    assert events[8] == ("info", "retry 1 of 1: 500", None, False)
    assert events[9][0] == "info"
    assert events[9][1].startswith("[Your previous response had no visible output.")
    assert events[10:13] == [
        ("text", "Done.", None, False),
        ("error", "API Error: 410 gone", None, False),
        ("error", "API Error: 410 gone", None, True),
    ]
    assert events[-2:] == [("error", CUT, None, False), ("error", CUT, None, True)]


def test_claude_code_call_without_tools_is_a_side_call() -> None:
    messages = [{"role": "user", "content": "Web page content:"}]
    assert ClaudeCode().auxiliary(ChatRequest({}, messages)) == "side call"
    assert ClaudeCode().auxiliary(ChatRequest({}, messages, tools=[{"type": "function"}])) is None


def test_claude_code_writes_no_token_and_merges_the_users_settings() -> None:
    agent = ClaudeCode(ClaudeCodeConfig(settings={"autoCompactEnabled": True, "attribution": {"pr": "mine"}}))
    files = agent.files(context())
    settings = json.loads(files["/tmp/swe-home/claude-code/settings.json"])
    assert settings == {"autoCompactEnabled": True, "attribution": {"commit": "", "pr": "mine"}}
    assert not any(TOKEN.encode() in content for content in files.values())


def test_claude_code_commands_forget_each_variable_with_the_endpoint() -> None:
    agent, ctx = ClaudeCode(), context()
    env = agent.env(ctx)
    told = {name for name, value in env.items() if TOKEN in value or ctx.root_url in value}
    forgets = agent.files(ctx)[env["CLAUDE_ENV_FILE"]].decode().split()
    assert (forgets[0], {*forgets[1:]}) == ("unset", told)
    assert env["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:4000/rollout/1"


def test_claude_code_command_has_the_users_tools_and_arguments() -> None:
    config = ClaudeCodeConfig(tools=("Bash", "Glob"), args=("--append-system-prompt", "Be brief."))
    argv = ClaudeCode(config).command(context())
    assert argv[argv.index("--tools") + 1] == "Bash,Glob"
    assert argv[argv.index("--model") + 1] == "org/Model-8B:high"
    assert argv[-2:] == ["--append-system-prompt", "Be brief."]


@pytest.mark.parametrize(
    ("code", "error", "failure"),
    [
        (0, None, None),
        (1, AgentEvent(kind="error", text=CUT, fatal=True), None),
        (1, AgentEvent(kind="error", text="gone", fatal=True), "Claude Code exited with code 1: gone"),
        (1, None, "Claude Code exited with code 1: cannot be used as root"),
    ],
)
def test_claude_code_is_failed_by_errors_but_not_by_cut_replies(
    code: int, error: AgentEvent | None, failure: str | None
) -> None:
    assert ClaudeCode().failure(AgentExit(code, error, "cannot be used as root")) == failure
