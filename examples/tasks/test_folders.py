"""A task from a folder, graded by its own tests in a real sandbox."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from swe_core import SandboxSpec
from swe_core.errors import TaskError
from swe_tasks_folders import Folders, FoldersConfig
from swe_testing.agents import builtin

TOML = (
    'fail_to_pass = ["test_adder.py::test_add"]\npass_to_pass = []\ntest_command = "python3 -m pytest -rA"\n'
)
TESTS = """--- /dev/null
+++ b/test_adder.py
@@ -0,0 +1,5 @@
+from adder import add
+
+
+def test_add():
+    assert add(2, 2) == 4
"""
GOLD = """--- a/adder.py
+++ b/adder.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    repository = tmp_path / "adder" / "repository"
    repository.mkdir(parents=True)
    (repository / "adder.py").write_text("def add(a, b):\n    return a - b\n")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "An adder")):
        who = ("-c", "user.name=me", "-c", "user.email=me@example.com")
        subprocess.run(["git", "-C", repository, *who, *words], check=True)
    texts = {
        "task.toml": TOML,
        "instruction.md": "add(2, 2) is 0.\n",
        "tests.patch": TESTS,
        "gold.patch": GOLD,
    }
    for name, text in texts.items():
        (tmp_path / "adder" / name).write_text(text)
    return tmp_path


@pytest.mark.anyio
@pytest.mark.slow
async def test_only_the_gold_patch_is_resolved(folder: Path) -> None:
    (task,) = Folders(FoldersConfig(path=folder)).tasks()
    spec = SandboxSpec(repository=task.repository, workdir=task.workdir).for_grading()
    provider, grader = builtin("sandbox", "local", unisolated=True), builtin("grader", "swe")
    for patch, resolved in ((task.patch.encode(), True), (b"", False)):
        graded = await grader.grade(task, patch, provider, spec, 300.0)
        assert graded.grade.resolved is resolved, graded.log


def test_folder_that_is_no_task_is_an_error(folder: Path) -> None:
    (folder / "adder" / "task.toml").write_text("fail_to_pass = 1")
    with pytest.raises(TaskError, match="is not a task"):
        list(Folders(FoldersConfig(path=folder)).tasks())
