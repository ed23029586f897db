"""The graded tree: each path comes from the patch, or from the reference if it is protected (`protected`)."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from swe_core.api.grader import Tampering, TamperKind
from swe_core.builtin.swe.config_sections import with_sections_of
from swe_core.builtin.swe.git_trees import (
    LINK,
    SUBMODULE,
    Changes,
    Entry,
    Trees,
    ancestors,
    blob_id,
    printable,
)
from swe_core.builtin.swe.protected import Protection

MAX_LISTED = 100
"""Maximum of listed paths that a patch tampers with; one more entry has the number of the others."""

_MAX_LINKS = 40


@dataclass(frozen=True, slots=True)
class MergedTree:
    """The graded tree, and what to write for it.

    Args:
        changes: The differences of the graded tree from the base.
        is_base: Whether the empty patch gives the same.
        contents: New files, which are in no tree yet.
        tampering: Parts of the patch without effect, and the reasons.
    """

    changes: Changes
    is_base: bool
    contents: tuple[bytes, ...]
    tampering: tuple[Tampering, ...]


def contents_needed(trees: Trees, protection: Protection) -> set[str]:
    """Return the ids of the files whose content `merge_trees` needs."""
    needed: set[str] = set()
    for path in {*trees.model, *trees.reference}:
        if protection.kind(path) is None and protection.shares_config(path):
            sides = (trees.base.get(path), trees.in_model(path), trees.in_reference(path))
            needed.update(entry.id for entry in sides if entry is not None and entry.is_file)
    if _new_links(trees):
        needed.update(entry.id for entry in _links(trees).values())
    return needed


def merge_trees(trees: Trees, protection: Protection, contents: Mapping[str, bytes]) -> MergedTree:
    """Decide for each path that any side changes.

    Args:
        contents: By id, those of `contents_needed` that are no larger than they may be.
    """
    work = _Work(trees, protection, contents)
    for path in sorted({*trees.model, *trees.reference}):
        work.decide(path)
    work.make_room()
    graded, alone = (_differing(side, trees.base) for side in (work.graded, work.alone))
    return MergedTree(graded, graded == alone, tuple(work.new.values()), _limited(work.tampering))


def own_files(trees: Trees, protection: Protection) -> dict[str, Entry]:
    """Return the task's own regular files in each graded tree: tests and the configuration of their run."""
    found = {}
    for path in trees.reference_paths():
        entry = trees.in_reference(path)
        if entry is not None and entry.is_file and protection.kind(path) in ("tests", "runner-config"):
            found[path] = entry
    return found


