"""A prepared repository does not have the fix anywhere, and git works in it as before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.builtin.local.provider import LocalProvider
from swe_core.errors import SandboxError, SandboxTimeout
from swe_core.sandboxing.repository.patch import Base, export_patch
from swe_core.sandboxing.repository.prepare import prepare_repository
from swe_testing.records import make_task

from ...repositories import Repo, sh, slow_but

FIX = "the-fix-nobody-may-read-7f3a"
FSCK = "git fsck --full --no-dangling 2>&1"
SEARCH = (
    f": ${{FIX:={FIX}}}"
    + """
find_in() {
  git --git-dir="$1" cat-file --batch-all-objects --batch >/tmp/objects
  if grep -qa "$FIX" /tmp/objects; then echo "an object of $1"; fi
}
cd /testbed
find . -name HEAD -type f | while read -r file; do
  if [ -d "${file%/*}/objects" ]; then find_in "${file%/*}"; fi
done
find_in "$(git rev-parse --git-dir)"
grep -rla "$FIX" . || :
"""
)
"""Prints where FIX is: in the objects of each git directory, or in any file."""

FUTURE = f"""
git checkout -q -b future
echo {FIX} >fixed.txt; git add fixed.txt; git commit -q -m 'fix: {FIX}'
fix=$(git rev-parse HEAD)
git checkout -q main
"""
"""Afterwards the fix is on the branch `future`, and in the reflog."""

GONE = "git branch -q -D future; rm -rf .git/logs"

ADDED = {
    "loose and dangling": ":",
    "tag": "git tag v2 future",
    "annotated tag": f"git tag -a v3 -m 'has {FIX}' future",
    "tag of a tag": "git tag -a v4 -m x future; git tag -a v5 -m y v4; git tag -d v4 >/dev/null",
    "tag of a tree": "git tag tree future^{tree}",
    "remote": f"git update-ref refs/remotes/origin/main $fix; git remote add origin https://example.org/{FIX}",
    "stash": f"echo {FIX} >stashed; git add stashed; git stash push -q",
    "notes": f"git notes add -m 'see {FIX}' HEAD",
    "another namespace": "git update-ref refs/pull/1/head $fix",
    "packed and dangling": "git gc -q",
    "kept pack": "git gc -q; for p in .git/objects/pack/*.pack; do touch ${p%.pack}.keep; done",
    "FETCH_HEAD": f'echo "$fix not-for-merge {FIX}" >.git/FETCH_HEAD',
    "ORIG_HEAD": "git update-ref ORIG_HEAD $fix",
    "bundle": "git bundle create -q .git/x.bundle future",
    "files below objects": "git bundle create -q .git/objects/pack/x future; "
    "for n in ab cd ef; do [ -e .git/objects/$n ] || break; done;"  # one that is no directory by chance
    f"echo {FIX} >.git/objects/$n",
    "hidden file": f"echo {FIX} >.git/.fix; mkdir .git/..x; echo {FIX} >.git/..x/y",
    "info": f"echo {FIX} >.git/info/notes",
    "description of a branch": f"git config branch.main.description {FIX}",
    "replace": "git replace HEAD $fix",
}
"""Places besides the branch `future`, which then goes."""

PLACES = {
    "branch": "rm -rf .git/logs",
    "reflog": "git branch -q -D future",
    "pack and loose": "git repack -q -a; rm -rf .git/logs",
    "packed refs": "git pack-refs --all; rm -rf .git/logs",
    "merge": "git merge -q --no-commit --no-ff future; git reset -q --hard; echo $fix >.git/MERGE_HEAD",
    "worktree": "git worktree add -q .git/other future; rm -rf .git/logs",
    "alternate": "git clone -q --bare . .git/alt.git; git repack -q -a -d; git branch -q -D future;"
    "rm -rf .git/logs .git/objects/pack .git/objects/??;"
    "echo ../alt.git/objects >.git/objects/info/alternates",
    "all others": "; ".join((*ADDED.values(), GONE)),
}


@pytest.fixture
def aged(repo: Repo) -> Repo:
    """A repository with a history, a tag on it, and a branch with the fix."""
    repo.sh("git checkout -q -b main")
    repo.commit(a_py="a = 1\n", sub__b_py="b = 1\n")
    repo.sh("git tag v1; git tag -a v1.0 -m release")
    repo.commit(a_py="a = 2\n")
    repo.sh(FUTURE)
    return repo


@asynccontextmanager
async def prepared(
    provider: SandboxProvider, repo: Repo, hide: bool = True, **fields: Any
) -> AsyncIterator[tuple[Sandbox, Base]]:
    async with provider.open(repo.spec) as sandbox:
        base = await prepare_repository(sandbox, make_task(**fields), hide=hide, timeout=60)
        await sh(sandbox, "git config user.name A; git config user.email a@example.org")
        yield sandbox, base


async def refusal(
    provider: SandboxProvider, repo: Repo, match: str | None = None, image: str | None = None, **fields: Any
) -> str:
    """Return the error that rejects a repository."""
    async with provider.open(repo.spec) as sandbox:
        sandbox.spec = sandbox.spec.model_copy(update={"image": image})
        with pytest.raises(SandboxError, match=match) as caught:
            await prepare_repository(sandbox, make_task(**fields), hide=True, timeout=60)
    return str(caught.value)


@pytest.mark.parametrize(
    "place", slow_but(["branch", "pack and loose", "reflog", "alternate", "all others"], PLACES)
)
async def test_prepared_repository_hides_the_fix(provider: SandboxProvider, aged: Repo, place: str) -> None:
    aged.sh(f"fix=$(git rev-parse future); {PLACES[place]}")
    plain = "export GIT_NO_REPLACE_OBJECTS=1;"
    log, state = aged.sh(f"{plain} git log --format='%H %s'"), aged.sh(f"{plain} git status --porcelain")
    blame = aged.sh(f"{plain} git blame -s a.py")
    async with provider.open(aged.spec) as sandbox:
        assert await sh(sandbox, SEARCH) != "", "the test hides nothing"
    async with prepared(provider, aged) as (sandbox, base):
        assert await sh(sandbox, SEARCH) == ""
        assert await sh(sandbox, FSCK) == ""
        assert await sh(sandbox, "git log --format='%H %s'") == log
        assert await sh(sandbox, "git blame -s a.py") == blame
        assert await sh(sandbox, "git status --porcelain") == state
        assert await sh(sandbox, "git for-each-ref --format='%(refname)'") == (
            "refs/heads/main\nrefs/tags/v1\nrefs/tags/v1.0\n"
        )
        assert (await sh(sandbox, "git describe")).startswith("v1.0-1-g")
        assert await sh(sandbox, "git reflog; git remote; git stash list; git worktree list") == (
            f"/testbed {base.commit[:7]} [main]\n".replace(" ", "  ", 1)
        )
        await sh(sandbox, "echo more >>a.py; git add -A; git commit -q -m mine; git checkout -q HEAD~2")
        await sh(sandbox, "git gc -q; git checkout -q main")
        assert b"+more" in await export_patch(sandbox, base, timeout=60)


async def test_prepare_keeps_local_changes(provider: SandboxProvider, aged: Repo) -> None:
    aged.sh("echo staged >s; git add s; echo changed >>a.py; echo new >n; git add -N n; git rm -q sub/b.py")
    aged.sh(":>.git/index.lock")
    show = (
        "(git status --porcelain; git diff; git diff --cached; find . -path ./.git -prune -o -print) | sort"
    )
    before = aged.sh(show)
    async with prepared(provider, aged) as (sandbox, _):
        assert await sh(sandbox, show) == before
        assert await sh(sandbox, SEARCH + FSCK) == ""
        await sh(sandbox, "git commit -q -m mine; git show HEAD:s")


async def test_prepare_does_not_repack_needlessly(provider: SandboxProvider, repo: Repo) -> None:
    repo.commit(a_py="a\n")
    repo.sh("git gc -q; git commit-graph write --reachable; rm -rf .git/logs; echo b >b; git add b")
    listing = "cd .git/objects; find . -type f ! -path './info/*' | sort"
    before = repo.sh(listing)
    assert before.count("\n") == 3  # a pack, its index, what is staged
    repo.sh("echo lost | git hash-object -w --stdin")
    async with prepared(provider, repo) as (sandbox, _):
        assert await sh(sandbox, listing) == before
        assert await sh(sandbox, "ls .git/objects/info") == ""
        assert await sh(sandbox, FSCK + "; git log --oneline | wc -l") == "1\n"


async def test_prepare_removes_nothing_behind_a_link(provider: SandboxProvider, aged: Repo) -> None:
    aged.sh(
        "d=$(git rev-parse future | cut -c 1-2); mv .git/objects/$d kept; ln -s ../../kept .git/objects/$d"
    )
    async with prepared(provider, aged) as (sandbox, _):
        assert await sh(sandbox, "ls kept") == aged.sh("ls kept")
        assert await sh(sandbox, FSCK) == ""


KINDS = {
    "shallow": "git clone -q --depth 2 --no-single-branch file://$PWD ../made; cd ../made",
    "sha256": "git init -q -b main --object-format=sha256 ../made; cd ../made; echo 1 >a; git add a;"
    f"git config user.name A; git config user.email a@example.org; git commit -q -m 1;{FUTURE}",
    "split index": "cp -r . ../made; cd ../made; git update-index --split-index; touch x; git add x;"
    "git update-index --split-index",
    "chains of deltas": "cp -r . ../made; cd ../made; for n in 1 2 3 4 5 6; do seq 2000 >>big;"
    "echo $n >>big; git add big; git commit -q -m $n; done; git checkout -q -b more; for n in 1 2 3; do "
    f"seq 2000 >>big; echo {FIX} >>big; git add big; git commit -q -m $n; done; git gc -q;"
    "git checkout -q main",
    "partial": "git config uploadpack.allowFilter true; git repack -q -a -d;"
    "git clone -q --filter=blob:none file://$PWD ../made; cd ../made",
}  # fmt: skip


@pytest.mark.parametrize("kind", slow_but(["shallow"], KINDS))
async def test_prepare_accepts_every_kind_of_repository(
    provider: SandboxProvider, aged: Repo, kind: str
) -> None:
    aged.sh(KINDS[kind])
    aged.path = aged.path.parent / "made"
    show = "git log --format=%H; git status --porcelain; git ls-files -s"
    before = aged.sh(show)
    async with prepared(provider, aged) as (sandbox, _):
        assert await sh(sandbox, SEARCH + FSCK) == ""
        assert await sh(sandbox, show) == before
        await sh(sandbox, "git commit -q --allow-empty -m mine")


@pytest.mark.parametrize("where", slow_but(["absorbed"], ["absorbed", "in the work tree"]))
async def test_prepare_truncates_submodules(provider: SandboxProvider, aged: Repo, where: str) -> None:
    aged.sh(
        "cp -r . ../module; rm -rf .git; git init -q -b main; git config user.name A;"
        "git config user.email a@b;"
        "git -c protocol.file.allow=always submodule --quiet add ../module libs/module;"
        "git -C libs/module fetch -q origin future; git add -A; git commit -q -m module; rm -rf .git/logs"
    )
    if where == "in the work tree":
        aged.sh("rm libs/module/.git; mv .git/modules/libs/module libs/module/.git;"
                "git config -f libs/module/.git/config --unset core.worktree")  # fmt: skip
    async with provider.open(aged.spec) as sandbox:
        assert "object" in await sh(sandbox, SEARCH)
    async with prepared(provider, aged) as (sandbox, _):
        assert await sh(sandbox, SEARCH) == ""
        assert await sh(sandbox, f"cd libs/module; {FSCK}; git log --oneline | wc -l") == "2\n"
        assert await sh(sandbox, "git status --porcelain; git submodule status | cut -c 1") == " \n"


BUG = """\
diff --git a/a.py b/a.py
--- a/a.py
+++ b/a.py
@@ -1 +1 @@
-a = 2
+a = 'bug'"""


@pytest.mark.parametrize("hide", slow_but([True], [True, False]))
async def test_prepare_applies_a_bug_and_hides_the_original(
    provider: SandboxProvider, aged: Repo, hide: bool
) -> None:
    aged.sh("echo dirty >>sub/b.py; echo u >u")
    aged.sh("printf '__pycache__/\nbuild/\n' >>.git/info/exclude; mkdir -p __pycache__ build/lib")
    aged.sh("echo 'a = 2' | tee __pycache__/a.cpython-311.pyc >build/lib/a.py")
    state = aged.sh("git status --porcelain")
    found = []
    for _ in range(2):
        async with prepared(provider, aged, hide, bug_patch=BUG) as (sandbox, base):
            found.append((base.commit, base.tree))
            assert await sh(sandbox, "cat a.py; git show HEAD:a.py") == "a = 'bug'\n" * 2
            shown = await sh(sandbox, "git log --oneline | wc -l; git tag; git status --porcelain")
            assert shown == f"1\n{state}"
            assert await sh(sandbox, "FIX='a = 2';" + SEARCH + FSCK) == ""
            assert await sh(sandbox, "grep -rl 'a = 2' /tmp/swe-home || :") == ""
            assert await export_patch(sandbox, base, timeout=60) == b""
    assert found[0] == found[1]


async def test_inapplicable_bug_is_an_error(provider: SandboxProvider, aged: Repo) -> None:
    says = "the bug_patch of the task 't-1' does not apply to its rep"
    for bug in (BUG.replace("-a = 2", "-a = 3"), "no patch"):
        await refusal(provider, aged, says, bug_patch=bug)


@pytest.mark.parametrize(("committed", "hide"), [(True, True), (False, True), (True, False)])
async def test_hidden_files_are_absent_for_the_agent_only(
    provider: SandboxProvider, aged: Repo, committed: bool, hide: bool
) -> None:
    aged.sh(f"mkdir tests; echo {FIX} >'tests/a b.py'; echo {FIX} >run.sh")
    if committed:
        aged.sh("git add -A; git commit -q -m tests")
    hidden = ("/testbed/tests", "/testbed/run.sh", "/nowhere/else")
    async with prepared(provider, aged, hide, hidden=hidden) as (sandbox, base):
        found = await sh(sandbox, SEARCH)
        assert (found == "") == hide
        assert await sh(sandbox, "git diff HEAD; git ls-files -d") == ""
        assert await export_patch(sandbox, base, timeout=60) == b""


ODD = {
    "chmod a-w .git": "cannot be freed of what came after its base: ",
    "mkdir .git/reftable": "reftable",
    "mv .git/objects .git/o; ln -s o .git/objects": "symbolic link",
    "git init -q --separate-git-dir=../elsewhere .": "not the top of a git work tree",
    "rm -rf .git": "not the top of a git work tree",
    "rm .git/refs/heads/main": "no commit to start from",
    "rm -f .git/objects/$(git rev-parse HEAD~1: | sed 's|..|&/|')": "cannot be freed",
}


@pytest.mark.parametrize("damage", slow_but(list(ODD)[:3], ODD))
async def test_unusable_repository_is_an_error(provider: SandboxProvider, aged: Repo, damage: str) -> None:
    aged.sh(damage)
    try:
        assert "\n" not in await refusal(provider, aged, ODD[damage])
    finally:
        if damage.startswith("chmod"):
            aged.sh("chmod u+w .git")


BETWEEN = f"""
git rm -q sub/b.py; echo {FIX} >a.py; git add a.py; git commit -q -m 'the fix {FIX}'; git tag fixed
git checkout -q HEAD~1 -- .; git commit -q -m revert
echo setup >setup.cfg; git add setup.cfg; git commit -q -m setup
"""
"""Commits above the base, as an image may have them: HEAD does not show the fix."""


HEADS = ("branch", "detached", "shallow", "merged", "short id", "sha256")


@pytest.mark.parametrize("kind", slow_but(["merged"], HEADS))
async def test_commits_above_the_base_become_one(provider: SandboxProvider, aged: Repo, kind: str) -> None:
    if kind == "sha256":
        aged.sh("rm -rf .git; git init -q -b main --object-format=sha256; git config user.name A;"
                "git config user.email a@example.org; git add .; git commit -q -m 1; git tag v1")  # fmt: skip
    commit = aged.head
    if kind == "merged":
        aged.sh("git merge -q --no-ff -m merge future; git rm -q fixed.txt; git commit -q -m 'taken back'")
    aged.sh(BETWEEN)
    if kind == "detached":
        aged.sh("git checkout -q --detach")
    if kind == "shallow":
        aged.sh("git clone -q --depth 4 file://$PWD ../made")
        aged.path = aged.path.parent / "made"
    aged.sh("echo staged >s; git add s; echo changed >>a.py; echo new >n")
    state = aged.sh("git status --porcelain; git diff; git diff --cached; git ls-files -s")
    tree, found = aged.sh("git rev-parse HEAD:").strip(), []
    for hide in (True, False):
        fields = {"base_commit": commit[:9] if kind == "short id" else commit}
        async with prepared(provider, aged, hide, **fields) as (sandbox, base):
            found.append((base.commit, base.tree))
            assert await sh(sandbox, SEARCH + FSCK) == ""
            shown = "git status --porcelain; git diff; git diff --cached; git ls-files -s"
            assert await sh(sandbox, shown) == state
            shown = "git rev-list --parents -n 1 HEAD; git rev-parse HEAD:; git tag -l fixed"
            assert await sh(sandbox, shown) == f"{base.commit} {commit}\n{tree}\n"
            assert await export_patch(sandbox, base, timeout=60) == b""
    assert found[0] == found[1]


ABSENT = "c0ffee" * 6
"""A commit that is in no repository."""
NO_ANCESTOR = "is not an ancestor of the HEAD '{head}' of the "
NOT_THERE = "is not in the repository '/testbed' in the sandbox{of}, whose HEAD is '{head}': use an image"


@pytest.mark.parametrize(
    ("wanted", "image", "says"),
    [
        ("future", None, NO_ANCESTOR),
        ("diverged", None, NO_ANCESTOR),
        (ABSENT, "owner/an-image:1", NOT_THERE),  # a row may name the image of another one
        (f"{ABSENT}^", None, NOT_THERE),  # the parent of a fix
    ],
)
async def test_base_commit_below_which_head_is_not_is_an_error(
    provider: SandboxProvider, aged: Repo, wanted: str, image: str | None, says: str
) -> None:
    if wanted == "diverged":
        aged.sh(
            "git commit -q --allow-empty -m other; git checkout -q -b mine; git branch -m future diverged"
        )
    if says == NO_ANCESTOR:
        wanted = aged.sh(f"git rev-parse {wanted}").strip()
    of = "" if image is None else f" of the image {image!r}"
    begins = f"the base_commit '{wanted}' of the task 't-1' {says.format(head=aged.head, of=of)}"
    assert (await refusal(provider, aged, image=image, base_commit=wanted)).startswith(begins)
    async with prepared(provider, aged, base_commit=wanted, bug_patch=BUG) as (sandbox, base):
        assert await sh(sandbox, "git rev-list HEAD") == f"{base.commit}\n"


@pytest.mark.parametrize("where", slow_but(["head"], ["head", "above"]))
async def test_base_commit_may_be_the_parent_of_the_fix(
    provider: SandboxProvider, aged: Repo, where: str
) -> None:
    """Rows of R2E-Gym name it so."""
    commit, fix = aged.head, aged.sh("git rev-parse future").strip()
    if between := where == "above":
        aged.sh(BETWEEN)
    async with prepared(provider, aged, base_commit=f"{fix}^") as (sandbox, base):
        assert (base.commit == commit) is not between
        assert base.unchecked == ""
        parents = f" {commit}" if between else ""
        shown = f"git rev-list --parents HEAD | grep -c '^{base.commit}{parents}'"
        assert await sh(sandbox, shown) == "1\n"
        assert await sh(sandbox, SEARCH + FSCK) == ""


ANEW = "rm -rf .git; cp -r . ../made; cd ../made; git init -q; git add -A; git commit -q -m 1"
UNCHECKED = {
    "main": ("", "base_commit is no commit's id"),
    "HEAD^": ("", "base_commit is no commit's id"),
    "made anew": (ANEW, "the repository has no history"),
    "shallow": ("git clone -q --depth 1 file://$PWD ../made", "the repository has no history"),
}


@pytest.mark.parametrize("kind", slow_but(["HEAD^", "shallow"], UNCHECKED))
async def test_base_commit_that_cannot_be_checked(provider: SandboxProvider, aged: Repo, kind: str) -> None:
    make, why = UNCHECKED[kind]
    if make:
        aged.sh(
            f"export GIT_AUTHOR_NAME=A GIT_COMMITTER_NAME=A GIT_AUTHOR_EMAIL=a GIT_COMMITTER_EMAIL=a;{make}"
        )
        aged.path = aged.path.parent / "made"
    async with prepared(provider, aged, base_commit=ABSENT if make else kind) as (_, base):
        assert (base.commit, base.unchecked) == (aged.head, why)


async def test_worktree_and_alternates_elsewhere_are_prepared(provider: SandboxProvider, aged: Repo) -> None:
    """As an image may have them: all of its disk is the sandbox's own."""
    async with provider.open(aged.spec) as sandbox:
        await sh(
            sandbox,
            "cp -r . /tmp/alt; git clone -q --shared --no-tags /tmp/alt /tmp/main; cd /tmp/main;"
            "git checkout -q future; rm -rf /testbed/* /testbed/.git;"
            "git worktree add -q /testbed origin/main; git tag v1 origin/main~1",
        )
        find = SEARCH + "find_in /tmp/main/.git; find_in /tmp/alt/.git"
        assert await sh(sandbox, find) != ""
        log = await sh(sandbox, "git log --format=%H; git status --porcelain")
        sandbox.spec = SandboxSpec(image="one", network="none")
        base = await prepare_repository(sandbox, make_task(), hide=True, timeout=60)
        assert await sh(sandbox, find) == ""
        assert await sh(sandbox, FSCK + "; git log --format=%H; git status --porcelain") == log
        assert await sh(sandbox, "git for-each-ref --format='%(refname)'") == "refs/tags/v1\n"
        assert base.commit == log.splitlines()[0]
        await sh(sandbox, "git -c user.name=a -c user.email=a@b commit -q --allow-empty -m mine; git log -1")


async def test_git_directory_outside_the_sandbox_is_untouched(aged: Repo, tmp_path: Path) -> None:
    """Without isolation the sandbox sees the user's own repository behind a `.git` file."""
    provider = LocalProvider(unisolated=True)
    provider.__dict__["_obstacle"] = "as on a machine without namespaces"
    aged.sh("git worktree add -q ../tree future")
    older = aged.head
    before = aged.sh("git for-each-ref; git reflog --all; find .git -type f | sort | xargs sha256sum")
    async with provider.open(SandboxSpec(repository=tmp_path / "tree", network="none")) as sandbox:
        with pytest.raises(SandboxError, match="lies outside of it, and is not the sandbox's own"):
            await prepare_repository(sandbox, make_task(base_commit=older), hide=True, timeout=60)
    assert aged.sh("git for-each-ref; git reflog --all; find .git -type f | sort | xargs sha256sum") == before


async def test_prepare_has_a_time_limit(provider: SandboxProvider, aged: Repo) -> None:
    async with provider.open(aged.spec) as sandbox:
        with pytest.raises(SandboxTimeout, match=r"could not be prepared within 0\.001 s"):
            await prepare_repository(sandbox, make_task(), hide=True, timeout=0.001)
