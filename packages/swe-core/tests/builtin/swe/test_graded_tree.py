"""What a graded tree is made of: honest patches are in it whole, what cheats is not."""

from __future__ import annotations

import tomllib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from uuid import uuid4

import pytest

from swe_core.api.sandbox import ExecResult, Sandbox, SandboxProvider
from swe_core.api.task import Task
from swe_core.builtin.swe import graded_tree
from swe_core.builtin.swe.git_trees import Entry, blob_id
from swe_core.builtin.swe.reference import GIT_APPLY, make_reference
from swe_core.errors import GraderError, SandboxTimeout
from swe_core.sandboxing.repository.git import run_here
from swe_core.sandboxing.repository.patch import Base, record_base
from swe_testing.records import make_task

from ...repositories import Repo, slow_but

PATCHES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("patches.toml").read_text())
BASE: str = PATCHES["base"]
FIX = "sed -i 's/a - b/a + b/' calc.py pkg/ops.py"
SITE = ".venv/lib/site-packages"
IMAGE = f"mkdir -p {SITE}/pluggy; echo image | tee fast.so >{SITE}/pluggy/hooks.py"
"""Files of the image that git ignores."""
FRESH = f"git reset -q --hard; git clean -fdq; {IMAGE}"


@dataclass
class World:
    """One sandbox whose repository is reset to the base before each step."""

    sandbox: Sandbox
    task: Task
    empty: str = ""
    fixed: str = ""
    references: graded_tree.References = field(default_factory=graded_tree.References)

    async def sh(self, script: str) -> bytes:
        done = await self.sandbox.exec(["bash", "-euc", script])
        assert done.exit_code == 0, done.stderr.decode()
        return done.stdout

    async def grade(self, given: str | bytes, **changed: Any) -> graded_tree.GradedTree:
        """Return the graded tree of a patch, or of the changes that a script makes."""
        if isinstance(given, str):
            diff = "git add -A; git diff --cached --binary --no-renames --full-index HEAD"
            given = await self.sh(f"{FRESH}; {given}\n{diff}; {FRESH}")
        else:
            await self.sh(FRESH)
        base = await record_base(self.sandbox)
        task = self.task.model_copy(update=changed)
        tree = await graded_tree.prepare_tree(self.sandbox, base, task, given, self.references, timeout=60)
        if b".gitignore" not in given:
            assert (await record_base(self.sandbox)).tree == tree.id, "on disk is not what was decided"
        return tree

    async def text(self, path: str) -> str:
        return (await self.sandbox.read(f"{self.sandbox.spec.workdir}/{path}")).decode()


def kinds(tree: graded_tree.GradedTree) -> set[tuple[str, str]]:
    return {(found.kind, found.path) for found in tree.tampering}


