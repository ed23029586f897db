"""The exported patch is what the agent changed in the files, whatever else it did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import AsyncMock

import pytest

from swe_core.api.sandbox import HOME_DIR, ExecResult, Sandbox, SandboxProvider
from swe_core.errors import SandboxDied, SandboxError, SandboxTimeout
from swe_core.sandboxing.repository import git
from swe_core.sandboxing.repository.patch import (
    Base,
    PatchUnavailable,
    export_change,
    export_patch,
    record_base,
)

from ...repositories import Repo, sh, slow_but

EXPECTED = b"""\
diff --git a/a.txt b/a.txt
index 78981922613b2afb6025042ff6bd878ac1994e85..d49c2e721b44b101b9b65c1e2847063a0f0c53b9 100644
--- a/a.txt
+++ b/a.txt
@@ -1 +1,2 @@
 a
+more
"""


@pytest.fixture
def small(repo: Repo) -> Repo:
    """A repository with one commit of a few files."""
    (repo.path / "a.txt").write_text("a\n")
    repo.commit(sub__b_py="b = 1\n", sub__deep__c_py="c = 1\n")
    return repo


@asynccontextmanager
async def recorded(provider: SandboxProvider, repo: Repo) -> AsyncIterator[tuple[Sandbox, Base]]:
    async with provider.open(repo.spec) as sandbox:
        await sh(sandbox, "git config user.name A; git config user.email a@example.org")
        yield sandbox, await record_base(sandbox, timeout=60)


SHOWN = {
    "dirty files are no changes": (
        "echo dirty >>a.txt; rm sub/b.py; echo new >untracked; echo staged >s; git add s",
        "git checkout -q -- sub/b.py; rm untracked",
        (2, b"new file mode 100644", b"deleted file mode 100644"),
    ),
    "the base survives garbage collection": (
        "echo dirty >>a.txt; echo untracked >u",
        "echo more >>a.txt; git stash -q; git stash drop -q; git gc -q --prune=now",
        (1, b"-dirty\n"),
    ),
    "nested repositories": (
        "true",
        "git init -q new; echo 1 >new/one; git init -q 'new/dée per'; echo 2 >'new/dée per/two'; "
        "cd 'new/dée per'; git -c user.name=n -c user.email=e commit -q --allow-empty -m n; cd ../..; "
        "git init -q sub; echo 3 >sub/three; git init -q hollow",
        (3, b"new file mode 100644", b'"b/new/d\\303\\251e per/two"'),
    ),
    "submodules": (
        "git init -q lib; echo x >lib/x; git -C lib add x; git -C lib -c user.name=n -c user.email=e "
        "commit -qm n; git add lib 2>/dev/null; git commit -qm sub",
        "echo y >>lib/x; git -C lib add x; rm .git/index",
        (1, b"diff --git a/lib/x b/lib/x\n", b"\n+y\n"),
    ),
    "tracked files that are ignored": (
        "echo '*.log' >.gitignore; echo 1 >kept.log; git add -f .; git commit -qm i; echo 2 >loose.log",
        "echo 3 >>kept.log; echo 4 >>loose.log; echo 5 >new.log",
        (1, b"kept.log"),
    ),
    "ignored files that were added": (
        "echo '*.log' >.gitignore; git add -A; git commit -qm i; echo 1 >staged.log; git add -f staged.log",
        "git checkout -qb b; echo 2 >'á b.log'; git add -f 'á b.log'; git commit -qm b; echo 3 >c.log;"
        "git add -fN c.log; echo 4 >c.log; mkdir d; echo 5 >d/d.log; git add -f d; rm d/d.log;"
        "git update-index --split-index; git init -q e; echo 6 >e/e.log; git -C e add -f e.log;"
        "ln -s x l.log; git add -f l.log; echo 7 >n.log",
        (3, b'"b/\\303\\241 b.log"', b"+4\n", b"mode 120000"),
    ),
    "an edited .gitignore": (
        "printf 'lib\\n*.so\\n' >.gitignore; git add .; git commit -qm i; mkdir lib; echo|tee lib/x >'[].so'",
        "echo '*.log' >.gitignore; echo new >new.so; rm .git/index; mkfifo .git/index",
        (2, b"new.so", b"b/.gitignore"),
    ),
}


@pytest.mark.parametrize("case", SHOWN)
async def test_export_has_the_changes_alone(provider: SandboxProvider, small: Repo, case: str) -> None:
    before, after, (count, *parts) = SHOWN[case]
    small.sh(before)
    async with recorded(provider, small) as (sandbox, base):
        assert base.commit == small.head
        assert base.store.startswith(f"{HOME_DIR}/")  # so that it goes away with every sandbox
        assert await export_patch(sandbox, base, timeout=60) == b""
        await sh(sandbox, after)
        patch = await export_patch(sandbox, base)
    assert patch.count(b"diff --git") == count
    assert [part for part in parts if part not in patch] == []


CHURN = (
    "mkdir -p build .tox lib/__pycache__; for n in build/x .tox/x lib/__pycache__/x.pyc; do echo >$n; done"
)
LEFT_OUT = "git ignores changed files, which are not in the patch (git add -f adds one): "


@pytest.mark.parametrize(
    ("script", "note"),
    [
        (CHURN, ""),
        (f"{CHURN}; touch lib/b; mv a.txt lib/a; touch -d @0 lib/*", LEFT_OUT + "'lib/a', 'lib/b'"),
        ("mkdir lib; touch lib/{1..9}", LEFT_OUT),
        ("mkdir lib; truncate -s 3M lib/big; echo >lib/x; git add -f lib; rm lib/x", LEFT_OUT + "'lib/big'"),
        ("mkdir lib; for i in 1 2 3; do head -c 900000 /dev/urandom >lib/$i; done; git add -f lib",
         LEFT_OUT),
    ],
)  # fmt: skip
async def test_ignored_files_that_are_left_out_are_named(
    provider: SandboxProvider, small: Repo, script: str, note: str
) -> None:
    small.sh("echo old >old; printf 'lib\nbuild\n*.pyc\n.tox\nold\n' >.gitignore; mkdir -p node_modules")
    async with recorded(provider, small) as (sandbox, base):
        done = await sandbox.exec(["bash", "-euc", f"{script}; echo more >>a.txt"])
        assert done.exit_code == 0, done.stderr
        change = await export_change(sandbox, base, max_bytes=2_000_000)
    assert b"/lib/" not in change.patch
    assert b"+more" in change.patch
    assert "".join(change.notes).startswith(note)
    assert ("and 4 more" in "".join(change.notes)) == ("..9" in script)
    assert bool(change.notes) == bool(note)


DEEDS = {
    "amended": "git add -A; git commit -q --amend -m rewritten",
    "flags, attributes, settings, locks": "mkdir .GIT sub/.Git empty; touch .GIT/x sub/.Git/x; mkfifo fifo;"
    "git update-index --assume-unchanged a.txt; git update-index --skip-worktree sub/b.py;"
    "echo '* text eol=crlf -diff ident' >.git/info/attributes; ln -s /etc/passwd .git/link;"
    "git config diff.noprefix true; git config diff.context 9; touch .git/index.lock .git/HEAD.lock",
    "config is garbage": "echo '[[[' >.git/config",
    ".git as a file": "mv .git /tmp/moved-git; echo 'gitdir: /tmp/moved-git' >.git",
    "unreadable": "chmod 000 a.txt sub/b.py sub/deep sub",
    "unreadable root": "chmod 000 .",
    "index is garbage, HEAD deleted": "echo garbage >.git/index; rm .git/HEAD",
    "bare, of a future format": "git config core.bare true; git config core.repositoryFormatVersion 99",
    ".git unreadable": "find .git -depth -exec chmod a-rwx {} +",
}


@pytest.mark.parametrize("deed", slow_but(list(DEEDS)[:5], DEEDS))
async def test_export_compares_files_and_not_history(
    provider: SandboxProvider, small: Repo, deed: str
) -> None:
    async with recorded(provider, small) as (sandbox, base):
        await sh(sandbox, f"echo more >>a.txt; {DEEDS[deed]}")
        assert await export_patch(sandbox, base, timeout=60) == EXPECTED


CANARY = "touch /tmp/canary; cat"
# Each plants a command that ordinary git would run, which the test shows by running ordinary git.
TRAPS = {
    "clean filter": f"git config filter.f.clean '{CANARY}'; echo '* filter=f' >.gitattributes",
    "external diff": "git config diff.external 'touch /tmp/canary;'",
    "worktree config": "git config extensions.worktreeConfig true; "
    "git config --worktree core.fsmonitor 'touch /tmp/canary; false'",
    "hooks": "printf '#!/bin/sh\\ntouch /tmp/canary\\n' >.git/hooks/post-index-change; "
    "chmod +x .git/hooks/post-index-change",
    "nested repository": "git init -q sub/deep; echo z >sub/deep/z; git -C sub/deep add -A; "
    "git -C sub/deep -c user.name=n -c user.email=e commit -qm n; "
    "git -C sub/deep config core.fsmonitor 'touch /tmp/canary; false'; rm sub/deep/z; cd sub/deep",
    ".git as a file": "git config core.fsmonitor 'touch /tmp/canary; false'; "
    "mv .git /tmp/evil; echo 'gitdir: /tmp/evil' >.git",
    "text conversion": "git config diff.d.textconv 'touch /tmp/canary; cat'; echo '* diff=d' >.gitattributes",
}


@pytest.mark.parametrize("trap", slow_but(list(TRAPS)[:5], TRAPS))
async def test_export_runs_no_planted_command(provider: SandboxProvider, small: Repo, trap: str) -> None:
    async with recorded(provider, small) as (sandbox, base):
        await sh(sandbox, "rm -f /tmp/canary ~/.gitconfig || :")
        await sh(sandbox, f"echo more >>a.txt; {TRAPS[trap]}; rm -f /tmp/canary")
        patch = await export_patch(sandbox, base, timeout=60)
        assert patch.endswith(EXPECTED), patch.decode()
        canary = await sandbox.exec(["test", "-e", "/tmp/canary"])
        assert canary.exit_code == 1, "a planted command was executed"
        where = "sub/deep" if "nested" in trap else "."
        ordinary = f"cd {where}; touch a.txt; (git status; git add -A; git diff HEAD) </dev/null; true"
        await sandbox.exec(["bash", "-c", ordinary], timeout=60)
        assert (await sandbox.exec(["test", "-e", "/tmp/canary"])).exit_code == 0, "the trap is no trap"


RUINS = {
    "made it anew": ("rm -rf .git; git init -q; git add -A", "deleted the git objects"),
    "everything": ('cd /; rm -rf "$OLDPWD" || :', "the agent deleted"),
    "large sparse file": ("truncate -s 3G big", "the file big is larger than that"),
    "large tracked file": ("head -c 3000000 /dev/urandom >a.txt", "the file a.txt is larger than that"),
    "large patch": ("for i in 1 2 3; do head -c 900000 /dev/urandom >f$i; done",
     "the whole patch is larger than that"),
    "an invalid file name": ("mkdir x; ln -s ../a.txt .gitmodules", "no patch can be taken"),
}  # fmt: skip


@pytest.mark.parametrize("deed", slow_but(list(RUINS)[:-1], RUINS))
async def test_failed_export_is_an_error(provider: SandboxProvider, small: Repo, deed: str) -> None:
    script, sentence = RUINS[deed]
    async with recorded(provider, small) as (sandbox, base):
        await sh(sandbox, script)
        with pytest.raises(PatchUnavailable, match=sentence):
            await export_patch(sandbox, base, timeout=60, max_bytes=2_000_000)
        assert (await sandbox.exec(["true"], cwd="/")).exit_code == 0


async def test_export_accepts_unchanged_large_files(provider: SandboxProvider, small: Repo) -> None:
    small.sh("truncate -s 3M big; git add big; git commit -qm big; echo '*.bin' >.gitignore")
    async with recorded(provider, small) as (sandbox, base):
        await sh(sandbox, "truncate -s 3M ignored.bin; echo more >>a.txt")
        assert await export_patch(sandbox, base, max_bytes=2_000_000) == EXPECTED


@pytest.mark.parametrize(
    ("end", "kind", "sentence"),
    [
        (127, PatchUnavailable, "removed git or the shell"),
        (git.NO_GIT, PatchUnavailable, "removed git or the shell"),
        (git.NO_ROOM, PatchUnavailable, r"whose disk is full \(resources.disk_mb\)"),
        (1, PatchUnavailable, "from '/r' as the agent left it: why"),
        (0, PatchUnavailable, "from '/r': the agent replaced a program"),
        (None, PatchUnavailable, "could not be read within 1 s"),
        (None, SandboxDied, "gone"),
    ],
)
async def test_end_of_the_export_is_told(
    monkeypatch: pytest.MonkeyPatch, end: int | None, kind: type[Exception], sentence: str
) -> None:
    ended = SandboxTimeout("over") if end is None else [ExecResult(end, b"", b"why\n")]
    run_script, sandbox = AsyncMock(side_effect=ended), AsyncMock()
    sandbox.exec.return_value = ExecResult(127, b"", b"")  # programs of a sandbox are the agent's
    sandbox.exec.side_effect = SandboxDied("gone") if kind is SandboxDied else None
    monkeypatch.setattr("swe_core.sandboxing.repository.patch.run_script", run_script)
    with pytest.raises(kind, match=sentence):
        await export_patch(sandbox, Base("c", "t", "/r", "/s", "/o"), timeout=1.0)


@pytest.mark.slow
async def test_endless_export_times_out(provider: SandboxProvider, small: Repo) -> None:
    async with recorded(provider, small) as (sandbox, base):
        await sh(sandbox, "mkfifo .gitignore")  # git waits for someone to write into it
        with pytest.raises(PatchUnavailable, match=r"could not be read within 1\.5 s"):
            await export_patch(sandbox, base, timeout=1.5)


NO_BASE = {
    "no repository": ("rm -rf .git", "is not the top of a git work tree: not a git repository"),
    "no commit": ("rm -rf .git; git init -q", "has no commit to start from"),
    "a directory inside": ("true", "a directory inside the repository"),
}


@pytest.mark.parametrize("case", NO_BASE)
async def test_missing_base_is_an_error(provider: SandboxProvider, small: Repo, case: str) -> None:
    script, sentence = NO_BASE[case]
    small.sh(script)
    async with provider.open(small.spec) as sandbox:
        if case == "a directory inside":
            sandbox.spec = sandbox.spec.model_copy(update={"workdir": f"{sandbox.spec.workdir}/sub"})
        with pytest.raises(SandboxError, match=sentence):
            await record_base(sandbox)


async def test_export_without_git_is_an_error(provider: SandboxProvider, small: Repo) -> None:
    small.sh("mkdir bin; ln -s /bin/sh bin/sh; ln -s /usr/bin/env bin/env")
    spec = small.spec.model_copy(update={"env": {"PATH": f"{small.spec.workdir}/bin"}})
    async with provider.open(spec) as sandbox:
        with pytest.raises(SandboxError, match="the sandbox has no git"):
            await record_base(sandbox)
