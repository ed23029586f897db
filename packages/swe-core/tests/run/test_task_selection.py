"""Task selection: each step, and their order."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.column_filter import ColumnFilter
from swe_core.api.task import Task
from swe_core.errors import ConfigError, PluginError, TaskError
from swe_core.plugins.manager import PluginSet
from swe_core.run.plan import plan_run
from swe_core.run.settings import load_settings
from swe_core.run.task_selection import TaskSelection, selection
from swe_testing.records import make_task


def task(name: str, **fields: Any) -> Task:
    return make_task(name, **{"repo": "o/r", "image": f"image-{name}", **fields})


class Source:
    recording = None

    def __init__(self, *tasks: Task) -> None:
        self.tasks = lambda: iter(tasks)


TEN = [task(f"t{number}", repo="o/odd" if number % 2 else "o/even") for number in range(10)]


def select(*tasks: Task, **run: Any) -> list[Task]:
    settings = load_settings(command_line={"run": run})
    filters = tuple(map(ColumnFilter.parse, settings.run.filter))
    return TaskSelection("mine", Source(*tasks), settings, filters).tasks()


def names(tasks: list[Task]) -> list[str]:
    return [task.instance_id for task in tasks]


def test_tasks_are_selected_by_name_or_filtered_then_shuffled_then_limited() -> None:
    assert select(*TEN) == TEN
    assert names(select(*TEN, only=["t7", "t2", "t7"])) == ["t7", "t2"]
    assert names(select(*TEN, filter=["repo=o/e*", "instance_id=t[0-5]"])) == ["t0", "t2", "t4"]
    both = [task("a", fail_to_pass=("x", "y")), task("b", fail_to_pass=("z",), image=None)]
    assert names(select(*both, filter=["fail_to_pass=y"])) == ["a"]
    assert names(select(*both, filter=["image=*"])) == ["a"]
    odd = {"filter": ["repo=o/odd"]}
    assert names(select(*TEN, **odd, limit=2)) == ["t1", "t3"]
    shuffled = names(select(*TEN, **odd, shuffle=1))
    assert sorted(shuffled) == ["t1", "t3", "t5", "t7", "t9"]
    assert shuffled != sorted(shuffled)
    assert names(select(*TEN, **odd, shuffle=1, limit=2)) == shuffled[:2]


@given(st.integers())
def test_seed_determines_the_order(seed: int) -> None:
    first = select(*TEN, shuffle=seed)
    assert first == select(*TEN, shuffle=seed)
    assert sorted(names(first)) == sorted(names(TEN))


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_image_map_matches_image_or_instance(tmp_path: Path, suffix: str) -> None:
    pairs = {"image-t1": "mine:1", "t2": "mine:2", "image-t2": "by-id-first"}
    text = json.dumps(pairs) if suffix == ".json" else "".join(f'"{k}" = "{v}"\n' for k, v in pairs.items())
    (tmp_path / f"map{suffix}").write_text(text)
    mapped = select(*TEN[:3], image_map=str(tmp_path / f"map{suffix}"))
    assert [task.image for task in mapped] == ["image-t0", "mine:1", "mine:2"]
    assert mapped[1].digest != TEN[1].digest
    some = select(*TEN, filter=["instance_id=t1"], image_map=str(tmp_path / f"map{suffix}"))
    assert [task.image for task in some] == ["mine:1"]


def test_invalid_image_map_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the image map"):
        select(*TEN, image_map=str(tmp_path / "m.json"))
    for name, text, says in (
        ("m.toml", "t1 = 1", "the value of 't1' is not the name of a container image"),
        ("m.toml", "a b", "is not TOML"),
        ("m.json", "[]", "holds no table"),
        ("m.json", "{", "is not JSON"),
        ("m.json", '{"t1": "two words"}', "the value of 't1' is not the name of a container image"),
        ("m.json", '{"t1": "x", "image-t_2": "x"}', "instance id 'image-t_2'; did you mean 'image-t2'?"),
        ("m.json", '{"nothing": "x"}', "or the instance id 'nothing'; the first id is 't0'"),
        ("m.json", '{"a/b": "c/d", "a/b": "e/f"}', "the key 'a/b' appears twice; remove one"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(ConfigError, match=says):
            select(*TEN, image_map=str(tmp_path / name))


def test_selection_without_tasks_is_an_error() -> None:
    with pytest.raises(TaskError, match="the task source 'mine' has no tasks"):
        select()
    with pytest.raises(ConfigError, match="the tasks 'demo' takes no --split"):
        chosen(tasks="demo", split="test")
    for run, says in (
        ({"filter": ["repo=o/none"]}, "--filter repo=o/none leaves none of 10 tasks"),
        ({"filter": ["repos=o/*"]}, "no task has the column 'repos'; did you mean 'repo'?"),
        ({"filter": ["repo"]}, "expected COLUMN=GLOB"),
        ({"filter": [" =x"]}, "expected COLUMN=GLOB"),
    ):
        with pytest.raises(ConfigError if "GLOB" in says else TaskError, match=re.escape(says)):
            select(*TEN, **run)


def chosen(plugins: PluginSet | None = None, **run: Any) -> TaskSelection:
    return selection(load_settings(command_line={"run": run}), plugins or PluginSet(allow=[]))


def test_filtering_source_gets_the_filters(tmp_path: Path) -> None:
    """Rows are matched by their own columns, others by the fields of a task."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"nothing": 1}')
    with pytest.raises(TaskError, match="no task has the column 'other'; there are: nothing"):
        chosen(tasks=str(file), filter=["other=1"]).tasks()
    assert names(chosen(tasks="demo", filter=["instance_id=demo__m*"]).tasks()) == ["demo__memofn-1"]