@pytest.fixture(scope="module")
async def world(provider: SandboxProvider, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    repo = Repo(tmp_path_factory.mktemp("graded"))
    repo.sh(BASE)
    task = make_task(
        base_commit=repo.head,
        patch=repo.diff(f"{FIX}; echo 'x = 1' >pkg/extra.py"),
        test_patch=repo.diff("echo 'def test_add(): pass' >>tests/test_calc.py; echo its >tests/a"),
        fail_to_pass=("tests/test_calc.py::test_add",),
        pass_to_pass=("tests/test_calc.py::test_zero", "pkg/test_ops.py::test_ops"),
        test_command="pytest -rA",
    )
    async with provider.open(repo.spec) as sandbox:
        world = World(sandbox, task)
        world.empty, world.fixed = (await world.grade(b"")).id, (await world.grade(FIX)).id
        yield world


# Honest patches

HONEST: dict[str, str] = PATCHES["honest"]
ALL = "; ".join(script for how, script in HONEST.items() if how not in ("deletion", "rename"))


@pytest.mark.parametrize("how", slow_but(["rename", "all"], ["deletion", "rename", "all"]))
async def test_honest_patch_loses_only_its_tests(world: World, how: str) -> None:
    """The files on disk are those of the agent, except for the tests, which are those of the task."""
    script = f"{FIX}; {HONEST.get(how, ALL)}"
    await world.sh(f"{FRESH}; {script}\nrm -rf /tmp/left; cp -a . /tmp/left")
    tree = await world.grade(script)
    assert not tree.is_base
    assert tree.applied_with == "git apply"
    assert tree.files == ("tests/test_calc.py", "pkg/test_ops.py")
    assert await world.text("tests/test_calc.py") == "def test_zero(): pass\ndef test_add(): pass\n"
    assert {kind for kind, _ in kinds(tree)} <= {"tests", "runner-config"}
    await world.sh("diff -r --no-dereference -x .git -x tests /tmp/left . >&2")


async def test_gold_patch_is_the_reference_and_an_empty_one_the_base(world: World) -> None:
    tree = await world.grade(world.task.patch.encode())
    assert (tree.tampering, tree.is_base) == ((), False)
    for patch in (b"", b"\n"):
        tree = await world.grade(patch)
        assert (tree.tampering, tree.is_base) == ((), True)
        assert (await world.text("tests/test_calc.py")).endswith("def test_add(): pass\n")
        assert "a - b" in await world.text("calc.py")


# Cheating patches

CHEATS: dict[str, tuple[str, str, str]] = {how: tuple(cheat) for how, cheat in PATCHES["cheats"].items()}
GITIGNORE_STAYS = {"pytest in C", "installed package", "build product"}


def apart(one: str, other: str) -> bool:
    """Whether two cheats can be in one patch."""
    (path, root), ignored = (f"{CHEATS[how][2]}/" for how in (one, other)), GITIGNORE_STAYS
    return not path.startswith(root) and not root.startswith(path) and (one in ignored) == (other in ignored)


def batches() -> list[list[str]]:
    """All cheats, in few patches."""
    found: list[list[str]] = []
    for how in CHEATS:
        fitting = (batch for batch in found if all(apart(how, other) for other in batch))
        if (batch := next(fitting, None)) is not None:
            batch.append(how)
        else:
            found.append([how])
    return found


@pytest.mark.parametrize("cheats", batches())
async def test_cheats_leave_the_base_tree(world: World, cheats: list[str]) -> None:
    tree = await world.grade("\n".join(CHEATS[how][0] for how in cheats))
    assert kinds(tree) >= {CHEATS[how][1:] for how in cheats}
    assert all(found.done and len(found.done) < 300 for found in tree.tampering)
    if GITIGNORE_STAYS.intersection(cheats):
        await world.sh("git checkout -q .gitignore")
        assert (await record_base(world.sandbox)).tree == world.empty
    else:
        assert tree.id == world.empty
        assert tree.is_base
    assert await world.sh(f"cat fast.so {SITE}/pluggy/hooks.py") == b"image\nimage\n"


async def test_fix_with_cheats_gives_the_tree_of_the_fix(world: World) -> None:
    chosen = (
        "conftest", "setup.cfg changed", "pytest.py", "link out", "tests became a link", "test file deleted",
    )  # fmt: skip
    tree = await world.grade("\n".join((FIX, *(CHEATS[how][0] for how in chosen))))
    assert kinds(tree) > {CHEATS[how][1:] for how in chosen}
    assert tree.id == world.fixed
    assert not tree.is_base


# Gold patches, and tasks without


@pytest.mark.slow
async def test_protected_changes_of_the_gold_patch_apply_to_all(world: World) -> None:
    gold = (
        f"{FIX}; echo '# gold' >>tests/conftest.py; echo '{{1}}' >tests/data/x.json; "
        "sed -i 's/-ra/-rA/; s/100/120/' setup.cfg; "
        "printf '[tool.pytest.ini_options]\\nx = 1\\n' >>pyproject.toml"
    )
    diff = "git add -A; git diff --cached --binary HEAD"
    changed = {"patch": (await world.sh(f"{FRESH}; {gold}\n{diff}")).decode()}
    honest = await world.grade(f"{FIX}; sed -i s/calc/calculator/ setup.cfg", **changed)
    assert honest.tampering == ()
    assert await world.text("tests/data/x.json") == "{1}\n"
    assert (await world.text("tests/conftest.py")).endswith("# gold\n")
    config = await world.text("setup.cfg")
    assert [word in config for word in ("calculator", "-rA", "100", "-ra")] == [True, True, True, False]
    assert await world.text("pyproject.toml") == (
        '[build-system]\nrequires = ["x"]\n\n[tool.black]\nline-length = 100  # why\n'
        "\n[tool.pytest.ini_options]\nx = 1\n"
    )
    assert (await world.grade(gold, **changed)).tampering == ()
    assert (await world.text("setup.cfg")).count("120") == 1
    for useless in ("", "echo x >>tests/conftest.py", "sed -i 's/-ra/-k x/' setup.cfg"):
        assert (await world.grade(useless, **changed)).is_base


@pytest.mark.parametrize("patch", ["", "--- a/gone.py\n+++ b/gone.py\n@@ -1 +1 @@\n-x\n+y\n"])
async def test_task_without_applicable_gold_patch_is_graded(world: World, patch: str) -> None:
    tree = await world.grade(f"{FIX}; echo x >>conftest.py", patch=patch)
    assert kinds(tree) == {("runner-config", "conftest.py")}
    assert tree.id == world.fixed
    said = [note.partition("it may change: ")[2] for note in tree.notes]
    assert said == ["gone.py: does not exist in index"][: len(patch)]


async def test_gold_patch_inside_the_tests_is_the_base(world: World) -> None:
    """Every patch gets it, so none resolves, not even the gold patch."""
    gold = (await world.sh(f"{FRESH}; echo y >>tests/helpers.py; git diff")).decode()
    assert (await world.grade(gold.encode(), patch=gold)).is_base


async def test_repository_may_be_the_test_runner_itself(world: World) -> None:
    await world.sh(
        f"{FRESH}; git checkout -q -b runner; mkdir -p src/_pytest src/pytest; "
        "echo x | tee src/_pytest/runner.py src/_pytest/__init__.py src/pytest/__init__.py pluggy.py; "
        "git add -A; git -c user.name=n -c user.email=e commit -qm runner"
    )
    try:
        tree = await world.grade(
            "echo y >>src/_pytest/runner.py; echo z >src/_pytest/unittest.py; echo y >>pluggy.py", patch=""
        )
        assert tree.tampering == ()
        assert await world.text("src/_pytest/unittest.py") == "z\n"
        assert await world.text("pluggy.py") == "x\ny\n"
    finally:
        await world.sh(f"{FRESH}; git checkout -q -")


# Patches that an export never makes

HEAD = "diff --git a/{0} b/{0}\nnew file mode 100644\n--- /dev/null\n+++ b/{0}\n@@ -0,0 +1 @@\n+x\n"
NO_BASE = "the patch does not apply to the task's base: .+"
REFUSED = {
    "a hook": (HEAD.format(".git/hooks/post-checkout"), NO_BASE),
    "a nested .git": (HEAD.format("pkg/.git/config"), NO_BASE),
    "out of the repository": (HEAD.format("../conftest.py"), NO_BASE),
    "through a link": (HEAD.format("docs/latest/x.md"), NO_BASE),
    "NUL": ("diff --git a/x\0y b/x\0y\n", NO_BASE),
    "half of it fits": (
        "--- a/calc.py\n+++ b/calc.py\n@@ -1 +1 @@\n-def add(a, b): return a - b\n+fixed\n"
        "--- a/gone.py\n+++ b/gone.py\n@@ -1 +1 @@\n-x\n+y\n",
        NO_BASE,
    ),
    "a long name": (HEAD.format("a" * 300), "the patch names a path that is too long for Linux: aaa"),
    "a long path": (HEAD.format("/".join(["a" * 200] * 25)), "the patch names a path that is too long"),
    "too large": ("x" * 20_001, "the patch has 20001 bytes; at most 20000 are graded"),
}


@pytest.mark.parametrize("what", REFUSED)
async def test_patch_that_does_not_apply_whole_is_rejected(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    patch, says = REFUSED[what]
    monkeypatch.setattr(graded_tree, "MAX_PATCH_BYTES", 20_000)
    with pytest.raises(graded_tree.PatchDoesNotApply, match=f"^{says}"):
        await world.grade(patch.encode())
    left = "git status --porcelain; ls -d .git/hooks/post-checkout ../conftest.py 2>&- || :"
    assert await world.sh(left) == b""


async def test_patch_that_takes_too_long_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each hunk may make git search a large file."""
    monkeypatch.setattr(graded_tree, "run_script", AsyncMock(side_effect=SandboxTimeout("over")))
    sandbox = AsyncMock()
    sandbox.exec.return_value = ExecResult(0, b"", b"")
    with pytest.raises(graded_tree.PatchDoesNotApply, match="could not be applied within 60 s"):
        await graded_tree.prepare_tree(
            sandbox, Base("c", "t", "/r", "/s", "/o"), make_task(), b"x", graded_tree.References(), timeout=60
        )


async def test_patch_that_fills_the_disk_is_rejected(tmp_path: Path, provider: SandboxProvider) -> None:
    """A patch may be a thousandth of the files that it makes."""
    repo = Repo(tmp_path / "r")
    repo.commit(calc_py=BASE)
    task = make_task(base_commit=repo.head, test_patch="", patch="")
    make = r"for f in a b c d; do (printf '\0'; head -c 20M /dev/zero | tr '\0' x) >$f; done; git add ."
    patch = repo.sh(f"{make}; git diff --cached --binary; git reset -q --hard").encode()
    references = graded_tree.References()
    async with provider.open(repo.spec.model_copy(update={"disk_mb": 75})) as sandbox:
        base = await record_base(sandbox)
        with pytest.raises(graded_tree.PatchDoesNotApply, match="do not fit into the sandbox"):
            await graded_tree.prepare_tree(sandbox, base, task, patch, references, timeout=60)


LINKS = {
    "new file mode 100644": 1, "new file mode 160000": 1, "index 12..34 100755": 1, "index 12..34": 1,
    "+new file mode 120000": 1, "new file mode 120000": 0, "new file mode 120777": 0, "index 1..3 120644": 0,
    "new mode 10120000": 0, "old mode -37777657001": 0,
}  # fmt: skip


@pytest.mark.parametrize(("line", "end"), LINKS.items())
def test_patch_with_links_is_known_by_any_spelling(tmp_path: Path, line: str, end: int) -> None:
    (tmp_path / "patch").write_text(f"diff --git a/x b/x\n{line}\n")
    assert run_here(f'{GIT_APPLY}\nhas_links "$1"', str(tmp_path / "patch")).exit_code == end


async def test_large_files_are_not_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither as code nor as configuration: the output of git has a limit."""
    monkeypatch.setattr(graded_tree, "MAX_ANSWER_BYTES", 3 * 1024 * 1024)
    large = "import base64, random; text = base64.b85encode(random.randbytes(2 << 20)).decode()"
    script = f"python3 -c '{large}; [print(chr(35), text, file=open(name, chr(97))) for name in names]'"
    tree = await world.grade(script.replace("names", '["calc.py", "pyproject.toml"]'))
    assert kinds(tree) == {("runner-config", "pyproject.toml")}
    assert [(one.kind, one.path) for one in tree.suspicious] == [("not looked at", "calc.py")]


async def test_absolute_path_in_patch_stays_inside(world: World) -> None:
    await world.grade(b"--- /dev/null\n+++ /etc/evil\n@@ -0,0 +1 @@\n+x\n")
    assert await world.sh("cat etc/evil; ls /etc/evil 2>/dev/null || :") == b"x\n"


async def test_submodule_in_patch_is_dropped(world: World) -> None:
    patch = "diff --git a/sub b/sub\nnew file mode 160000\nindex 0000000..1234567\n--- /dev/null\n+++ b/sub\n"
    tree = await world.grade(f"{patch}@@ -0,0 +1 @@\n+Subproject commit {'12' * 20}\n".encode())
    assert kinds(tree) == {("symlink", "sub")}
    assert tree.is_base


LONG = "".join(f"line {number}\n" for number in range(30))
MOVED = "--- a/long.txt\n+++ b/long.txt\n@@ -9,3 +9,3 @@\n other 8\n-line 9\n+LINE 9\n line 10\n"


async def test_inexact_patch_is_merged_or_applied_with_fuzz(world: World) -> None:
    """Merged if the old file is known, else applied with fuzz."""
    commit = "git add -A; git -c user.name=n -c user.email=e commit -qm long"
    await world.sh(
        f"{FRESH}; git checkout -q -b long; git rm -q docs/latest; echo '{LONG}' >long.txt; {commit}"
    )
    try:
        tree = await world.grade(MOVED.encode(), patch="")
        assert tree.applied_with == "patch --fuzz=5"
        assert "\nLINE 9\nline 10\n" in await world.text("long.txt")
        merged = await world.sh(
            f"{FRESH}; sed -i 's/line 9$/LINE 9/' long.txt; git diff --full-index; git checkout -q .; "
            f"sed -i 's/line 7$/LINE 7/' long.txt; {commit}"
        )
        tree = await world.grade(merged, patch="")
        assert tree.applied_with == "git apply --3way"
        text = await world.text("long.txt")
        assert "LINE 7\nline 8\nLINE 9\n" in text
    finally:
        await world.sh(f"{FRESH}; git checkout -q -")


async def test_inapplicable_test_patch_is_a_task_error(world: World) -> None:
    with pytest.raises(GraderError, match="the test patch of the task 't-1' does not apply"):
        await world.grade(FIX, test_patch="--- a/gone.py\n+++ b/gone.py\n@@ -1 +1 @@\n-x\n+y\n")


async def test_tampering_is_listed_escaped_and_cut(world: World) -> None:
    tree = await world.grade("touch $'tests/\\xff \\n.py'")
    assert kinds(tree) == {("tests", "tests/\\xff \n.py")}
    assert tree.tampering[0].model_dump_json()
    tree = await world.grade("for i in $(seq 120); do echo >tests/$i.py; done")
    assert len(tree.tampering) == 101
    assert tree.tampering[-1].done == "20 more paths like these"
    assert tree.is_base


async def test_changed_files_lists_what_a_test_run_changed(world: World) -> None:
    tree = await world.grade(FIX)
    assert set(tree.decisive) >= {"tests/test_calc.py", "pkg/test_ops.py", "conftest.py", "tests/conftest.py"}
    assert "tests/data/x.json" not in tree.decisive
    assert await graded_tree.changed_files(world.sandbox, tree.own, timeout=60) == ()
    await world.sh("echo >>conftest.py; rm pkg/test_ops.py; mv tests old; ln -s old tests")
    found = await graded_tree.changed_files(world.sandbox, tree.own, timeout=60)
    assert found == ("conftest.py", "pkg/test_ops.py")
    await world.sh("rm tests; mkdir tests; cp old/conftest.py tests; ln -s ../old/test_calc.py tests")
    found = await graded_tree.changed_files(world.sandbox, tree.own, timeout=60)
    gone = {"tests/a", "tests/test_calc.py", "tests/helpers.py", "tests/data/x.json"}
    assert set(found) == {"conftest.py", "pkg/test_ops.py", *gone}


async def test_gold_patch_does_not_reach_the_sandbox(world: World, tmp_path: Path) -> None:
    secret = uuid4().hex  # no other file has it, wherever this repository and its libraries lie
    repo = Repo(tmp_path / "gold")
    repo.sh(BASE)
    gold = repo.diff(f"echo '# {secret}' >>calc.py; echo '# {secret}' >pkg/fix.py")
    tree = await world.grade("echo more >>docs/v1/index.md", patch=gold)
    assert not tree.is_base
    everywhere = f"""
    grep -rl {secret} /tmp /var/tmp /dev/shm . || :
    find / -xdev -type d -name objects 2>/dev/null | while read -r objects; do
      git --git-dir="${{objects%/objects}}" cat-file --batch-all-objects --batch | grep -a {secret} || :
    done
    """
    assert await world.sh(everywhere) == b""
    await world.grade(f"echo '# {secret}' >x.py", patch=gold)
    assert await world.sh(everywhere)  # so this can fail


@pytest.mark.parametrize("name", ['quo"te.py', "naïve\nta\tb.py"])
async def test_reference_accepts_odd_file_names(tmp_path: Path, name: str) -> None:
    repo, path, content = Repo(tmp_path / "odd"), f"tests/{name}", b"x = 1\n"
    (repo.path / "tests").mkdir()
    (repo.path / path).write_bytes(content)
    repo.sh("git add -A; git commit -qm base")
    base = Entry("100644", blob_id(content, 40))

    async def read(wanted: Iterable[str]) -> dict[str, bytes]:
        return {base.id: content} if base.id in wanted else {}

    for script in ("sed -i s/1/2/ tests/*", "rm -r tests", "git mv tests other", "chmod +x tests/*"):
        task = make_task(test_patch=repo.diff(script))
        reference = await make_reference(task, {path: base}, 40, read)
        assert path in reference.tests, script


@pytest.mark.parametrize(("script", "most"), [(FIX, 2), ("echo x >>setup.cfg; ln -s calc.py x.py", 3)])
async def test_graded_tree_needs_few_round_trips(
    world: World, monkeypatch: pytest.MonkeyPatch, script: str, most: int
) -> None:
    ran: list[object] = []
    run_script = graded_tree.run_script

    async def counted(*args: Any, **options: Any) -> Any:
        ran.append(args)
        return await run_script(*args, **options)

    await world.grade(script)  # which makes the reference
    monkeypatch.setattr(graded_tree, "run_script", counted)
    await world.grade(script)
    assert len(ran) == most
