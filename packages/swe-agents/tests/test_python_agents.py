"""What the agents in Python share: bundle, launcher, token, and how the real ones end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_agents import aider, mini_swe_agent, openhands
from swe_agents.aider import Aider
from swe_agents.mini_swe_agent import MiniSweAgent
from swe_agents.openhands import OpenHands
from swe_agents.python_agent import PythonAgent
from swe_core import AgentEvent
from swe_core.api.engine import ChatRequest, Completion
from swe_core.api.limits import Budgets
from swe_core.api.sandbox import Sandbox
from swe_core.bundles import Python, Wheels
from swe_core.errors import AgentError, RequestRefused
from swe_testing.agents import Run, ScriptedModel, shell_reply, text_reply

from .python_agents import settings_of
from .trials import TOKEN, context, odd_lines, trial_of

AGENTS = (MiniSweAgent, Aider, OpenHands)
PACKAGES = {"mini-swe-agent": "mini-swe-agent", "aider": "aider-chat", "openhands": "openhands-sdk"}
each = pytest.mark.parametrize("agent", [kind() for kind in AGENTS], ids=lambda agent: agent.name)
_PLACES = (
    "AGENTS.md", "CLAUDE.md", "CONVENTIONS.md", ".cursorrules", ".openhands/microagents/repo.md",
    ".openhands/skills/repo.md", ".agents/skills/repo/SKILL.md",
)  # fmt: skip
INSTRUCTIONS = dict.fromkeys(_PLACES, b"OBEY-THE-REPOSITORY")
"""Files with which a repository tells agents what to do."""
KEYS = st.sampled_from(
    ("role", "kind", "type", "text", "content", "extra", "tool_calls", "function", "thought", "tool_name")
)
VALUES = st.sampled_from(("assistant", "tool", "exit", "text", "error", "ActionEvent", "End", "\ud83d"))
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)


@pytest.mark.parametrize("module", [mini_swe_agent, aider, openhands])
def test_plugin_offers_the_agent_and_the_check_of_its_bundle(module: Any) -> None:
    (component,) = module.swe_agents()
    agent = component.create(component.config())
    assert (component.name, agent.dialect) == (agent.name, "chat")
    (check,) = module.swe_checks()
    assert check.name == "bundle"


@each
def test_bundle_pins_every_wheel_by_hash_for_its_pythons(agent: PythonAgent) -> None:
    python, wheels, *_ = agent.recipe().parts
    assert isinstance(python, Python)
    assert isinstance(wheels, Wheels)
    assert wheels.python == python
    lines = re.sub(r"^#.*\n|\\\n", "", wheels.lock, flags=re.M).splitlines()
    assert python.versions == agent.pythons
    most = 2 * len(agent.pythons)  # one for each architecture
    pinned = re.compile(rf"[a-z0-9-]+==[\w.]+( +--hash=sha256:[0-9a-f]{{64}}){{1,{most}}}")
    assert [line for line in lines if not pinned.fullmatch(line)] == []
    assert f"\n{PACKAGES[agent.name]}=={agent.version} " in wheels.lock


@each
def test_token_travels_in_the_environment_only(agent: PythonAgent) -> None:
    ctx = context()
    assert agent.env(ctx)["SWE_LLM_TOKEN"] == TOKEN
    assert TOKEN not in str([agent.files(ctx), agent.command(ctx), agent.stdin(ctx)])


@each
def test_no_variable_names_the_endpoint(agent: PythonAgent) -> None:
    env = agent.env(context())
    assert not [name for name in env if name.startswith(("OPENAI", "LLM", "LITELLM"))]
    assert not [value for value in env.values() if "4000" in value]
    assert context().base_url in json.dumps(settings_of(agent))


@each
def test_command_starts_the_bundles_python_in_isolation(agent: PythonAgent) -> None:
    program, *options, launcher, settings = agent.command(context())
    place = f"/opt/swe/{agent.name}"
    assert (program, launcher) == (f"{place}/bin/python3", f"{place}/run/launcher.py")
    assert "-I" in options
    assert settings in agent.files(context())


@each
@given(line=st.text() | JSON.map(json.dumps))
def test_no_line_raises_and_every_event_can_be_written(agent: PythonAgent, line: str) -> None:
    for event in agent.parse_event(line):
        assert AgentEvent.model_validate_json(event.model_dump_json()) == event


@each
def test_odd_lines_are_shown_as_they_are(agent: PythonAgent) -> None:
    assert {event.kind for event in odd_lines(agent)} <= {"info"}


RUNNER = """
import os, sys
os.environ["SET_BY_AN_IMPORT"] = os.environ["FOR_IMPORTS"]
sys.path.append("/added/by/an/import")
print("noise of an import")

