"""What the agents in Python share: bundle, launcher, token, and how the real ones end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from swe_agents import aider, mini_swe_agent, openhands
from swe_agents.aider import Aider, AiderConfig
from swe_agents.mini_swe_agent import MiniSweAgent
from swe_agents.openhands import OpenHands, OpenHandsConfig
from swe_agents.python_agent import PythonAgent
from swe_core.api.engine import ChatRequest, Completion
from swe_core.api.limits import Budgets
from swe_core.api.sandbox import Sandbox
from swe_core.bundles import Python, Wheels
from swe_core.errors import AgentError, RequestRefused
from swe_testing.agents import Run, ScriptedModel, shell_reply, text_reply

from .trials import TOKEN, calls, context, reader, trial_of

AGENTS = (MiniSweAgent, Aider, OpenHands)
PACKAGES = {"mini-swe-agent": "mini-swe-agent", "aider": "aider-chat", "openhands": "openhands-sdk"}
each = pytest.mark.parametrize("agent", [kind() for kind in AGENTS], ids=lambda agent: agent.name)
each_slow = pytest.mark.parametrize(
    "agent",
    [
        pytest.param(kind(), id=kind.name, marks=pytest.mark.long if kind is OpenHands else pytest.mark.slow)
        for kind in AGENTS
    ],
)
_PLACES = (
    "AGENTS.md", "CLAUDE.md", "CONVENTIONS.md", ".cursorrules", ".openhands/microagents/repo.md",
    ".openhands/skills/repo.md", ".agents/skills/repo/SKILL.md",
)  # fmt: skip
INSTRUCTIONS = dict.fromkeys(_PLACES, b"OBEY-THE-REPOSITORY")
"""Files with which a repository tells agents what to do."""


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
def test_token_and_endpoint_are_in_no_variable_of_others(agent: PythonAgent) -> None:
    ctx = context()
    env = agent.env(ctx)
    assert env["SWE_LLM_TOKEN"] == TOKEN
    assert TOKEN not in str([agent.files(ctx), agent.command(ctx), agent.stdin(ctx)])
    assert not [name for name in env if name.startswith(("OPENAI", "LLM", "LITELLM"))]
    assert not [value for value in env.values() if "4000" in value]
    assert ctx.base_url in str(agent.files(ctx))


@each
def test_command_starts_the_bundles_python_in_isolation(agent: PythonAgent) -> None:
    program, *options, launcher, settings = agent.command(context())
    place = f"/opt/swe/{agent.name}"
    assert (program, launcher) == (f"{place}/bin/python3", f"{place}/run/launcher.py")
    assert "-I" in options
    assert settings in agent.files(context())


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


@each_slow
async def test_spent_budget_ends_the_real_agent(agent: PythonAgent) -> None:
    trial = await trial_of(agent, ScriptedModel(*[work] * 9), budget=Budgets(turns=1))
    assert (trial.failure, trial.exit_code, trial.ended_by) == (None, 0, "turns")
    assert "The budget of this run is spent. Stop now." in trial.texts("text")


@pytest.mark.long
@pytest.mark.parametrize(("kind", "version"), [(kind, one) for kind in AGENTS for one in kind.pythons[1:]])
async def test_real_agent_works_with_each_other_python(kind: Any, version: str, monkeypatch: Any) -> None:
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


@each_slow
async def test_refused_call_is_a_failure_of_the_real_agent(agent: PythonAgent) -> None:
    trial = await trial_of(agent, ScriptedModel(RequestRefused("the test refuses")))
    assert isinstance(trial.failure, AgentError)
    assert agent.title in str(trial.failure)
    assert "the test refuses" in str(trial.failure)
    assert trial.events[-1 if agent.name != "aider" else -2].fatal


@each_slow
async def test_real_agent_loads_no_instructions_and_makes_no_auxiliary_call(agent: Any) -> None:
    """Neither a title nor a commit message is asked for: all that is sampled is the policy's work."""
    files = {
        **INSTRUCTIONS,
        ".env": b"OPENAI_API_BASE=http://127.0.0.1:1\nHTTP_PROXY=http://127.0.0.1:1\n",
        ".aider.conf.yml": b"read: CONVENTIONS.md\n",
        ".aider.model.settings.yml": b"- name: openai/policy\n  system_prompt_prefix: OBEY-THE-REPOSITORY\n",
        ".openhands/hooks.json": b'{"session_start": [{"hooks": [{"command": "touch ran"}]}]}',
    }
    model = ScriptedModel("README.md\n```\nNew.\n```\n", "Done.", "Done.")
    seen: list[str] = []

    async def after(sandbox: Sandbox) -> None:
        seen.append((await sandbox.exec(["ls"])).text)

    trial = await trial_of(agent, model, files=files, after=after)
    assert (trial.failure, {turn.auxiliary for turn in trial.turns}) == (None, {None})
    assert "ran" not in seen[0].split()
    assert "OBEY-THE-REPOSITORY" not in "".join(str(request.messages) for request in model.asked)


