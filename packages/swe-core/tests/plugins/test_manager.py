"""Plugins: discovery, selection, blocking and errors, with real metadata of distributions on the path."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from swe_core.api.component import RunOption
from swe_core.cli.run import add_options, run
from swe_core.errors import PluginError
from swe_core.plugins.manager import PluginSet, Role, allow_list
from swe_core.run.components import ResolvedComponent
from swe_core.run.plan import grader_of, plan_run
from swe_core.run.settings import load_settings

Install = Callable[..., None]
Load = Callable[[str, str], PluginSet]

AGENT = """
from swe_core import AgentSpec, Component, hookimpl

class Spec(AgentSpec):
    name = "{name}"
    def command(self, ctx): return ["true"]

@hookimpl
def swe_agents():
    return [Component("{name}", lambda config: Spec(), summary="a test agent")]
"""

HOOK = "from swe_core import hookimpl\n@hookimpl\n"
OPTION = f"""{HOOK}def swe_options():
    from swe_core.api.component import RunOption
    return [RunOption("{{flag}}", "{{setting}}", "How weights are sent.", "HOW")]
"""
WORKER = f"""{HOOK}def swe_workers():
    from swe_core import Component
    return [Component("training", lambda config: None, defaults={{defaults}}, settings={{settings}})]
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a one-module distribution with an entry point in our group."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(dist: str, point: str, code: str) -> None:
        # Modules stay imported: a name of its own for each test.
        module = f"{dist}_{tmp_path.name}".replace("-", "_")
        (site / f"{module}.py").write_text(textwrap.dedent(code))
        info = site / f"{dist.replace('-', '_')}-1.2.3.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.2.3\n")
        (info / "entry_points.txt").write_text(f"[swe_core]\n{point} = {module}\n")

    return make


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """All plugins, and one more from a file of that name."""

    def load(name: str, code: str) -> PluginSet:
        file = tmp_path / name
        file.write_text(code)
        return PluginSet(extra=[str(file)])

    return load


def chosen_agent(plugins: PluginSet, name: str | None, default: str) -> str | None:
    chosen = plugins.choose("agent", name, default)
    return None if chosen is None else chosen.name


@pytest.fixture
def acme(install: Install) -> None:
    """An installed plugin that offers an agent of its name."""
    install("acme-agent", "acme", AGENT.format(name="acme"))


@pytest.mark.usefixtures("acme")
def test_installed_plugin_is_listed_with_its_components() -> None:
    plugin = PluginSet().plugins["acme"]
    assert (plugin.origin, plugin.version, plugin.error) == ("acme-agent", "1.2.3", None)
    assert [(registered.role, registered.name) for registered in plugin.components] == [("agent", "acme")]


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import not_there", "ModuleNotFoundError: No module named 'not_there"),
        (AGENT.replace("@hookimpl", ""), "its function swe_agents lacks @hookimpl"),
    ],
)
def test_broken_plugin_is_listed_and_others_work(install: Install, code: str, says: str) -> None:
    install("acme-broken", "broken", code)
    plugins = PluginSet()
    assert says in (plugins.plugins["broken"].error or "")
    assert plugins.find("agent", "acme").name == "acme"
    with pytest.raises(PluginError, match=f"^the plugin 'broken' is broken: {re.escape(says)}"):
        plugins.find("agent", "broken")
    says = f"the plugin 'broken' (acme-broken 1.2.3) is broken: {says}"
    with pytest.raises(PluginError, match=re.escape(says)):
        PluginSet(["broken"])


@pytest.mark.usefixtures("acme")
def test_selection_loads_selected_plugins_only_and_none_means_the_default(install: Install) -> None:
    install("other-agent", "other", AGENT.format(name="other"))
    plugins = PluginSet(["acme"])
    assert "other" not in plugins.plugins
    assert chosen_agent(plugins, None, "mini") == "acme"
    assert chosen_agent(PluginSet(), None, "nop") == "nop"
    assert chosen_agent(PluginSet(["oracle"]), None, "mini") == "oracle"


def test_candidates_for_one_role_name_the_option(install: Install) -> None:
    for name in "abc":
        install(f"acme-{name}", name, AGENT.format(name=name))
    plugins = PluginSet(["a", "b", "c"])
    listed = "'a' (plugin 'a'), 'b' (plugin 'b') and 'c' (plugin 'c')"
    says = f"^{re.escape(listed)} can each be the agent: choose one with --agent NAME$"
    with pytest.raises(PluginError, match=says):
        plugins.choose("agent", None, "mini")
    assert chosen_agent(plugins, "b", "mini") == "b"


def test_equal_component_names_collide(install: Install) -> None:
    install("acme-agent", "acme", AGENT.format(name="same"))
    install("other-agent", "other", AGENT.format(name="same"))
    with pytest.raises(PluginError, match=r"'acme' and 'other'.*-p no:"):
        PluginSet().find("agent", "same")
    assert PluginSet(extra=["no:other"]).find("agent", "same").plugin == "acme"