OWN = """
from pathlib import Path
from swe_core import Component, Config, hookimpl
from swe_testing.records import make_task

class Reading(Config):
    {setting}: Path | str | None = None

class Own:
    recording = None

    def __init__(self, config):
        self.config = config

    def tasks(self):
        yield make_task("own-" + str(self.config.{setting}).replace("/", "-").strip("-"))

@hookimpl
def swe_tasks():
    return [Component("own", Own, Reading)]
"""


def own(tmp_path: Path, setting: str) -> PluginSet:
    (tmp_path / "own.py").write_text(OWN.format(setting=setting))
    return PluginSet(extra=[str(tmp_path / "own.py")], allow=[])


def test_source_of_a_selected_plugin_is_the_choice_unless_another_is_named(tmp_path: Path) -> None:
    plugins = own(tmp_path, "color")
    plan = plan_run(load_settings(command_line={"run": {"agent": "oracle"}}), plugins)
    assert names(list(plan.tasks)) == ["own-None"]
    assert plan.settings.run.tasks == "own", "a resumed run has the same source"
    again = plan_run(load_settings(recorded=plan.settings.model_dump(mode="json")), plugins)
    assert again.tasks == plan.tasks
    assert chosen(plugins, tasks="demo", limit=1).name == "demo"
    plan = plan_run(load_settings(command_line={"run": {"agent": "oracle"}}), PluginSet(allow=[]))
    assert plan.settings.run.tasks == "demo"
    assert len(plan.tasks) > 1


def test_file_or_data_set_is_read_by_the_selected_source_that_reads_such(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("{}")
    for setting, reader in (("file", "own"), ("color", "rows"), ("dataset", "rows")):
        assert chosen(own(tmp_path, setting), tasks=str(file)).name == reader
    found = chosen(own(tmp_path, "dataset"), tasks="some/name")
    assert (found.name, names(found.tasks())) == ("own", ["own-some-name"])


def test_two_selected_sources_that_read_files_are_named(tmp_path: Path) -> None:
    own(tmp_path, "file")
    (tmp_path / "other.py").write_text(OWN.format(setting="file").replace('"own", Own', '"other", Own'))
    plugins = PluginSet(extra=[str(tmp_path / "own.py"), str(tmp_path / "other.py")], allow=[])
    with pytest.raises(PluginError, match=r"'own' .* and 'other' .* choose one with --tasks NAME"):
        chosen(plugins, tasks=str(tmp_path / "own.py"))


def test_engine_of_a_selected_plugin_is_refused_in_black_box_mode(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from swe_core import Component, hookimpl\n@hookimpl\n"
        "def swe_engines(): return [Component('mine', lambda config: None)]\n"
    )
    run = {"mode": "black-box", "engine_url": "http://127.0.0.1:9/v1", "model": "m", "agent_key_env": "PATH"}
    settings = load_settings(command_line={"run": run, "resources": {"network": "full"}})
    with pytest.raises(ConfigError, match=r"black-box has no engine, .* and plugins with an engine"):
        plan_run(settings, PluginSet(extra=[str(file)], allow=[]))
