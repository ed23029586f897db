"""Gemini CLI: its files, its command and its output."""

from __future__ import annotations

import json
from typing import Any

import pytest

from swe_agents.gemini_cli import GeminiCli, GeminiCliConfig
from swe_core import AgentEvent, AgentExit

from .trials import TOKEN, context, parsed

POLICYS = "The model returned an empty response with no text or thoughts. This may be a transient API issue; "


def settings(**config: Any) -> Any:
    files = GeminiCli(GeminiCliConfig(**config)).files(context())
    return json.loads(files["/tmp/swe-home/.gemini/settings.json"])


def test_gemini_cli_parses_its_own_output() -> None:
    gone = '[API Error: {"error":{"code":410,"message":"gone","status":"INVALID_ARGUMENT"}}]'
    missing = 'Tool "browse" not found. Did you mean one of: "glob", "replace", "read_file"?'
    assert parsed(GeminiCli()) == [
        ("text", "I look.", None, False),
        ("tool_call", '{"command": "echo hi; exit 3"}', "run_shell_command", False),
        ("tool_result", "hi", "run_shell_command", False),
        ("tool_call", "{}", "browse", False),
        ("tool_result", missing, "browse", False),
        ("text", "Done.", None, False),
        ("error", gone, None, True),
        ("error", f"{POLICYS}please try again.", None, False),
    ]


def test_gemini_cli_writes_no_token_and_merges_the_users_settings() -> None:
    mine = settings(retries=3, tools=("glob",), settings={"model": {"compressionThreshold": 0.5}})
    assert mine["general"]["maxAttempts"] == 4
    assert mine["tools"]["core"] == ["glob"]
    assert mine["model"] == {"compressionThreshold": 0.5, "disableLoopDetection": True}
    assert not any(TOKEN.encode() in content for content in GeminiCli().files(context()).values())


def test_gemini_cli_gets_the_endpoint_without_its_version() -> None:
    agent = GeminiCli()
    assert agent.env(context())["GOOGLE_GEMINI_BASE_URL"] == "http://127.0.0.1:4000/rollout/1"
    assert "--model=org/Model-8B:high" in agent.command(context())
    assert "--acp" in GeminiCli(acp=True).command(context())


@pytest.mark.parametrize(
    ("code", "error", "failure"),
    [
        (0, None, None),
        (0, AgentEvent(kind="error", text=POLICYS), None),
        (0, AgentEvent(kind="error", text="cut", fatal=True), "Gemini CLI ended with an error: cut"),
        (154, AgentEvent(kind="error", text="gone", fatal=True), "Gemini CLI ended with an error: gone"),
        (41, None, "Gemini CLI exited with code 41: Invalid auth method"),
        (137, None, "Gemini CLI was killed by SIGKILL (out of memory, or killed from outside): Invalid auth"),
    ],
)
def test_gemini_cli_failure_is_read_from_its_last_error(
    code: int, error: AgentEvent | None, failure: str | None
) -> None:
    """Its exit code after a refused call is HTTP's status modulo 256, which looks like a signal."""
    said = GeminiCli().failure(AgentExit(code, error, "Invalid auth method" if error is None else ""))
    assert (said or "").startswith(failure or "")
    assert (said is None) is (failure is None)