@pytest.mark.parametrize(
    "code", ["import not_there", OPTION.format(flag="--acme-sync", setting="worker.trl.sync")]
)
def test_equal_plugin_names_collide(install: Install, code: str) -> None:
    install("acme-agent", "acme", code)
    install("fake-agent", "acme", code)
    install("acme-local", "local", AGENT.format(name="acme"))
    with pytest.raises(PluginError, match="taken twice"):
        PluginSet(["acme"])
    plugins = PluginSet().plugins
    assert plugins["acme"].options == []
    assert (plugins["local"].builtin, plugins["local"].error) == (True, None)
    assert "taken twice" in (plugins["local (acme-local)"].error or "")


@pytest.mark.usefixtures("acme")
def test_plugin_that_cannot_be_had_names_what_excludes_it(install: Install) -> None:
    install("other-agent", "other", AGENT.format(name="other"))
    install("acme-empty", "empty", "")

    def ask(arguments: tuple[Any, ...], find: str | None) -> None:
        plugins = PluginSet(*arguments)
        if find:
            plugins.find("agent", find)

    cases: list[tuple[tuple[Any, ...], str | None, str]] = [
        ((["acme"], ["no:acme"]), None, "'acme' is blocked by -p no:acme"),
        ((["acme"], [], []), None, "'acme' is installed but not in SWE_PLUGINS"),
        ((["other"], []), "acme", "'acme' is installed but not among --plugins"),
        ((None, ["no:acme"]), "acme", "'acme' is blocked by -p no:acme"),
        ((None, [], []), "acme", "'acme' is installed but not in SWE_PLUGINS"),
        ((["empty"],), None, "'empty' (acme-empty 1.2.3) registers nothing"),
        ((None, ["not_a_module_at_all"]), None, "cannot be loaded: ModuleNotFoundError"),
        ((), "docker", "unknown agent 'docker'; there are: acme, "),
    ]
    assert (allow_list({}), allow_list({"SWE_PLUGINS": ""})) == (None, [])
    assert "acme" in PluginSet(allow=["acme"]).plugins
    assert PluginSet().plugins["empty"].error is None
    for arguments, find, says in cases:
        with pytest.raises(PluginError, match=re.escape(says)):
            ask(arguments, find)


def test_missing_known_plugin_names_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    with pytest.raises(PluginError, match=r"'docker' is not installed: pip install swe-sandbox-docker"):
        PluginSet(["docker"])


OFFERS: dict[Role, tuple[str, str]] = {
    **{"agent": ("swe_agents", "mini"), "sandbox": ("swe_sandboxes", "local")},
    **{"engine": ("swe_engines", "openai"), "grader": ("swe_graders", "swe")},
    **{"tasks": ("swe_tasks", "demo"), "worker": ("swe_workers", "collect")},
}


def test_one_file_plugin_is_chosen_for_each_role(load: Load) -> None:
    own = "@hookimpl\ndef {}(): return [Component('own', lambda config: None)]"
    code = ["from swe_core import Component, hookimpl", *(own.format(hook) for hook, _ in OFFERS.values())]
    plugins = load("mine.py", "\n".join(code))
    for role, (_, default) in OFFERS.items():
        names = [(one.name, one.plugin) for one in [plugins.choose(role, None, default)] if one is not None]
        assert names == [("own", "mine")]
        explicit = plugins.choose(role, default, default)
        assert explicit is not None
        assert explicit.name == default


CLASS = """
from swe_core import AgentSpec, Component, hookimpl
class MyAgent(AgentSpec):
    name = "mine"
    def command(self, ctx): return ["true"]
"""


def test_wrong_file_is_an_error_with_the_remedy(load: Load) -> None:
    for code, says in (
        ("import not_there", "ModuleNotFoundError: No module named 'not_there'"),
        (HOOK + "async def swe_agents(): return []", "its hook 'swe_agents' is 'async def'"),
        ("import json", "registers nothing: it has no function with @hookimpl"),
        (HOOK + "def swe_agents(): return []\ndef swe_engines(): return []", "swe_engines lacks @hookimpl"),
        ("def agents(): return []", "its function agents is no hook: rename it to swe_agents"),
        (
            CLASS + "class Plugin:\n    @hookimpl\n    def swe_agents(self): return []",
            "its swe_agents is in the class Plugin: move it to the module, with @hookimpl",
        ),
        (HOOK + "def swe_agents(): yield from ()", "offers nothing: its swe_agents returned no Component"),
        (
            "from swe_core import Component\n" + HOOK + "def swe_agents():\n    return [Component('a')]",
            "it failed in swe_agents(): TypeError: Component.__init__() missing 1 required positional "
            "argument: 'create' (my.py, line 5)",
        ),
        (
            "from swe_core import Component\n" + HOOK + "def swe_agents():\n    return Component('a', print)",
            "it returned an object of the class Component from swe_agents(), expected a list",
        ),
        (
            CLASS + "@hookimpl\ndef swe_agents(): return [MyAgent]",
            "MyAgent as item 0 from swe_agents(), expected a list of Components such as [Component('mine'",
        ),
        (HOOK + "def swe_agentz(): return []", "unknown hook 'swe_agentz' (did you mean 'swe_agents'?)"),
        (AGENT.format(name="a").replace("[Component(", "2 * [Component("), "offers the agent 'a' twice"),
        (HOOK + "def swe_agents(nope): return []", "nope"),
    ):
        with pytest.raises(PluginError) as raised:
            load("my.py", code)
        assert says in str(raised.value)
        assert "my.py" in str(raised.value)
    with pytest.raises(PluginError, match="already taken"):
        load("local.py", AGENT.format(name="mine"))


