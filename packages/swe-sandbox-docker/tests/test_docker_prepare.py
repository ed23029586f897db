"""A repository in an image is prepared so that the fix is nowhere on its disk."""

from __future__ import annotations

import pytest

from swe_core.api.sandbox import SandboxSpec
from swe_core.sandboxing.repository.patch import export_patch
from swe_core.sandboxing.repository.prepare import prepare_repository
from swe_sandbox_docker.provider import DockerProvider
from swe_testing.records import make_task

from .helpers import sh

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

FIX = "the-fix-nobody-may-read-7f3a"
MAKE = f"""
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
mkdir -p /tmp/main && cd /tmp/main && git init -q -b main .
echo 1 >a && git add a && git commit -q -m one && echo 2 >a && git commit -q -a -m two
git checkout -q -b future && echo {FIX} >b && git add b && git commit -q -m fix && git tag v2
git gc -q && git checkout -q --detach
"""
WHERE = {
    "clone": "git clone -q --no-hardlinks -b main file:///tmp/main /testbed; rm -rf /tmp/main",
    "shared clone": "git clone -q --shared -b main /tmp/main /testbed; rm /tmp/main/b",
    "worktree": "git worktree add -q /testbed main; rm /tmp/main/b",
}
FIND = f"""
for dir in /testbed/.git /tmp/main/.git "$(git -C /testbed rev-parse --git-dir)"; do
  [ -e "$dir" ] || continue
  git --git-dir="$dir" cat-file --batch-all-objects --batch-check='%(objectname)' | while read -r id; do
    git --git-dir="$dir" cat-file -p "$id" | grep -qa {FIX} && echo "$id of $dir"
  done
done
grep -rla {FIX} /testbed /tmp || :
"""
TASK = make_task(hidden=("/tmp/hidden",))


@pytest.mark.parametrize(
    "where", ["clone", *(pytest.param(one, marks=pytest.mark.slow) for one in ("shared clone", "worktree"))]
)
async def test_fix_is_nowhere_in_the_container(
    provider: DockerProvider, docker_image: str, where: str
) -> None:
    spec = SandboxSpec(image=docker_image, network="none", memory_mb=512)
    async with provider.open(spec) as sandbox:
        await sh(sandbox, f"set -e; find /testbed -mindepth 1 -delete; {MAKE} {WHERE[where]}")
        await sh(sandbox, f"echo {FIX} >/tmp/hidden")
        assert await sh(sandbox, FIND) != ""
        log = await sh(sandbox, "cd /testbed; git log --format=%H main; git status --porcelain")
        base = await prepare_repository(sandbox, TASK, hide=True, timeout=60)
        assert await sh(sandbox, FIND) == ""
        assert await sh(sandbox, "cd /testbed; git log --format=%H; git status --porcelain") == log
        assert await sh(sandbox, "cd /testbed; git fsck --full --no-dangling 2>&1; git tag; git remote") == ""
        await sh(sandbox, "cd /testbed; echo more >>a")
        assert b"+more" in await export_patch(sandbox, base, timeout=60)
