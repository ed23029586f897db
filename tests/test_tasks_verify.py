"""`swe-core tasks verify` as its users run it: real sandboxes, the real grader, a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swe_core.builtin.demo.source import DemoSource

from .conftest import Command, Done, SweCore, leftovers, wait_for
from .warm import Warm

Verify = Callable[..., Done]


@pytest.fixture
def environment(tmp_path: Path, scratch: Path) -> dict[str, str]:
    """A cache of its own, and a place where leftovers are seen."""
    places = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    return places | {"TMPDIR": str(scratch)}


@pytest.fixture
def verify(command: Command, environment: dict[str, str]) -> Verify:
    """Run `swe-core tasks verify ARGS`; nothing of it may be left after."""
    return partial(command, "tasks", "verify", env=environment)


@pytest.fixture
def demo(tmp_path: Path) -> str:
    """A file of the demo's tasks, with the plugins of pytest: a plugin is one kind of cheat."""
    path = tmp_path / "demo.jsonl"
    rows = [task.model_dump(mode="json") | {"setup": ""} for task in DemoSource(tmp_path / "demo").tasks()]
    names = {"fail_to_pass": "FAIL_TO_PASS", "pass_to_pass": "PASS_TO_PASS", "image": "image_name"}
    lines = [json.dumps({names.get(name, name): value for name, value in row.items()}) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


MANY = [
    "conftest-root",
    "conftest-nested",
    "pytest-ini",
    "setup-cfg",
    "pyproject",
    "sitecustomize",
    "pytest-shadow",
    "_pytest-package",
    "entry-point",
    "stdlib-shadow",
    "tests-neutered",
    "test-dir-linked",
    "stale-bytecode",
    "forged-summary",
    "forged-everywhere",
    "descriptors-closed",
    "reports-patched",
    "unittest-patched",
    "hidden-by-commit",
    "attributes",
]


@pytest.mark.slow
def test_demo_tasks_are_usable_and_many_cheats_are_not_paid(verify: Verify, demo: str, sandbox: str) -> None:
    """One task that pytest grades, one that unittest does; every third kind in containers."""
    cheats = MANY if sandbox == "local" else MANY[::3]
    two = ["--task", "demo__memofn-1", "--task", "demo__csvtidy-1"]
    options = ["--sandbox", sandbox, "--cheats", ",".join(cheats), "--concurrency", "3", "--json"]
    done = verify("--tasks", demo, *two, *options, timeout=500)
    tasks = json.loads(done.stdout)["tasks"]
    assert {task["task_id"]: task["reason"] for task in tasks if task["verdict"] != "usable"} == {}
    assert done.code == 0, done.stderr
    assert len(tasks) == 2
    for task in tasks:
        checks = {check["name"]: check["resolved"] for check in task["checks"]}
        assert (checks.pop("gold"), checks.pop("empty"), checks.pop("unrelated")) == (True, False, False)
        assert checks.keys() == set(cheats)
        assert set(checks.values()) == {False}
        assert (task["image_id"] is not None) is (sandbox == "docker")


@pytest.mark.slow
@pytest.mark.usefixtures("local_sandbox")
def test_no_cheat_resolves_a_demo_task(verify: Verify, demo: str) -> None:
    done = verify("--tasks", demo, "--task", "demo__memofn-1", "--concurrency", "2", "--json")
    (task,) = json.loads(done.stdout)["tasks"]
    assert {check["name"]: check["patch"] for check in task["checks"][3:] if check["resolved"]} == {}
    assert (task["verdict"], done.code) == ("usable", 0)


def git(where: Path, *args: str) -> str:
    who = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", "-C", where, *who, *args], capture_output=True, text=True, check=True)
    return done.stdout


GOLD = """--- a/adder.py
+++ b/adder.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


def new_tests(*lines: str) -> str:
    body = "".join(f"+{line}\n" for line in ("from adder import add", "", "", "def test_add():", *lines))
    name = "test_adder.py"
    head = f"diff --git a/{name} b/{name}\nnew file mode 100644\n--- /dev/null\n+++ b/{name}\n"
    return f"{head}@@ -0,0 +1,{4 + len(lines)} @@\n{body}"


@pytest.fixture
def rows(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of rows on a small repository; each argument is what differs in one row."""
    repository = tmp_path / "adder"
    repository.mkdir()
    git(repository, "init", "-q")
    (repository / "adder.py").write_text("def add(a, b):\n    return a - b\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "An adder")
    row = {
        "repo": "me/adder",
        "base_commit": git(repository, "rev-parse", "HEAD").strip(),
        "problem_statement": "add(2, 2) is 0.",
        "patch": GOLD,
        "test_patch": new_tests("    assert add(2, 2) == 4"),
        "FAIL_TO_PASS": ["test_adder.py::test_add"],
        "PASS_TO_PASS": [],
        "repository": str(repository),
        "test_command": "python -m pytest -rA",
    }

    def write(**changed: dict[str, Any]) -> Path:
        path = tmp_path / "rows.jsonl"
        given = [{"instance_id": name, **row, **change} for name, change in changed.items()]
        path.write_text("".join(f"{json.dumps(one)}\n" for one in given))
        return path

    return write


NOTHING = """--- /dev/null
+++ b/notes.txt
@@ -0,0 +1 @@
+Nothing to see.
"""


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.slow
def test_error_names_the_task_and_why(verify: Verify, rows: Any, tmp_path: Path, swe_core: SweCore) -> None:
    tasks = rows(
        good={},
        broken={"patch": NOTHING},
        unbroken={"test_patch": new_tests("    assert add(2, 0) == 2")},
        failing={"test_patch": GOLD.replace("return a - b", "return 3")},
    )
    report = tmp_path / "report.jsonl"
    done = verify("--tasks", str(tasks), "--cheats", "conftest-root,reports-patched", "--out", str(report))
    assert done.code == 1
    found = {line["task_id"]: line for line in map(json.loads, report.read_text().splitlines())}
    assert {name: line["verdict"] for name, line in found.items()} == {
        "good": "usable", "broken": "broken_gold", "unbroken": "unbroken", "failing": "error",
    }  # fmt: skip
    assert "'test_adder.py::test_add' FAILED" in found["broken"]["reason"]
    assert "does not apply" in found["failing"]["reason"]
    table = done.stdout.splitlines()
    assert table[0].split() == ["task", "verdict", "gold", "no", "fix", "cheats", "seconds"]
    assert table[1].split()[:5] == ["good", "usable", "1/1", "0/2", "0/2"]
    assert "usable 1, broken_gold 1, unbroken 1, error 1" in table

    run = swe_core("--tasks", str(tasks), "--verified", str(report), "--agent", "oracle")
    assert [rollout["id"] for rollout in run.rollouts] == ["good-0"], run.stderr
    changed = rows(good={"test_command": "python -m pytest -rA -q"})
    run = swe_core("--tasks", str(changed), "--verified", str(report), "--agent", "oracle")
    assert run.code == 2
    assert "commands of 'good' have changed since the report" in run.stderr


@pytest.mark.slow
@pytest.mark.usefixtures("local_sandbox")
def test_test_that_throws_a_coin_is_found(verify: Verify, rows: Any) -> None:
    coin = ("    import time", "    assert add(2, 2) == 4", "    assert time.time_ns() // 1000 % 2")
    done = verify("--tasks", str(rows(coin={"test_patch": new_tests(*coin)})), "--repeat", "20", "--json")
    (task,) = json.loads(done.stdout)["tasks"]
    assert (task["verdict"], done.code) == ("flaky", 1)
    assert "the gold patch resolved it in try " in task["reason"]


@pytest.mark.docker
def test_missing_image_is_named(verify: Verify, rows: Any, docker_image: str) -> None:
    tasks = rows(gone={"image_name": "swe-core-no-such-image:1", "repository": None})
    chosen = ("--sandbox", "docker", "--set", "sandbox.docker.pull=never")
    done = verify("--tasks", str(tasks), *chosen, "--json")
    (task,) = json.loads(done.stdout)["tasks"]
    assert (task["verdict"], done.code) == ("missing_image", 1)
    assert "'swe-core-no-such-image:1'" in task["reason"]


SLOW = '''
import anyio

from swe_core import Component, hookimpl
from swe_core.builtin.swe import SweGraderConfig, _create


class Slow:
    """The real grader, which never ends for the second task."""

    def __init__(self, real):
        self.real = real

    async def grade(self, task, *rest):
        if task.instance_id == "second":
            await anyio.sleep_forever()
        return await self.real.grade(task, *rest)


@hookimpl
def swe_graders():
    return [Component("slow", lambda config: Slow(_create(config)), SweGraderConfig)]
'''


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.parametrize(
    "how", [pytest.param(signal.SIGKILL, id="killed"), pytest.param(signal.SIGINT, id="interrupted")]
)
@pytest.mark.slow
def test_finished_rollouts_are_not_lost(
    verify: Verify, warm: Warm, rows: Any, tmp_path: Path, environment: Any, scratch: Path, how: Any
) -> None:
    plugin, report = tmp_path / "slow.py", tmp_path / "report.jsonl"
    plugin.write_text(SLOW)
    options = ["--cheats", "none", "--concurrency", "1", "--out", str(report)]
    options += ["-p", str(plugin), "--grader", "slow"]
    tasks = rows(first={}, second={})
    with warm.start(["tasks", "verify", "--tasks", str(tasks), *options], environment) as process:
        wait_for(lambda: report.exists() and "\n" in report.read_text(), process, process.communicate)
        process.send_signal(how)
        stdout, stderr = process.communicate(timeout=180)
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "usable 1, not finished 1" in stdout.splitlines()
        assert leftovers(scratch, process.pid) == []
        assert "Traceback" not in stderr
    (line,) = report.read_text().splitlines()
    assert (json.loads(line)["task_id"], json.loads(line)["verdict"]) == ("first", "usable")
    again = verify("--tasks", str(tasks), "--task", "first", *options)
    assert again.code == 0, again.stderr
    assert "1/1 first: usable (cached)" in again.stderr
    if how == signal.SIGINT:
        return
    assert "cached" not in verify("--tasks", str(tasks), "--task", "first", "--no-cache", *options).stderr
