"""What PiAgent puts into a sandbox, and the settings it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from swe_agents_pi.agent import PiAgent
from swe_agents_pi.config import PiConfig
from swe_agents_pi.plugin import swe_agents
from swe_core import ChatRequest

from .helpers import TOKEN, context


def written(agent: PiAgent, name: str) -> Any:
    return json.loads(agent.files(context())[f"/tmp/swe-home/pi/{name}"])


def test_plugin_offers_pi() -> None:
    (component,) = swe_agents()
    agent = component.create(component.config())
    assert (component.name, agent.name, agent.version, agent.dialect) == ("pi", "pi", "1.5.2", "chat")


def test_token_and_endpoint_are_in_one_variable_and_one_file() -> None:
    agent, ctx = PiAgent(), context()
    env = agent.env(ctx)
    assert written(agent, "models.json")["providers"]["rollout"]["apiKey"] == "$SWE_LLM_TOKEN"
    assert env["SWE_LLM_TOKEN"] == TOKEN
    assert TOKEN not in str([agent.files(ctx), agent.command(ctx), agent.stdin(ctx)])
    assert not [name for name in env if name.startswith(("OPENAI", "ANTHROPIC"))]
    assert not [value for value in env.values() if "4000" in value]


def test_proxy_is_bypassed_for_the_hosts_endpoint_only() -> None:
    assert PiAgent().env(context())["NO_PROXY"] == "127.0.0.1"
    assert PiAgent().env(context("http://[::1]:4000/v1"))["no_proxy"] == "::1"
    assert "NO_PROXY" not in PiAgent().env(context("https://api.example.org/v1"))


def test_command_runs_what_the_bundle_brings() -> None:
    argv = PiAgent(PiConfig(thinking="high", tools=("bash",))).command(context())
    assert argv[:2] == ["/opt/swe/pi/bin/node", "/opt/swe/pi/pi/dist/bundle/cli.js"]
    assert argv[argv.index("--extension") + 1] == "/opt/swe/pi/answer.mjs"
    assert argv[argv.index("--thinking") + 1] == "high"
    assert argv[argv.index("--tools") + 1] == "bash"


def test_summary_of_a_compaction_is_told_apart_by_its_system_prompt() -> None:
    asks = "You are a context summarization assistant. Your task is to read a conversation"
    for role, text, summary in (("system", asks, True), ("user", asks, False), ("system", "You fix.", False)):
        # The role comes from a tuple, so mypy sees no literal.
        request = ChatRequest({}, [{"role": role, "content": text}])  # type: ignore[list-item]  # a role as text
        assert PiAgent().summary(request) is summary
    assert not PiAgent().summary(ChatRequest({}, []))


def test_settings_and_model_are_merged_key_by_key() -> None:
    given = {"compaction": {"enabled": True}, "retry": {"baseDelayMs": 1}}
    thinks = {"compat": {"thinkingFormat": "qwen-chat-template"}}
    agent = PiAgent(PiConfig(thinking="low", settings=given, model=thinks))
    settings = written(agent, "settings.json")
    assert written(PiAgent(), "settings.json")["compaction"] == {"enabled": False}, "it rewrites history"
    assert settings["compaction"] == {"enabled": True}
    assert settings["retry"]["baseDelayMs"] == 1
    assert settings["retry"]["maxRetries"] == 1
    assert settings["httpIdleTimeoutMs"] == 0
    (model,) = written(agent, "models.json")["providers"]["rollout"]["models"]
    assert model["reasoning"] is True
    assert model["compat"]["thinkingFormat"] == "qwen-chat-template"
    assert model["compat"]["supportsStore"] is False


def test_wrong_settings_are_refused() -> None:
    wrong: Any = {"thinking": "deep", "tools": [], "max_tokens": 0, "retries": -1, "unknown": 1}
    for name, value in wrong.items():
        with pytest.raises(ValidationError, match=name):
            PiConfig.model_validate({name: value})
