"""A task's patches apply as `git apply` does in that work tree, whatever form the files have."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from swe_core.api.agent import AgentContext
from swe_core.api.component import Config
from swe_core.api.sandbox import SandboxProvider
from swe_core.builtin.agents import swe_agents
from swe_core.builtin.swe.graded_tree import References, prepare_tree
from swe_core.sandboxing.repository.patch import export_patch, record_base
from swe_core.sandboxing.repository.prepare import prepare_repository
from swe_testing.records import make_task

from ...repositories import Repo, slow_but

FILES = r"""
mkdir tests sub 'tests/a d'; printf 'def add(a, b):\n    return a - b\n' >calc.py
printf 'zero\none\n' | tee tests/a.txt sub/b.txt >'tests/a d/n[ä].txt'
"""
GOLD = "sed -i s/-/+/ calc.py; sed -i s/one/two/ sub/b.txt; echo new >sub/new.txt"
TESTS = "sed -i s/one/three/ tests/a.txt 'tests/a d'/*; echo new >tests/new.txt"
UTF16 = "working-tree-encoding=UTF-16"
CASES = {  # what makes git's own form and the one of the work tree differ; gold and test patch, where special
    "no attributes": (":",),
    "eol=crlf": ("echo '*.txt text eol=crlf' >.gitattributes",),
    "text, by autocrlf": ("echo '* text=auto' >.gitattributes; git config core.autocrlf true",),
    "core.eol": ("echo '*.txt text' >sub/.gitattributes; git config core.eol CRLF",),
    "info/attributes": ("echo '*.txt eol=crlf' >.git/info/attributes",),
    "ident": ("echo '*.txt ident' >.gitattributes; sed -i '1i $Id$' */*.txt",),
    "encoding": (f"echo '*.txt text {UTF16}' >.gitattributes; for f in */*.txt 'tests/a d'/*;"
        "do iconv -t UTF-16 \"$f\" >x; mv x \"$f\"; done",
        "printf 'zero\\none\\n2\\n' | iconv -t UTF-16 >sub/b.txt; cp sub/b.txt sub/new.txt",
        "printf 'zero\\none\\n2\\n' | iconv -t UTF-16 >tests/a.txt; cp tests/a.txt tests/new.txt"),
    "filter of a program that is absent": (
        "echo '*.txt filter=lfs diff=lfs merge=lfs -text' >.gitattributes",),
    "attributes in the test patch": ("echo x >tests/.gitattributes", GOLD,
        "echo '*.dat eol=crlf' >tests/.gitattributes; echo new >tests/new.dat"),
    "CRLF in git": ("sed -i 's/$/\\r/' */*.txt 'tests/a d'/*",
        "sed -i s/-/+/ calc.py; sed -i s/one/two/ sub/b.txt",
        "sed -i s/one/three/ tests/a.txt 'tests/a d'/*; printf 'new\\r\\n' >tests/new.txt"),
    "CRLF in git, mixed": ("printf 'x\\r\\nzero\\none\\r\\n' | tee sub/b.txt >tests/a.txt",),
    "CRLF in git, though text": ("echo '*.txt -text' >.gitattributes; sed -i 's/$/\\r/' */*.txt; git add -A; "
        "git commit -qm crlf; echo '*.txt text=auto' >.gitattributes",),
    "binary": ("echo '* text=auto eol=crlf' >.gitattributes; head -c 5000 /dev/zero | tee tests/z.txt >sub/z",
        f"{GOLD}; echo x >>sub/z", f"{TESTS}; echo x >>tests/z.txt"),
    "rename, mode, no newline": ("echo '*.txt eol=crlf' >.gitattributes",
        "sed -i s/-/+/ calc.py; git mv sub/b.txt sub/c.txt; chmod +x calc.py",
        "git mv tests/a.txt tests/b.txt; printf 'x' >>tests/b.txt; rm -r 'tests/a d'"),
    "links": ("ln -s a.txt tests/link; ln -s tests/a.txt link", f"{GOLD}; ln -sf calc.py link",
        f"{TESTS}; ln -sf new.txt tests/link"),
}  # fmt: skip
FAST = ["eol=crlf", "encoding", "CRLF in git"]


def run(*argv: str, cwd: Path, stdin: bytes = b"") -> bytes:
    return subprocess.run(argv, cwd=cwd, input=stdin, stdout=subprocess.PIPE, check=True).stdout


def git_apply(repo: Repo, *patches: bytes) -> Path:
    """Return a copy of the repository in which git itself applied the patches."""
    copy = repo.path.with_name("upstream")
    shutil.copytree(repo.path, copy, symlinks=True)
    for patch in patches:
        run("git", "apply", "--whitespace=nowarn", cwd=copy, stdin=patch)
    return copy


def files(root: Path, without_cr: bool) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of each file."""
    found = {}
    for path in root.rglob("*"):
        if ".git" not in path.parts and (path.is_symlink() or path.is_file()):
            content = bytes(path.readlink()) if path.is_symlink() else path.read_bytes()
            found[str(path.relative_to(root))] = path.lstat().st_mode, content
    return {path: (mode, re.sub(b"\r" * without_cr, b"", data)) for path, (mode, data) in found.items()}