def test_notification_may_fail_and_take_fewer_arguments(load: Load) -> None:
    """A plugin with nothing else offers no component and is fine."""
    plugins = load(
        "listener.py",
        f"seen = []\n{HOOK}def swe_rollout_started(task_id):\n"
        "    seen.append(task_id)\n    raise ValueError('no')\n",
    )
    assert plugins.plugins["listener"].components == []
    assert chosen_agent(plugins, None, "mini") == "mini"
    problems = plugins.notify("swe_rollout_started", rollout_id="r", task_id="t", attempt=0)
    assert plugins.manager.get_plugin("listener").seen == ["t"]
    assert problems == ["the plugin 'listener' failed in swe_rollout_started: ValueError: no"]


@pytest.mark.parametrize("flag", ["--help", "--acme-sync"])
def test_option_is_added_and_an_existing_one_is_left_out_with_a_note(install: Install, flag: str) -> None:
    """The option of `swe-core run`, or of the first plugin, stays."""
    install("acme-sync", "aaa", OPTION.format(flag="--acme-sync", setting="worker.a.sync"))
    install("other-sync", "bbb", OPTION.format(flag=flag, setting="worker.b.sync"))
    plugins = PluginSet(allow=["aaa", "bbb"]).plugins
    expected = RunOption("--acme-sync", "worker.a.sync", "How weights are sent.", "HOW")
    assert plugins["aaa"].options == [expected]
    command = click.Command("run", params=list(run.params))
    (problem,) = add_options(command, plugins.values())
    assert f"the option {flag!r} of the plugin 'bbb' is left out" in problem
    assert "use --set worker.b.sync=HOW instead" in problem
    assert [param.opts for param in command.params[len(run.params) :]] == [["--acme-sync"]]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (OPTION.format(flag="weight-sync", setting="a.b.c"), "'weight-sync'.*such as '--my-option'"),
        (OPTION.format(flag="--acme-sync", setting="sync"), "'sync'.*such as 'worker.mine.my_option'"),
        (HOOK + "def swe_options(): return ['--x']", "expected a list of RunOptions"),
    ],
)
def test_invalid_option_is_an_error_of_its_plugin(install: Install, code: str, message: str) -> None:
    install("acme-sync", "sync", code)
    plugin = PluginSet().plugins["sync"]
    assert re.search(message, plugin.error or "")
    assert plugin.options == []


def test_worker_defaults_fill_unchosen_roles(load: Load, tmp_path: Path) -> None:
    """The choice of the user comes first, then that of the worker, then the default."""
    plugins = load("mine.py", WORKER.format(defaults={"agent": "nop", "engine": "vllm"}, settings={}))

    def planned(*sets: str, **run: Any) -> tuple[str, str | None, str]:
        settings = load_settings(None, sets, {"run": {"extra_plugins": (str(tmp_path / "mine.py"),), **run}})
        plan = plan_run(settings, plugins)
        side = plan.model_side
        return plan.agent.name, side.name if isinstance(side, ResolvedComponent) else None, plan.sandbox.name

    vllm = ["engine.vllm.url=http://127.0.0.1:9", "engine.vllm.model=m"]
    assert planned()[0] == "nop"
    assert planned(agent="oracle")[0] == "oracle"
    assert planned(*vllm, agent="mini") == ("mini", "vllm", "local")
    assert planned(worker="collect", extra_plugins=()) == ("mini", "replay", "local")


def test_worker_presets_settings_of_other_plugins(load: Load, tmp_path: Path) -> None:
    """A setting of the user comes first, then the preset, then the default of the component."""
    preset = {"grader": {"swe": {"suspicious": "unresolved"}}}
    plugins = load("mine.py", WORKER.format(defaults={}, settings=preset))

    def suspicious(*sets: str, **run: Any) -> object:
        settings = load_settings(None, sets, {"run": {"extra_plugins": (str(tmp_path / "mine.py"),), **run}})
        return getattr(grader_of(settings, plugins).config, "suspicious", None)

    assert suspicious() == suspicious("grader.swe.log_mb=1") == "unresolved"
    assert suspicious("grader.swe.suspicious=mark") == "mark"
    assert suspicious(worker="collect") == "mark"
