"""The settings, commands and variables of each agent, and where its token is kept."""

from __future__ import annotations

import json
import tomllib
from functools import reduce
from typing import Any

import pytest
from pydantic import ValidationError

from swe_agents.acp import AcpAgent, AcpConfig
from swe_agents.aider import Aider, AiderConfig
from swe_agents.claude_code import ClaudeCode, ClaudeCodeConfig, swe_checks
from swe_agents.codex import TOKEN as CODEX_TOKEN
from swe_agents.codex import Codex, CodexConfig
from swe_agents.gemini_cli import GeminiCli, GeminiCliConfig
from swe_agents.kimi_code import KimiCode, KimiCodeConfig
from swe_agents.mini_swe_agent import MiniSweAgent, MiniSweAgentConfig
from swe_agents.opencode import OpenCode, OpenCodeConfig
from swe_agents.openhands import OpenHands, OpenHandsConfig
from swe_agents.qwen_code import OTHER_TOOLS, TOOLS, QwenCode, QwenCodeConfig
from swe_agents.qwen_code import TOKEN as QWEN_TOKEN
from swe_agents.side_calls import side_call
from swe_core import AgentSpec, ChatRequest
from swe_core.errors import AgentError, ConfigError

from .trials import TOKEN, context

HOME = "/tmp/swe-home"
FILES = {
    "claude-code": "claude-code/settings.json",
    "codex": "codex/config.toml",
    "gemini-cli": ".gemini/settings.json",
    "kimi-code": "config.toml",
    "opencode": "opencode/config/opencode/opencode.json",
}
MODEL = "org/Model-8B:high"
URL = "http://127.0.0.1:4000/rollout/1"


def settings_of(agent: AgentSpec) -> Any:
    """Return the content of the agent's settings file."""
    name = FILES.get(agent.name, "settings.json")
    text = agent.files(context())[f"{HOME}/{name}"].decode()
    return tomllib.loads(text) if name.endswith(".toml") else json.loads(text)


LONG = 86_400
"""Seconds of a day, which no call lasts."""
ROLLOUT = "model_providers/rollout"
SETTINGS: list[tuple[AgentSpec, dict[str, object]]] = [
    (ClaudeCode(ClaudeCodeConfig(settings={"autoCompactEnabled": True, "attribution": {"pr": "mine"}})),
     {"autoCompactEnabled": True, "attribution": {"commit": "", "pr": "mine"}}),
    (Codex(CodexConfig(retries=3, settings={"web_search": "live", "features": {"goals": True}})),
     {f"{ROLLOUT}/base_url": f"{URL}/v1", f"{ROLLOUT}/env_key": CODEX_TOKEN,
      f"{ROLLOUT}/wire_api": "responses", f"{ROLLOUT}/request_max_retries": 3,
      f"{ROLLOUT}/stream_max_retries": 3, "web_search": "live",
      "features/goals": True, "features/view_image": False}),
    (GeminiCli(GeminiCliConfig(retries=3, tools=("glob",), settings={"model": {"compression": 0.5}})),
     {"general/maxAttempts": 4, "tools/core": ["glob"],
      "model/compression": 0.5, "model/disableLoopDetection": True}),
    (KimiCode(KimiCodeConfig(retries=2, max_tokens=9, tools=("Bash",),
                             settings={"loop_control": {"compaction_max_attempts": 1}})),
     {"providers/rollout/api_key": TOKEN, "loop_control/max_attempts_per_step": 3,
      "loop_control/compaction_trigger_ratio": 0.99, "loop_control/compaction_max_attempts": 1,
      "models/policy/max_output_size": 9, "tools": {"enabled": ["Bash"]}}),
    (OpenCode(OpenCodeConfig(settings={"permission": {"task": "allow"}, "compaction": {"auto": True}})),
     {"provider/rollout/options/apiKey": f"{{file:{HOME}/opencode/token}}",
      "provider/rollout/options/baseURL": f"{URL}/v1", "model": f"rollout/{MODEL}",
      "small_model": f"rollout/{MODEL}", "compaction": {"auto": True, "prune": False},
      "permission": {"*": "allow", "task": "allow"}
      | dict.fromkeys(("question", "skill", "todowrite", "webfetch", "websearch"), "deny")}),
    (QwenCode(QwenCodeConfig(tools=("glob", "skill"), max_tokens=9, settings={"model": {"effort": 1}})),
     {"modelProviders/openai/0/id": MODEL, "modelProviders/openai/0/envKey": QWEN_TOKEN,
      "modelProviders/openai/0/generationConfig/samplingParams": {"max_tokens": 9},
      "permissions": {"allow": ["glob", "skill"]}, "model": {"effort": 1},
      "tools/disabled": [name for name in (*TOOLS, *OTHER_TOOLS) if name not in ("glob", "skill")]}),
    (MiniSweAgent(MiniSweAgentConfig(settings={"agent": {"x": "B"}, "environment": {"timeout": 7}})),
     {"settings/agent": {"cost_limit": 0, "x": "B"}, "settings/environment": {"timeout": 7},
      "settings/model/model_name": f"openai/{MODEL}", "settings/model/model_kwargs/timeout": LONG}),
    (Aider(),
     {"settings/model": f"openai/{MODEL}", "settings/edit_format": "whole", "settings/retry_seconds": 0,
      "settings/params/timeout": LONG}),
    (OpenHands(OpenHandsConfig(llm={"model_canonical_name": "kimi-k2.6"})),
     {"settings/llm/model": f"openai/{MODEL}", "settings/llm/model_canonical_name": "kimi-k2.6",
      "settings/llm/reasoning_effort": None, "settings/llm/timeout": LONG, "settings/llm/num_retries": 0,
      "settings/condense_after": None}),
    (OpenHands(OpenHandsConfig(retries=2)), {"settings/llm/num_retries": 2}),
]  # fmt: skip