DAMAGE = {  # of a whole data set
    "lost CRs": ("CRLF in git", lambda patch: patch.replace(b"\r", b"")),
    "lost CRs, mixed": ("CRLF in git, mixed", lambda patch: patch.replace(b"\r", b"")),
    "CRs in all lines": ("no attributes", lambda patch: patch.replace(b"\n", b"\r\n")),
}


@pytest.mark.parametrize("case", slow_but([*FAST, *DAMAGE], {**CASES, **DAMAGE}))
async def test_patches_apply_as_git_applies_them(
    provider: SandboxProvider, repo: Repo, tmp_path: Path, case: str
) -> None:
    """The gold patch, and the one of an agent that applied it, give the files that git gives."""
    case, damaged = DAMAGE.get(case, (case, None))
    make, gold, tests = (*CASES[case], *(GOLD, TESTS)[len(CASES[case]) - 1 :])
    again = "git rm -rq --cached .; git reset -q --hard; git clean -fdqx"  # in the form of the work tree
    repo.sh(f"{FILES}{make}; git add -A; git commit -qm base; {again}")
    patches = []
    for script in (tests, gold):
        repo.sh(f"{script}; git add -A")
        patches.append(run("git", "diff", "--cached", "--binary", cwd=repo.path))
        repo.sh(again)
    wanted = files(git_apply(repo, *patches), damaged is not None)
    test_patch, patch = (
        (damaged or bytes)(patch).decode().rstrip("\n") for patch in patches
    )  # as some data sets have them
    task = make_task(
        test_patch=test_patch,
        patch=patch,
        base_commit=repo.head,
        fail_to_pass=("tests/test_calc.py::test_add",),
    )
    agent = next(c for c in swe_agents() if c.name == "oracle").create(Config())
    references = References()
    async with provider.open(repo.spec) as sandbox:
        base = await record_base(sandbox)
        ctx = AgentContext(task, "p", "", "", "m", sandbox.spec.workdir)
        for path, content in agent.files(ctx).items():
            await sandbox.write(path, content)
        done = await sandbox.exec(agent.command(ctx))
        assert done.exit_code == 0, done.stderr
        exported = await export_patch(sandbox, base)
    for given in (exported, patch.encode()):
        async with provider.open(repo.spec) as sandbox:
            tree = await prepare_tree(
                sandbox, await record_base(sandbox), task, given, references, timeout=60
            )
            assert (tree.notes, tree.is_base) == ((), False)
            packed = await sandbox.exec(["tar", "-c", "--exclude=./.git", "."])
        graded = tmp_path / f"graded-{len(given)}"
        graded.mkdir()
        run("tar", "-x", cwd=graded, stdin=packed.stdout)
        assert files(graded, damaged is not None) == wanted


async def test_no_filter_runs(provider: SandboxProvider, repo: Repo, tmp_path: Path) -> None:
    """Neither in the grader nor on the host, although attributes and settings name it."""
    trap = f"touch {tmp_path}/canary /tmp/canary; cat"
    repo.sh(f"{FILES}echo '* text eol=crlf filter=f' | tee .gitattributes .git/info/attributes; git add -A")
    repo.sh("git commit -qm base; git rm -rq --cached .; git reset -q --hard")
    tests = repo.diff(TESTS)
    repo.sh(f"git config filter.f.clean '{trap}'; git config filter.f.smudge '{trap}'")
    repo.sh("git config filter.f.required true; rm tests/a.txt; git checkout tests")
    assert (tmp_path / "canary").exists(), "the trap is no trap"
    (tmp_path / "canary").unlink()
    for bug in ("", repo.diff(GOLD)):
        (tmp_path / "canary").unlink(missing_ok=True)
        task = make_task(test_patch=tests, bug_patch=bug, fail_to_pass=("tests/test_calc.py::test_add",))
        async with provider.open(repo.spec) as sandbox:
            base = await prepare_repository(sandbox, task, hide=False)
            await prepare_tree(sandbox, base, task, b"", References(), timeout=60)
            assert await sandbox.read("/testbed/tests/a.txt") == b"zero\r\nthree\r\n"
            assert (await sandbox.exec(["test", "-e", "/tmp/canary"])).exit_code == 1
        assert not (tmp_path / "canary").exists()