DONE = Run("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
EDIT = '{"command": "str_replace", "path": "/testbed/a.py", "old_str": "return 1", "new_str": "return 2"}'
COPY = Run("sed -i 's/return 1/return 2/' a.py", "I copy it.")
FINISH = calls("finish", '{"message": "I fixed it."}')
OLD, NEW = b"def f():\n    return 1\n", b"def f():\n    return 2\n"


def extends(model: ScriptedModel) -> bool:
    """Return whether each request begins with the messages of the one before."""
    asked = [request.messages for request in model.asked]
    return all(later[: len(earlier)] == earlier for earlier, later in pairwise(asked))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "script", "end"),
    [
        (MiniSweAgent(), [COPY, calls("bash", '{"command": "ech'), Run("echo 1"), DONE], "Submitted"),
        pytest.param(
            OpenHands(),
            [calls("file_editor", EDIT), calls("terminal", '{"command": ech'), Run("echo 1"), FINISH],
            "finished",
            marks=pytest.mark.long,
        ),
    ],
    ids=("mini-swe-agent", "openhands"),
)
async def test_real_agent_solves_a_task_in_one_row(agent: PythonAgent, script: list[Any], end: str) -> None:
    made, after = reader("a.py")
    model = ScriptedModel(*script)
    trial = await trial_of(agent, model, files={"a.py": OLD}, after=after)
    assert (trial.failure, trial.exit_code, made, len(trial.turns)) == (None, 0, [NEW], 4)
    assert trial.events[-1].text == f"ended: {end}"
    assert extends(model)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "last"),
    [(MiniSweAgent(), DONE), pytest.param(OpenHands(), "Done.", marks=pytest.mark.long)],
    ids=("mini", "oh"),
)
async def test_commands_of_the_real_agent_inherit_no_endpoint(agent: PythonAgent, last: Any) -> None:
    (shown, *_) = (await trial_of(agent, ScriptedModel(Run("env"), last))).texts("tool_result")
    assert "PATH=" in shown
    hidden = ("SWE_LLM", "OPENAI", "LITELLM", "TIKTOKEN", "LOG_LEVEL", "/rollout/", "\x1b")
    assert not [name for name in hidden if name in shown]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "script", "turns", "end"),
    [
        (MiniSweAgent(), ["One.", "", "Three.", "Four."], 3, "RepeatedFormatError"),
        pytest.param(OpenHands(), [""] * 9, 3, "stuck", marks=pytest.mark.long),
        pytest.param(
            *(OpenHands(OpenHandsConfig(stuck_detection=False)), [*[""] * 6, "Done."], 7, "finished"),
            marks=pytest.mark.long,
        ),
    ],
    ids=("mini-swe-agent", "openhands", "openhands goes on"),
)
async def test_real_agent_ends_without_commands(agent: Any, script: list[str], turns: int, end: str) -> None:
    trial = await trial_of(agent, ScriptedModel(*script))
    assert (trial.failure, trial.exit_code, len(trial.turns)) == (None, 0, turns)
    assert trial.texts("text") == [text for text in script[:turns] if text]
    assert trial.events[-1].text == f"ended: {end}"


@pytest.mark.long
async def test_real_openhands_summarises_its_history_if_asked_to() -> None:
    model = ScriptedModel(*[Run(f"echo {n}") for n in range(5)], "A summary.", "Done.")
    trial = await trial_of(OpenHands(OpenHandsConfig(condense_after=10)), model)
    assert trial.failure is None
    assert "the history was summarised: A summary." in trial.texts("info")
    assert not extends(model)


WHOLE = "pkg/a.py\n```\ndef f():\n    return 2\n```\n"
DIFF = "pkg/a.py\n```python\n<<<<<<< SEARCH\n    return 1\n=======\n    return 2\n>>>>>>> REPLACE\n```\n"
WRONG = DIFF.replace("return 1", "return 7")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit_format", "script", "problem"),
    [
        ("whole", ["I need pkg/a.py.", WHOLE], "Fix it."),
        ("diff", ["I need pkg/a.py.", DIFF], "Fix it."),
        ("whole", [WHOLE], "/clear See http://127.0.0.1:1/x and fix pkg/a.py."),
        ("diff", [f"pkg/a.py {WRONG}", *[WRONG] * 4, DIFF], "Fix it."),
    ],
    ids=("whole", "diff", "task names the file and an address", "failed edits beyond its own limit"),
)
async def test_real_aider_edits_a_file_alone(edit_format: Any, script: list[str], problem: str) -> None:
    found: list[tuple[bytes, str]] = []

    async def after(sandbox: Sandbox) -> None:
        status = await sandbox.exec(["git", "status", "--short", "--ignored"])
        found.append((await sandbox.read("/testbed/pkg/a.py"), status.text))

    model, files = ScriptedModel(*script), {"pkg/a.py": OLD, "pkg/b.py": b"def g():\n    return 1\n"}
    agent = Aider(AiderConfig(edit_format=edit_format))
    trial = await trial_of(agent, model, files=files, problem=problem, after=after)
    assert (trial.failure, trial.exit_code, len(trial.turns)) == (None, 0, len(script))
    assert found == [(NEW, " M pkg/a.py\n")]
    assert not any(request.tools for request in model.asked)
    if script[0].startswith("I need"):
        assert trial.texts("text") == script
        first, second = (str(request.messages) for request in model.asked)
        assert "│def g():" in first, "the map of the repository"
        assert "added these files to the chat" in second
