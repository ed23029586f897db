"""The graded state: the base, the accepted part of the patch, and the task's tests and test configuration.

It is computed in git's object database and then written to the work tree at once, so other files there
(ignored build products) have no effect, and no patch is followed through a symbolic link. The host decides
which part of the patch is accepted (`protected`, `merge_trees`), without a program or a configuration of the
repository. The sandbox never gets the task's own patches: of the `reference` it gets the files of the tests.

A patch is applied as a whole, with `git apply`, else with `git apply --3way` if that leaves no conflict, else
with `patch --fuzz=5` to a copy of the base. (swebench also tries `git apply --reject`, which drops hunks that
do not fit. A patch from `sandboxing.repository.patch` always fits its base, and any other patch without some
of its hunks is not the patch that its author wrote.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread

from swe_core.api.grader import Suspicion, Tampering
from swe_core.api.sandbox import ExecResult, Sandbox
from swe_core.api.task import Task
from swe_core.builtin.swe.archive import packed
from swe_core.builtin.swe.config_sections import MAX_BYTES as LARGEST_CONFIG
from swe_core.builtin.swe.git_trees import (
    MAX_PATH,
    Entry,
    Trees,
    index_info,
    parse_blobs,
    parse_changes,
    parse_listing,
    printable,
)
from swe_core.builtin.swe.merge_trees import contents_needed, digest_of_tests, merge_trees, own_files
from swe_core.builtin.swe.protected import Protection
from swe_core.builtin.swe.reference import GIT_APPLY, Reference, Rules, make_reference
from swe_core.builtin.swe.suspicious import LARGEST_SOURCE, added, names_of_tests
from swe_core.builtin.swe.test_files import absent_files, files_to_run
from swe_core.errors import GraderError, SandboxBroken, SandboxTimeout, SweError
from swe_core.sandboxing.repository.git import last_line, run_script
from swe_core.sandboxing.repository.patch import MAX_PATCH_BYTES, Base, as_patch, check_alive

MAX_ANSWER_BYTES = 256 * 1024 * 1024
"""The longest answer of git that is taken: some two million paths."""
_A = TypeVar("_A")
_B = TypeVar("_B")
_MAX_NAME = 255  # bytes, as Linux has it

_ENTER = r"""
root=$1 tree=$3
export GIT_DIR="$2" GIT_WORK_TREE="$1" GIT_INDEX_FILE="$2/index"
cd -- "$root"

# contents LARGEST: of the files whose ids are given, those that are no larger, and no more of them than all
# may hold together
contents() {
  room=$((64 * 1024 * 1024))
  git cat-file --batch-check='%(objectname) %(objectsize)' | while read -r id size; do
    [ "$size" != missing ] && [ "$size" -le "$1" ] && [ "$size" -le "$room" ] || continue
    room=$((room - size))
    echo "$id"
  done | git cat-file --batch
}
"""

_APPLY = (
    GIT_APPLY
    + r"""
cat >"$GIT_DIR/model.patch"

# in_a_copy: bring the index to what `patch` makes of a copy of the base. Neither may have links, since some
# versions of `patch` follow them, out of the copy.
in_a_copy() {
  command -v patch >/dev/null && ! has_links "$patch" || return
  ! git ls-tree -r "$tree" | grep -q ^120000 && copy=$(mktemp -d "$GIT_DIR/copy-XXXXXX") || return
  git read-tree "$tree" && git checkout-index -a --prefix="$copy/" &&
    patch --force --silent --strip=1 --fuzz=5 --no-backup-if-mismatch --directory="$copy" --input="$patch" &&
    [ -z "$(find "$copy" -name .git)" ] && GIT_WORK_TREE="$copy" git -C "$copy" add -A --force . &&
    echo 'patch --fuzz=5' >"$GIT_DIR/model.how"
}

applied() {
  git_apply model index || converting_apply model index 2>/dev/null || in_a_copy >/dev/null 2>&1
}

model=$(applied && git write-tree) || model=$tree
git diff-tree -r --no-renames "$tree" "$model" | awk '/\.py"?$/ { print $3; print $4 }' |
  contents LARGEST >"$GIT_DIR/sources" || :