def step(place: Any, key: str) -> Any:
    return place[int(key)] if isinstance(place, list) else place[key]


@pytest.mark.parametrize(("agent", "wanted"), SETTINGS, ids=lambda value: getattr(value, "name", ""))
def test_own_limits_are_off_and_settings_are_merged(agent: AgentSpec, wanted: dict[str, object]) -> None:
    told = settings_of(agent)
    assert {path: reduce(step, path.split("/"), told) for path in wanted} == wanted


@pytest.mark.parametrize("agent", [agent for agent, _ in SETTINGS[:6]], ids=lambda agent: agent.name)
def test_token_is_where_commands_of_the_agent_do_not_look(agent: AgentSpec) -> None:
    """They inherit each variable but those that their agent keeps back, which the real ones show."""
    ctx = context()
    files = [path for path, content in agent.files(ctx).items() if TOKEN.encode() in content]
    kept = {"opencode": [f"{HOME}/opencode/token"], "kimi-code": [f"{HOME}/config.toml"]}
    assert files == kept.get(agent.name, [])
    assert len([name for name, value in agent.env(ctx).items() if TOKEN in value]) == (not files)
    assert TOKEN not in str([agent.command(ctx), agent.stdin(ctx)])


def test_endpoint_is_in_the_variables_of_those_that_take_it_there() -> None:
    for agent, name in ((ClaudeCode(), "ANTHROPIC_BASE_URL"), (GeminiCli(), "GOOGLE_GEMINI_BASE_URL")):
        assert agent.env(context())[name] == URL, "without its version"
    for other in (Codex(), OpenCode(), KimiCode()):
        assert not [value for value in other.env(context()).values() if "4000" in value]


def test_variables_of_an_agent_are_kept_from_its_commands() -> None:
    assert CODEX_TOKEN in settings_of(Codex())["shell_environment_policy"]["exclude"]
    agent, ctx = ClaudeCode(), context()
    env = agent.env(ctx)
    told = {name for name, value in env.items() if TOKEN in value or ctx.root_url in value}
    forgets = agent.files(ctx)[env["CLAUDE_ENV_FILE"]].decode().split()
    assert (forgets[0], {*forgets[1:]}) == ("unset", told)
    assert "LOG_LEVEL" in settings_of(OpenHands())["variables"]
    assert "LOG_LEVEL" not in OpenHands().env(ctx)


def test_further_limits_are_off() -> None:
    told = settings_of(Aider())["settings"]
    assert min(told["history_tokens"], told["metadata"]["max_input_tokens"]) >= 10**9
    assert told["cache"].startswith(f"{HOME}/")
    for retries, attempts in ((None, "1"), (2, "3")):
        agent = MiniSweAgent(None if retries is None else MiniSweAgentConfig(retries=retries))
        assert agent.env(context())["MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT"] == attempts