def digest_of_tests(trees: Trees, protection: Protection) -> str:
    """SHA-256 (hex) of the task's tests: of a line `MODE ID<tab>PATH<NUL>` for each file, by path."""
    digest = hashlib.sha256()
    for path in sorted(filter(protection.is_test, trees.reference_paths())):
        entry = trees.in_reference(path)
        if entry is not None:
            digest.update(f"{entry.mode} {entry.id}\t{path}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()


@dataclass(slots=True)
class _Work:
    """The two trees as they come about, `alone` that of the empty patch."""

    trees: Trees
    protection: Protection
    contents: Mapping[str, bytes]
    graded: dict[str, Entry | None] = field(default_factory=dict)
    alone: dict[str, Entry | None] = field(default_factory=dict)
    put_back: set[str] = field(default_factory=set)
    new: dict[str, bytes] = field(default_factory=dict)
    tampering: list[Tampering] = field(default_factory=list)
    links: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if _new_links(self.trees):
            self.links = {
                path: self.contents.get(entry.id, b"/").decode(errors="surrogateescape")
                for path, entry in _links(self.trees).items()
            }

    def decide(self, path: str) -> None:
        before, mine = self.trees.base.get(path), self.trees.in_model(path)
        right = self.trees.in_reference(path)
        kind = self.protection.kind(path)
        if kind is not None:
            self.graded[path] = self.alone[path] = right
            self.put_back.add(path)
            if mine not in (before, right):
                self._note(kind, path, _what_became(before, mine, right))
        elif self.protection.shares_config(path):
            self._decide_sections(path, before, mine, right)
        elif mine not in (before, right) and (why := self._no_link(path, mine)) is not None:
            self.graded[path] = self.alone[path] = before
            self._note("symlink", path, why)
        else:
            self.graded[path], self.alone[path] = mine, before

    def _decide_sections(
        self, path: str, before: Entry | None, mine: Entry | None, right: Entry | None
    ) -> None:
        self.put_back.add(path)
        alone = self._edited(path, before, before, right)
        edited = self._edited(path, mine, before, right)
        self.alone[path] = right if alone is None else self._entry(alone, before or right)
        if alone is None or edited is None:
            self.graded[path] = self.alone[path]
            if mine not in (before, right):
                self._note("runner-config", path, "whole file put back: its sections cannot be told for sure")
            return
        self.graded[path] = self._entry(edited, mine or before or right)
        changed = mine != before and self._edited(path, mine, mine, before) != self._content(mine)
        if changed and edited != self._content(mine):
            self._note("runner-config", path, "the test runner's sections were put back, the rest counts")

    def _edited(
        self, path: str, mine: Entry | None, before: Entry | None, right: Entry | None
    ) -> bytes | None:
        ours, base, wanted = map(self._content, (mine, before, right))
        if ours is None or base is None or wanted is None:
            return None
        if ours == wanted:
            return ours
        return with_sections_of(
            wanted, ours, base, name=posixpath.basename(path), programs=self.protection.programs
        )

    def _content(self, entry: Entry | None) -> bytes | None:
        """Empty where there is no file, None where there is something else, or too large a file."""
        if entry is None:
            return b""
        return self.contents.get(entry.id) if entry.is_file else None

    def _entry(self, content: bytes, like: Entry | None) -> Entry | None:
        if not content and (like is None or self.contents.get(like.id) != b""):
            return None
        mode = like.mode if like is not None else "100644"
        identity = blob_id(content, self._id_length)
        if identity not in self.contents:
            self.new[identity] = content
        return Entry(mode, identity)

    @property
    def _id_length(self) -> int:
        return len(next(iter(self.contents)))

    def _no_link(self, path: str, entry: Entry | None) -> str | None:
        """Return why a link of the patch is not created; None if it is, or if it is no link."""
        if entry is not None and entry.mode == SUBMODULE:
            return "a commit of another repository has no files: left out"
        if entry is not None and entry.mode == LINK and _leads_out(path, self.links):
            return f"a link to {printable(self.links[path])[:200]!r}, out of the repository: left out"
        return None

    def make_room(self) -> None:
        """Remove what stands where a protected path needs a directory, or below one that is a file."""
        for tree in (self.graded, self.alone):
            fixed = {path for path in self.put_back if tree[path] is not None}
            above = {directory for path in fixed for directory in ancestors(path)}
            in_the_way = [path for path in above if tree.get(path, self.trees.base.get(path)) is not None]
            in_the_way += [
                path
                for path, entry in tree.items()
                if entry is not None and path not in fixed and any(a in fixed for a in ancestors(path))
            ]
            for path in sorted(in_the_way):
                tree[path] = None
                if tree is self.graded and path in self.trees.model:
                    self._note("symlink", path, "stood in the way of a protected file: left out")

    def _note(self, kind: TamperKind, path: str, done: str) -> None:
        self.tampering.append(Tampering(kind=kind, path=printable(path), done=done))


def _what_became(before: Entry | None, mine: Entry | None, right: Entry | None) -> str:
    if right is None:
        return "new: left out" if before is None else "not in the task's own version: left out"
    if mine is None:
        return "deleted: put back"
    if mine.is_file != right.is_file:
        return "replaced by a link: put back"
    return "changed: the task's own version counts"


def _new_links(trees: Trees) -> bool:
    return any(entry is not None and entry.mode == LINK for entry in trees.model.values())


def _links(trees: Trees) -> dict[str, Entry]:
    """Return every link of the patched tree."""
    found = {path: entry for path, entry in trees.base.items() if entry.mode == LINK}
    for path, entry in trees.model.items():
        found.pop(path, None)
        if entry is not None and entry.mode == LINK:
            found[path] = entry
    return found


def _leads_out(path: str, links: Mapping[str, str]) -> bool:
    """Return whether the link at `path`, fully resolved, ends outside the repository or in `.git`."""
    place: list[str] = []
    todo = path.split("/")[::-1]
    followed = 0
    while todo:
        step = todo.pop()
        if step in ("", "."):
            continue
        if step == "..":
            if not place:
                return True
            place.pop()
            continue
        place.append(step)
        if step == ".git":
            return True
        target = links.get("/".join(place))
        if target is not None:
            followed += 1
            if target.startswith("/") or followed > _MAX_LINKS:
                return True
            place.pop()
            todo += target.split("/")[::-1]
    return False


def _differing(tree: Changes, base: Mapping[str, Entry]) -> dict[str, Entry | None]:
    return {path: entry for path, entry in tree.items() if entry != base.get(path)}


def _limited(found: Sequence[Tampering]) -> tuple[Tampering, ...]:
    if len(found) <= MAX_LISTED:
        return tuple(found)
    more = Tampering(kind=found[-1].kind, path="", done=f"{len(found) - MAX_LISTED} more paths like these")
    return (*found[:MAX_LISTED], more)
