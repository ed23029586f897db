"""Helpers in a sandbox that has the tools of busybox only, as in Alpine images."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from swe_core.api.sandbox import ASSETS_DIR, Asset, Sandbox, SandboxProvider, SandboxSpec
from swe_core.builtin.local import bwrap
from swe_core.builtin.swe.graded_tree import References, prepare_tree
from swe_core.sandboxing.kill_tree import KILL_TREE
from swe_core.sandboxing.repository.patch import export_patch
from swe_core.sandboxing.repository.prepare import prepare_repository
from swe_testing.records import make_task

from ..repositories import sh

_OTHERS = ("git", "python3", "comm")
"""What such an image has besides: Alpine's busybox has comm(1), Debian's is built without."""

HISTORY = """
git init -q -b main; git config user.name T; git config user.email t@example.org
mkdir tests; echo 'a = 1' >a.py; echo secret >tests/hidden; git add -A; git commit -q -m base
git tag base; echo 'a = 2' >a.py; git commit -q -a -m above; git tag above
git checkout -q -b future; echo 'a = 3' >a.py; git commit -q -a -m fix; git checkout -q main
"""
BUG = "diff --git a/a.py b/a.py\n--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n-a = 2\n+a = 'bug'\n"


@pytest.fixture
def spec(tmp_path: Path) -> SandboxSpec:
    """A repository with something to cut; on the PATH inside is nothing but busybox, git and Python."""
    if (obstacle := bwrap.why_not(bwrap.find_bwrap())) is not None:
        pytest.skip(obstacle)
    if (busybox := shutil.which("busybox")) is None:
        pytest.skip("this machine has no busybox")
    tools, repository = tmp_path / "tools", tmp_path / "repository"
    tools.mkdir()
    repository.mkdir()
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    found = dict.fromkeys(applets, busybox)
    found |= {name: path for name in _OTHERS if (path := shutil.which(name, path="/usr/bin:/bin"))}
    for name, program in found.items():
        (tools / name).symlink_to(os.path.realpath(program) if name in _OTHERS else program)
    subprocess.run(["sh", "-euc", HISTORY], cwd=repository, check=True)
    return SandboxSpec(
        repository=repository,
        network="none",
        assets=(Asset(name="tools", path=tools, digest="1"),),
        env={"PATH": f"{ASSETS_DIR}/tools"},
    )


@pytest.fixture
async def sandbox(provider: SandboxProvider, spec: SandboxSpec) -> AsyncIterator[Sandbox]:
    async with provider.open(spec) as sandbox:
        yield sandbox


@pytest.mark.parametrize("bug", ["", BUG], ids=["commits above the base", "a bug to put in"])
async def test_repository_is_prepared_and_exported_on_busybox(
    provider: SandboxProvider, spec: SandboxSpec, sandbox: Sandbox, bug: str
) -> None:
    commit = (await sh(sandbox, "git rev-parse base")).strip()
    given = make_task(base_commit=commit, bug_patch=bug, hidden=("/testbed/tests",))
    base = await prepare_repository(sandbox, given, hide=True, timeout=60)
    assert "fix" not in await sh(sandbox, "git log --all --format=%s; git tag; git branch")
    assert await sh(sandbox, "git fsck --full --no-dangling 2>&1; ls") == "a.py\n"
    await sh(sandbox, "rm a.py; printf 'b\\0\\n' >'b c'; ln -s b l; git init -q sub; echo x >sub/x")
    patch = await export_patch(sandbox, base, timeout=60)
    assert all(name in patch for name in (b"a.py", b"b c", b"sub/x", b"GIT binary patch"))
    async with provider.open(spec) as fresh:
        fresh_base = await prepare_repository(fresh, given, hide=False, timeout=60)
        await prepare_tree(fresh, fresh_base, given, patch, References(), timeout=60)
        assert await sh(fresh, "cat 'b c' sub/x; readlink l; ls -d a.py 2>/dev/null || :") == "b\0\nx\nb\n"


async def test_process_tree_is_killed_on_busybox(sandbox: Sandbox) -> None:
    """Also one in a session of its own, with an environment of its own."""
    cmdlines = "for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null"
    running = f"{cmdlines} | grep '^sleep 60' | wc -l"
    start = "setsid env -i sleep 600 & SWE_EXEC_ID=other sleep 601 & echo started; wait"
    process = await sandbox.start(["sh", "-c", start], env={"SWE_EXEC_ID": "mine"})
    stream = process.output()
    assert await anext(stream) == ("stdout", b"started\n")
    await sh(sandbox, f"until [ $({running}) = 2 ]; do sleep 0.02; done")
    done = await sandbox.exec(["sh", "-c", KILL_TREE, "sh", "mine"], timeout=60)
    assert done.exit_code == 0, done.stderr.decode()
    assert await process.wait() == 137
    await stream.aclose()
    assert (await sh(sandbox, running)).strip() == "0"