CLAUDE = ClaudeCode(ClaudeCodeConfig(tools=("Bash", "Glob"), args=("--verbose",)))


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (CLAUDE, ("--tools Bash,Glob", f"--model {MODEL}", "--verbose")),
        (Codex(), (MODEL,)),
        (Codex(CodexConfig(model="gpt-5.5")), ("--model gpt-5.5",)),
        (GeminiCli(), (f"--model={MODEL}",)),
        (GeminiCli(acp=True), ("--acp",)),
        (QwenCode(), (f"--model {MODEL}", "--output-format stream-json")),
        (QwenCode(acp=True), ("--acp",)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_command_has_model_mode_and_the_users_arguments(agent: AgentSpec, words: tuple[str, ...]) -> None:
    command = " ".join(agent.command(context()))
    assert [word for word in words if word not in command] == []


def test_kimi_code_takes_any_text_as_prompt_that_fits_into_an_argument() -> None:
    assert "--prompt=--help" in KimiCode().command(context("--help"))
    with pytest.raises(AgentError, match=r"has 160,000 bytes, and Kimi Code takes at most 131,000"):
        KimiCode().command(context("é" * 80_000))
    assert KimiCode(acp=True).command(context("é" * 80_000))[-1] == "acp"


def test_wrong_settings_are_refused() -> None:
    wrong: list[tuple[Any, dict[str, Any]]] = [
        *((AiderConfig, one) for one in ({"edit_format": "architect"}, {"reflections": -1})),
        *((OpenHandsConfig, one) for one in ({"condense_after": 1}, {"retries": -1}, {"unknown": 1})),
    ]
    for config, one in wrong:
        with pytest.raises(ValidationError, match=next(iter(one))):
            config.model_validate(one)


def test_claude_code_is_not_fetched_before_its_terms_are_accepted() -> None:
    with pytest.raises(ConfigError, match=r"^Claude Code is proprietary.*accept_license = true") as refused:
        ClaudeCode().assets()
    assert "\n" not in str(refused.value)
    assert ClaudeCode(ClaudeCodeConfig(accept_license=True)).recipe().parts
    (check,) = swe_checks()
    assert check.look().state in ("ok", "info")


TOOL = [{"type": "function"}]
SNAPSHOT = "You distill the history into a <state_snapshot>."
CONDENSES = "You are maintaining a context-aware state summary for an interactive agent.\nYou will be given"
TITLE = "You are a title generator. You output ONLY a title."


def ask(text: str, tools: list[dict[str, Any]] | None = None, role: Any = "system") -> ChatRequest:
    return ChatRequest({}, [{"role": role, "content": text}], tools or [])


NOTHING = ChatRequest({}, [])


@pytest.mark.parametrize(
    ("agent", "request_", "auxiliary"),
    [
        (ClaudeCode(), ask("Web page content:", role="user"), "side call"),
        (ClaudeCode(), ask("Web page content:", TOOL, role="user"), None),
        (OpenCode(), ask(TITLE), "title"),
        (OpenCode(), ask("You are opencode."), None),
        (OpenCode(), NOTHING, None),
        (OpenCode(), ask(TITLE, TOOL), None),
        (QwenCode(), ask("Name this session."), "side call"),
        (QwenCode(), ask("You fix bugs.", TOOL), None),
        (QwenCode(), ask(SNAPSHOT), None),
        (QwenCode(), NOTHING, "side call"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_calls_that_are_not_policys(agent: AgentSpec, request_: ChatRequest, auxiliary: str | None) -> None:
    assert agent.auxiliary(request_) == auxiliary


@pytest.mark.parametrize("agent", [GeminiCli(), QwenCode(), AcpAgent(AcpConfig(agent="qwen-code"))])
def test_summary_of_a_compression_is_told_apart(agent: AgentSpec) -> None:
    others = (ask("You fix <state_snapshot> bugs.", TOOL), ask("You fix bugs."), NOTHING)
    assert [agent.summary(request) for request in (ask(SNAPSHOT), *others)] == [True, False, False, False]
    assert [OpenHands().summary(ask(CONDENSES, role=role)) for role in ("system", "user")] == [True, False]


def test_suggestion_for_the_user_is_a_side_call_though_it_offers_tools() -> None:
    suggests: Any = {"role": "user", "content": "[SUGGESTION MODE: Suggest what the user might type.]"}
    request = ChatRequest({}, [{"role": "system", "content": "You fix bugs."}, suggests], TOOL)
    assert side_call(request) == "suggestion"