wc -c <"$GIT_DIR/sources"
cat "$GIT_DIR/sources"
cat "$GIT_DIR/model.how" 2>/dev/null || echo none
printf '\0\0'
git ls-tree -r -z "$tree"
printf '\0'
git diff-tree -r -z --no-renames "$tree" "$model"
printf '\0'
cat "$GIT_DIR/ignored"
""".replace("LARGEST", str(LARGEST_SOURCE))
)

_LIST = r"""
git ls-tree -r -z "$tree"
printf '\0'
cat "$GIT_DIR/line-ends" "$GIT_DIR/info/own"
"""

_WRITE = r"""
tar -x -f - -C "$GIT_DIR"
find "$GIT_DIR" -name 'new-*' | git hash-object -w --no-filters --stdin-paths >/dev/null
export GIT_INDEX_FILE="$GIT_DIR/graded.index"
git read-tree "$tree"
git update-index -z --index-info <"$GIT_DIR/changes"
graded=$(git write-tree)
GIT_INDEX_FILE="$GIT_DIR/index" git read-tree --reset -u "$graded"
echo "$graded"
rm -rf "$GIT_DIR"
"""

_HAS_ROOM = r"""
find . -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +
head -c 67108864 /dev/zero >"$GIT_DIR/room"
"""
"""Whether a disk has room without the files of a patch, which are removed with all others."""


@dataclass(frozen=True, slots=True)
class GradedTree:
    """The tree of a test run.

    Args:
        files: The test files to run, relative to the repository (`test_files.files_to_run`).
        absent: Files that ids of tests name and that are nowhere (`test_files.absent_files`).
        id: The git id of the whole tree.
        is_base: Whether the empty patch gives the same tree.
        applied_with: What applied the patch, such as `git apply`.
        tampering: Parts of the patch without effect, and the reasons.
        tests: SHA-256 (hex) of the task's tests as they were written (`merge_trees.digest_of_tests`).
        own: Git ids of the task's own files: tests, their data, and the configuration of their run.
        decisive: Those of them that decide the verdict (`Protection.decides`).
        suspicious: What the part of the patch that counts adds (`suspicious.added`).
        notes: What a user should know of the verdict, as sentences.
    """

    files: tuple[str, ...]
    id: str
    is_base: bool
    applied_with: str
    tampering: tuple[Tampering, ...]
    tests: str
    own: Mapping[str, str]
    decisive: tuple[str, ...]
    suspicious: tuple[Suspicion, ...]
    absent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class PatchDoesNotApply(SweError):
    """The agent's patch does not fit the task's base."""


class References:
    """The references of tasks, each built once for a base."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, str], Reference] = {}

    async def of(self, sandbox: Sandbox, base: Base, task: Task, timeout: float) -> Reference:
        """Return the reference of a task with this base, whose files come from `sandbox`.

        Raises:
            GraderError: See `make_reference`.
            SandboxError: The base could not be read.
        """
        key = task.digest, base.tree
        if key not in self._made:
            done = await _git(sandbox, base, _LIST, b"", timeout)
            if done.exit_code != 0 or done.truncated:
                raise _unreadable(task, done)
            said, _, rules = done.stdout.rpartition(b"\0")
            listing = parse_listing(said.decode(errors="surrogateescape").split("\0")[:-1])
            line_ends, _, attributes = rules.partition(b"\n")
            read = partial(_blobs, sandbox, base, timeout)
            own = Rules(attributes, line_ends + b"\n")
            self._made[key] = await make_reference(task, listing, len(base.tree), read, own)
        return self._made[key]


