"""Codex: its files, its command and its output."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from swe_agents.codex import TOKEN, Codex, CodexConfig
from swe_core import AgentEvent, AgentExit

from . import trials
from .trials import context, parsed

CUT = "Incomplete response returned, reason: max_output_tokens"


def settings(**config: Any) -> Any:
    files = Codex(CodexConfig(**config)).files(context())
    return tomllib.loads(files["/tmp/swe-home/codex/config.toml"].decode())


def test_codex_parses_its_own_output() -> None:
    unknown = (
        "info",
        "Model metadata for `policy` not found. Defaulting to fallback metadata; this can degrade "
        "performance and cause issues.",
        None,
        False,
    )
    assert parsed(Codex()) == [
        unknown,
        ("reasoning", "I think.", None, False),
        ("text", "I look.", None, False),
        ("tool_call", "/bin/bash -c 'echo hi; exit 3'", "exec_command", False),
        ("tool_result", "hi\n", "exec_command", False),
        ("tool_call", "add /testbed/b.txt", "apply_patch", False),
        ("tool_result", "completed", "apply_patch", False),
        ("text", "Done.", None, False),
        unknown,
        ("error", "no such thing", None, False),
        ("error", "no such thing", None, True),
        unknown,
        ("text", "half", None, False),
        ("error", CUT, None, False),
        ("error", CUT, None, True),
    ]


def test_codex_writes_no_token_and_merges_the_users_settings() -> None:
    mine = settings(retries=3, settings={"web_search": "live", "features": {"goals": True}})
    provider = mine["model_providers"]["rollout"]
    assert provider["base_url"] == "http://127.0.0.1:4000/rollout/1/v1"
    assert (provider["env_key"], provider["wire_api"]) == (TOKEN, "responses")
    assert (provider["request_max_retries"], provider["stream_max_retries"]) == (3, 3)
    assert mine["web_search"] == "live"
    assert mine["features"]["goals"] is True
    assert mine["features"]["view_image"] is False
    assert trials.TOKEN not in str(mine)


def test_codex_token_travels_in_one_variable_that_its_commands_do_not_inherit() -> None:
    env = Codex().env(context())
    assert [name for name, value in env.items() if trials.TOKEN in value] == [TOKEN]
    assert not [value for value in env.values() if "4000" in value]
    assert TOKEN in settings()["shell_environment_policy"]["exclude"]


def test_codex_takes_the_prompt_and_tools_of_another_model() -> None:
    argv = Codex(CodexConfig(model="gpt-5.5")).command(context())
    assert argv[argv.index("--model") + 1] == "gpt-5.5"
    assert "org/Model-8B:high" in Codex().command(context())


@pytest.mark.parametrize(
    ("code", "error", "failure"),
    [
        (0, None, None),
        (1, AgentEvent(kind="error", text=CUT, fatal=True), None),
        (1, AgentEvent(kind="error", text="gone", fatal=True), "Codex exited with code 1: gone"),
        (1, None, "Codex exited with code 1: Error loading config.toml"),
    ],
)
def test_codex_is_failed_by_errors_but_not_by_a_cut_reply(
    code: int, error: AgentEvent | None, failure: str | None
) -> None:
    assert Codex().failure(AgentExit(code, error, "Error loading config.toml")) == failure