def run(settings, token, prompt, emit):
    print("noise of a run", flush=True)
    os.system("env; echo noise of a command")
    emit(repr([settings, token, prompt, sys.path[-1] == "/added/by/an/import"]))
    emit("\\ud83d")
"""


def test_launcher_keeps_token_and_noise_from_commands_and_events(tmp_path: Path) -> None:
    launcher = resources.files("swe_agents").joinpath("python_launcher.py").read_bytes()
    (tmp_path / "launcher.py").write_bytes(launcher)
    (tmp_path / "runner.py").write_text(RUNNER)
    told = {"variables": {"FOR_IMPORTS": "1", "HOME": "/changed"}, "settings": {"a": 1}}
    (tmp_path / "settings.json").write_text(json.dumps(told))
    done = subprocess.run(
        [sys.executable, "-I", tmp_path / "launcher.py", tmp_path / "settings.json"],
        input="Fix ünïcödé.".encode(),
        env={"PATH": os.environ["PATH"], "HOME": "/home", "SWE_LLM_TOKEN": TOKEN},
        capture_output=True,
        check=True,
    )
    said = done.stderr.decode()
    noise = {f"noise of {what}" for what in ("an import", "a run", "a command")}
    assert done.stdout.decode() == f"{[{'a': 1}, TOKEN, 'Fix ünïcödé.', False]!r}\n?\n"
    assert {*noise, "HOME=/home"} <= {*said.splitlines()}
    assert not re.search(f"{TOKEN}|SWE_LLM_TOKEN|FOR_IMPORTS|SET_BY_AN_IMPORT", said)


def work(request: ChatRequest) -> Completion:
    """Reply with a command, or ask aider's way for a file."""
    return shell_reply(request, Run("true")) if request.tools else text_reply("README.md, please.")


@pytest.mark.slow
@pytest.mark.anyio
@each
async def test_spent_budget_ends_the_real_agent(agent: PythonAgent) -> None:
    trial = await trial_of(agent, ScriptedModel(*[work] * 9), budget=Budgets(turns=1))
    assert (trial.failure, trial.exit_code, trial.ended_by) == (None, 0, "turns")
    assert "The budget of this run is spent. Stop now." in trial.texts("text")


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.parametrize(
    ("kind", "version"), [(kind, version) for kind in AGENTS for version in kind.pythons[1:]]
)
async def test_real_agent_works_with_each_other_python(
    kind: type[PythonAgent], version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        Python((version,)).find(kind.name)
    except AgentError as error:  # the agent needs one of its Pythons, no host needs all
        pytest.skip(str(error))
    monkeypatch.setattr(kind, "pythons", (version,))
    agent = kind()
    trial = await trial_of(agent, ScriptedModel(*[work] * 9), budget=Budgets(turns=1))
    assert (trial.failure, trial.exit_code, trial.ended_by) == (None, 0, "turns")
    (asset,) = agent.assets()
    assert (asset.path / f"lib/python{version}").is_dir()


@pytest.mark.slow
@pytest.mark.anyio
@each
async def test_refused_call_is_a_failure_of_the_real_agent(agent: PythonAgent) -> None:
    trial = await trial_of(agent, ScriptedModel(RequestRefused("the test refuses")))
    assert isinstance(trial.failure, AgentError)
    assert agent.title in str(trial.failure)
    assert "the test refuses" in str(trial.failure)
    assert trial.events[-1 if agent.name != "aider" else -2].fatal


@pytest.mark.slow
@pytest.mark.anyio
@each
async def test_real_agent_loads_no_instructions_of_the_repository_and_makes_no_auxiliary_call(
    agent: PythonAgent,
) -> None:
    """Neither a title nor a commit message is asked for: all that is sampled is the policy's work."""
    files = {
        **INSTRUCTIONS,
        ".env": b"OPENAI_API_BASE=http://127.0.0.1:1\nHTTP_PROXY=http://127.0.0.1:1\n",
        ".aider.conf.yml": b"read: CONVENTIONS.md\n",
        ".aider.model.settings.yml": b"- name: openai/policy\n  system_prompt_prefix: OBEY-THE-REPOSITORY\n",
        ".openhands/hooks.json": b'{"session_start": [{"hooks": [{"command": "touch ran"}]}]}',
    }
    model = ScriptedModel("README.md\n```\nNew.\n```\n", "Done.", "Done.")
    ran: list[int] = []

    async def after(sandbox: Sandbox) -> None:
        ran.append((await sandbox.exec(["test", "-e", "ran"])).exit_code)

    trial = await trial_of(agent, model, files=files, after=after)
    assert (trial.failure, ran, {turn.auxiliary for turn in trial.turns}) == (None, [1], {None})
    assert "OBEY-THE-REPOSITORY" not in "".join(str(request.messages) for request in model.asked)