async def prepare_tree(
    sandbox: Sandbox, base: Base, task: Task, patch: bytes, references: References, *, timeout: float
) -> GradedTree:
    """Bring the work tree to the graded state, and remove `base.store`.

    Args:
        patch: The agent's change, or the task's gold patch.
        references: The cache for the task's reference.
        timeout: Seconds for each of git's three parts: applying, reading a few files, writing.

    Raises:
        PatchDoesNotApply: `patch` does not apply, names a path outside the repository, in `.git` or too long
            for Linux, or is larger than `MAX_PATCH_BYTES`.
        GraderError: The task's test patch does not apply, or the files could not be written.
        SandboxTimeout: The time was up.
        SandboxDied: The sandbox is gone.
    """
    if len(patch) > MAX_PATCH_BYTES:
        raise PatchDoesNotApply(f"the patch has {len(patch)} bytes; at most {MAX_PATCH_BYTES} are graded")
    # Both take a while, and neither needs the other.
    (applied_with, trees, sources, said), reference = await _both(
        partial(_apply, sandbox, base, task, patch, timeout),
        partial(references.of, sandbox, base, task, timeout),
    )
    known = {**sources, **reference.contents}
    if reference.gold_with and as_patch(patch.decode(errors="replace")) == as_patch(task.patch):
        # The task's own patch is applied once, in one way: it may have been made from files of another form.
        applied_with, trees = reference.gold_with, replace(trees, model=reference.whole)
    if not applied_with:
        raise PatchDoesNotApply(f"the patch does not apply to the task's base: {said}")
    if (long := next(_too_long(base.root, trees), None)) is not None:
        raise PatchDoesNotApply(f"the patch names a path that is too long for Linux: {printable(long)[:300]}")
    trees = replace(trees, tests=reference.tests, reference=reference.whole)
    protection = Protection(trees, task)
    contents = await _read(sandbox, base, contents_needed(trees, protection), known, timeout)
    merged = await anyio.to_thread.run_sync(merge_trees, trees, protection, contents)
    written = {entry.id for entry in merged.changes.values() if entry is not None}
    new = [*merged.contents, *(data for id, data in reference.contents.items() if id in written)]
    files = {f"new-{number}": content for number, content in enumerate(new)}
    files["changes"] = index_info(merged.changes, len(base.tree))
    try:
        done = await _git(sandbox, base, _WRITE, packed(files), timeout)
    except SandboxTimeout:
        await check_alive(sandbox)
        raise PatchDoesNotApply(f"the patched files could not be written within {timeout:g} s") from None
    if done.exit_code != 0:
        if (await _git(sandbox, base, _HAS_ROOM, b"", timeout)).exit_code == 0:
            raise PatchDoesNotApply(f"the patched files do not fit into the sandbox: {last_line(done)}")
        raise GraderError(
            f"the patched files of the task {task.instance_id!r} could not be written: {last_line(done)}"
        )
    own = own_files(trees, protection)
    counts = [path for path in trees.model if protection.kind(path) is None]
    before, after = (
        {path: _source(path, entry, known) for path in counts if (entry := side(path)) is not None}
        for side in (trees.base.get, trees.in_model)
    )
    return GradedTree(
        files=files_to_run(task, trees),
        absent=absent_files(task, trees),
        id=done.text.strip(),
        is_base=merged.is_base,
        applied_with=applied_with,
        tampering=merged.tampering,
        tests=digest_of_tests(trees, protection),
        own={path: entry.id for path, entry in own.items()},
        decisive=tuple(filter(protection.decides, own)),
        suspicious=await anyio.to_thread.run_sync(
            added, before, after, names_of_tests(task), task.problem_statement
        ),
        notes=(reference.note,) if reference.note else (),
    )


def _source(path: str, entry: Entry, sources: Mapping[str, bytes]) -> bytes | None:
    """Return a Python file of a patch; None if it was not read or is a link, empty for other files."""
    return sources.get(entry.id) if path.endswith(".py") or not entry.is_file else b""


def _too_long(root: str, trees: Trees) -> Iterator[str]:
    for path in trees.model:
        whole = f"{root}/{path}".encode(errors="surrogateescape")
        if len(whole) > MAX_PATH or max(map(len, whole.split(b"/"))) > _MAX_NAME:
            yield path


_HASH = """
cd -- "$1"
paths=$(cat)
files() { printf '%s\\n' "$paths" | while IFS= read -r path; do
  if [ -f "$path" ] && ! [ -L "$path" ]; then printf '%s\\n' "$1$path"; else echo "$2"; fi
done; }
files + - | cut -c 1
files ./ '' | grep . | git hash-object --no-filters --stdin-paths
"""


