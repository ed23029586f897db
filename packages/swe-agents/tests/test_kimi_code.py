"""Kimi Code: its files, its command and its output."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from swe_agents.kimi_code import KimiCode, KimiCodeConfig
from swe_core import AgentExit, Completion
from swe_core.errors import AgentError
from swe_testing.agents import ScriptedModel

from .trials import TOKEN, context, parsed, trial_of

EMPTY = (
    "error: failed to run prompt: provider.api_error: The API returned an empty response (no content, no "
    "tool calls). Provider stop details: finishReason=completed, rawFinishReason=stop.\nSee log: x\n"
)


def config_of(**config: Any) -> dict[str, Any]:
    files = KimiCode(KimiCodeConfig(**config)).files(context())
    return tomllib.loads(files["/tmp/swe-home/config.toml"].decode())


def test_kimi_code_parses_its_own_output() -> None:
    assert parsed(KimiCode()) == [
        ("text", "I look.", None, False),
        ("tool_call", '{"command":"echo hi; exit 3"}', "Bash", False),
        ("tool_result", "hi\nCommand failed with exit code: 3.", None, False),
        ("tool_call", "{}", "browse", False),
        ("tool_result", 'Tool "browse" not found', None, False),
        ("text", "Done.", None, False),
    ]


def test_kimi_code_keeps_the_token_in_its_own_file() -> None:
    """Commands of the agent inherit each variable."""
    assert config_of()["providers"]["rollout"]["api_key"] == TOKEN
    assert TOKEN not in "".join(KimiCode().env(context()).values())
    assert TOKEN not in " ".join(KimiCode().command(context()))


def test_kimi_code_merges_the_users_settings() -> None:
    mine = config_of(
        retries=2, max_tokens=9, tools=("Bash",), settings={"loop_control": {"compaction_max_attempts": 1}}
    )
    assert mine["loop_control"] == {
        "max_attempts_per_step": 3,
        "compaction_trigger_ratio": 0.99,
        "compaction_max_attempts": 1,
    }
    assert mine["models"]["policy"]["max_output_size"] == 9
    assert mine["tools"] == {"enabled": ["Bash"]}


def test_kimi_code_takes_any_text_as_prompt_that_fits_into_an_argument() -> None:
    assert "--prompt=--help" in KimiCode().command(context("--help"))
    with pytest.raises(
        AgentError, match=r"the prompt has 160,000 bytes, and Kimi Code takes at most 131,000"
    ):
        KimiCode().command(context("é" * 80_000))
    assert KimiCode(acp=True).command(context("é" * 80_000))[-1] == "acp"


@pytest.mark.parametrize(
    ("code", "stderr", "failure"),
    [
        (0, "", None),
        (1, EMPTY, None),
        (1, "error: failed to run prompt: 410 gone\nSee log: x\n", "Kimi Code ended with an error: 410 gone"),
        (1, "SyntaxError", "Kimi Code exited with code 1: SyntaxError"),
        (
            127,
            "sh: node: not found",
            "Kimi Code could not be started in the sandbox (exit code 127): sh: node",
        ),
    ],
)
def test_kimi_code_failure_is_read_from_standard_error(code: int, stderr: str, failure: str | None) -> None:
    said = KimiCode().failure(AgentExit(code, None, stderr))
    assert (said or "").startswith(failure or "")
    assert (said is None) is (failure is None)


@pytest.mark.slow
@pytest.mark.anyio
async def test_kimi_code_finds_files_with_the_ripgrep_of_its_bundle() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "Glob", "arguments": '{"pattern": "*.md"}'}}
    reply = Completion({"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls")
    trial = await trial_of(KimiCode(), ScriptedModel(reply, "Done."))
    assert trial.failure is None
    assert trial.texts("tool_result") == ["README.md"]