async def changed_files(sandbox: Sandbox, files: Mapping[str, str], *, timeout: float) -> tuple[str, ...]:
    """Kill all processes, and return the files whose content does not have its git id.

    Returns ("",) if code inside prevents the comparison.

    Raises:
        SandboxDied: The sandbox is gone.
    """
    paths = [path for path in files if "\n" not in path]
    if not paths:
        return ()
    stdin = "".join(f"{path}\n" for path in paths).encode(errors="surrogateescape")
    try:
        await sandbox.kill_all()
        done = await run_script(sandbox, _HASH, sandbox.spec.workdir, stdin=stdin, timeout=timeout)
    except SandboxBroken:
        return ("",)
    except SandboxTimeout:
        await check_alive(sandbox)
        return ("",)
    said = done.text.split()
    there = [path for path, mark in zip(paths, said, strict=False) if mark == "+"]
    if done.exit_code != 0 or len(said) != len(paths) + len(there):
        return ("",)
    found = dict(zip(there, said[len(paths) :], strict=True))
    return tuple(path for path in paths if found.get(path) != files[path])


async def _both(first: Callable[[], Awaitable[_A]], second: Callable[[], Awaitable[_B]]) -> tuple[_A, _B]:
    """Return both results. If both fail, the error of the first counts."""
    others: list[_B | SweError] = []

    async def beside() -> None:
        try:
            others.append(await second())
        except SweError as error:
            others.append(error)

    error: SweError | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(beside)
        try:
            one = await first()
        except SweError as raised:  # and no group of errors
            error = raised
    if error is not None:
        raise error
    if isinstance(others[0], SweError):
        raise others[0]
    return one, others[0]


def _unreadable(task: Task, done: ExecResult) -> GraderError:
    why = "its listing is too long" if done.truncated else last_line(done)
    return GraderError(f"the repository of the task {task.instance_id!r} could not be read: {why}")


async def _apply(
    sandbox: Sandbox, base: Base, task: Task, patch: bytes, timeout: float
) -> tuple[str, Trees, Mapping[str, bytes], str]:
    """Return what applied the patch, empty where nothing did; the base and what the patch makes of it; the
    Python files of both that it changes, by id; the last word of git."""
    try:
        done = await _git(sandbox, base, _APPLY, patch if patch.strip() else b"", timeout)
    except SandboxTimeout:
        await check_alive(sandbox)
        raise PatchDoesNotApply(f"the patch could not be applied within {timeout:g} s") from None
    if done.exit_code != 0 or done.truncated:
        raise _unreadable(task, done)
    length, _, rest = done.stdout.partition(b"\n")
    sources, rest = parse_blobs(rest[: int(length)]), rest[int(length) :]
    sections: list[list[str]] = [[]]
    for record in rest.decode(errors="surrogateescape").split("\0")[:-1]:
        if record:
            sections[-1].append(record)
        else:
            sections.append([])
    how, listing, model, ignored = sections
    trees = Trees(parse_listing(listing), parse_changes(model), tests={}, reference={}, ignored=ignored)
    applied_with = how[0].strip()
    return "" if applied_with == "none" else applied_with, trees, sources, last_line(done)


async def _read(
    sandbox: Sandbox, base: Base, ids: Iterable[str], known: Mapping[str, bytes], timeout: float
) -> dict[str, bytes]:
    """Return the contents of files, by id, some of which are known; nothing of too large ones."""
    wanted = set(ids)
    found = {id: content for id, content in known.items() if id in wanted}
    unknown = wanted - found.keys()
    return found | await _blobs(sandbox, base, timeout, unknown, f"contents {LARGEST_CONFIG}")


async def _blobs(
    sandbox: Sandbox, base: Base, timeout: float, ids: Iterable[str], script: str = "git cat-file --batch"
) -> dict[str, bytes]:
    """Return those of these files that the repository has, by id."""
    if not (wanted := sorted(ids)):
        return {}
    stdin = "".join(f"{id}\n" for id in wanted).encode()
    done = await _git(sandbox, base, script, stdin, timeout)
    if done.exit_code != 0 or done.truncated:
        why = "they are too long" if done.truncated else last_line(done)
        raise GraderError(f"files of the repository {base.root!r} could not be read: {why}")
    return parse_blobs(done.stdout)


async def _git(sandbox: Sandbox, base: Base, script: str, stdin: bytes, timeout: float) -> ExecResult:
    args = (base.root, base.store, base.tree)
    return await run_script(
        sandbox, _ENTER + script, *args, stdin=stdin, timeout=timeout, max_output=MAX_ANSWER_BYTES
    )
