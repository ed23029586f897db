"""Reference: a task's base with the task's own patches. It is built on this host, never in a sandbox.

A sandbox that runs code of a patch must never contain the gold patch, or anything that reveals it. So only
the files of the base that the two patches name are read from the sandbox, and git applies the patches here,
in a directory of its own (`sandboxing.repository.git`), where it finds nothing to run.

A data set's patches were made from git's own files. Those of the base are the work tree's, which attributes
such as `eol=crlf`, `ident` and `working-tree-encoding` make different. So a patch is first applied as
`git apply` does it in that work tree: the files are converted, changed and converted back.
"""

from __future__ import annotations

import re
import tempfile
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import anyio.to_thread

from swe_core.api.task import Task
from swe_core.builtin.swe.git_trees import SUBMODULE, Changes, Entry, ancestors, index_info, parse_changes
from swe_core.errors import GraderError
from swe_core.sandboxing.repository.git import NO_GIT, last_line, run_here
from swe_core.sandboxing.repository.patch import as_patch

GIT_APPLY = r"""
# git_apply NAME INDEX [OPTION]: bring NAME.index to INDEX with NAME.patch; NAME.how says what applied it.
git_apply() {
  export GIT_INDEX_FILE="$GIT_DIR/$1.index"
  cp -- "$GIT_DIR/$2" "$GIT_INDEX_FILE" || return
  patch="$GIT_DIR/$1.patch" how='git apply'
  if [ -s "$patch" ] && ! git apply --cached --whitespace=nowarn ${3-} "$patch"; then
    how='git apply --3way'
    git apply --cached --3way --whitespace=nowarn ${3-} "$patch" >/dev/null 2>&1 || return
  fi
  echo "$how" >"$GIT_DIR/$1.how"
}

# has_links PATCH: whether it may make a link. Git and `patch` take any number with the bits of one, so only
# the modes of files and submodules are known to make none.
has_links() {
  grep -qE '^((old|new|new file|deleted file) mode|index [^ ]+) +([^ 1]|1[^06]|1[06][0-7]{5})' "$1"
}

# converting_apply NAME INDEX: the same with `git apply` in a copy of the files, which are converted as their
# attributes say. Neither may have links, which some versions of git follow out of the copy.
converting_apply() {
  export GIT_INDEX_FILE="$GIT_DIR/$1.index"
  cp -- "$GIT_DIR/$2" "$GIT_INDEX_FILE" || return
  patch="$GIT_DIR/$1.patch"
  [ -s "$patch" ] && ! has_links "$patch" && ! git ls-files --stage | grep -q ^120000 || return
  copy=$(mktemp -d "$GIT_DIR/copy-XXXXXX") && git checkout-index -a --prefix="$copy/" || return
  (cd -- "$copy" && export GIT_WORK_TREE="$copy" && converting apply --whitespace=nowarn "$patch" &&
    [ -z "$(find . -name .git)" ] && git add -A --force .) || return
  echo 'git apply' >"$GIT_DIR/$1.how"
}
"""
"""Functions for a shell script."""

_BAD_TESTS = 52

_REFER = (
    GIT_APPLY
    + r"""
cd -- "$1"
new_git_dir "$1" "$2"
cat rules-line-ends >line-ends
cat rules-attributes >info/own
if [ -s paths ]; then git hash-object -w --no-filters --stdin-paths <paths >/dev/null; fi
git update-index -z --index-info <slim
base=$(git write-tree)
applied() {
  { [ -s converts ] && converting_apply "$@" 2>/dev/null; } || git_apply "$@" || {
    # A data set may have lost the CRs of a patch for a file that has one in each line.
    [ -s crlf ] && cat crlf >>info/own && converting_apply "$@" 2>/dev/null
  } || git_apply "$@" --ignore-whitespace 2>/dev/null
}
applied tests index || exit 52
git diff-index --cached -z --no-renames "$base" >tests
applied gold tests.index 2>gold.said || export GIT_INDEX_FILE="$GIT_DIR/tests.index"
git diff-index --cached -z --no-renames "$base" >whole
"""
)

_MAX_ATTRIBUTES = 1024 * 1024
"""Bytes of the largest `.gitattributes` that counts."""
_NAMES = re.compile(rb"^(?:--- |\+\+\+ |(?:rename|copy) (?:from|to) )(.*?)(?:\t.*)?$", re.MULTILINE)
_HEADER = re.compile(rb"^diff --git (.*)$", re.MULTILINE)
_INDEX = re.compile(rb"^index ([0-9a-f]{4,64})\.\.", re.MULTILINE)
_ESCAPED = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_LETTERS = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13}


@dataclass(frozen=True, slots=True)
class Reference:
    """A base with the task's own patches.

    Args:
        tests: Changes of the test patch.
        whole: Changes of the test patch and the gold patch together; of the former alone if the gold patch
            does not apply.
        contents: The changed files of both, before and after, by their git ids.
        gold_with: What applied the gold patch, such as `git apply`; empty if nothing did.
        note: Why there is no gold patch in it although the task has one, as a sentence; else empty.
    """

    tests: Changes
    whole: Changes
    contents: Mapping[str, bytes]
    gold_with: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a repository itself, and no file in its work tree, says of attributes and line ends.

    Args:
        attributes: Its `info/attributes`.
        line_ends: Its `core.autocrlf` and `core.eol`, with a blank between them.
    """

    attributes: bytes = b""
    line_ends: bytes = b"false native\n"


async def make_reference(
    task: Task,
    base: Mapping[str, Entry],
    id_length: int,
    read: Callable[[Iterable[str]], Awaitable[Mapping[str, bytes]]],
    rules: Rules = Rules(),
) -> Reference:
    """Apply the task's patches to the files of `base` that they name.

    Args:
        base: Every path of the base.
        id_length: Hex digits of a git id there.
        read: Returns the existing ones of these files of the repository, by their whole ids.

    Raises:
        GraderError: The test patch does not apply, or this host has no git.
    """
    patches = {"tests.patch": as_patch(task.test_patch), "gold.patch": as_patch(task.patch)}
    both = b"".join(patches.values())
    named = {path: base[path] for path in _named(both) if path in base}
    places = {"", *(above for path in named for above in ancestors(path))}
    governing = (f"{place}/.gitattributes".lstrip("/") for place in places)
    named |= {path: base[path] for path in governing if path in base and base[path].is_file}
    before = (match[1].decode() for match in _INDEX.finditer(both))  # `--3way` starts from these
    contents = await read({*(e.id for e in named.values() if e.mode != SUBMODULE), *before})
    # Old versions of git cannot read huge ones.
    huge = {path for path, entry in named.items() if len(contents.get(entry.id, b"")) > _MAX_ATTRIBUTES}
    named = {p: e for p, e in named.items() if p not in huge or not p.endswith(".gitattributes")}
    return await anyio.to_thread.run_sync(_make, task, patches, named, contents, id_length, rules)


def _make(
    task: Task,
    patches: Mapping[str, bytes],
    named: Mapping[str, Entry],
    contents: Mapping[str, bytes],
    id_length: int,
    rules: Rules,
) -> Reference:
    """Apply the patches with git; blocks."""
    with tempfile.TemporaryDirectory(prefix="swe-reference-") as temporary:
        place = Path(temporary)
        for name, patch in patches.items():
            (place / name).write_bytes(patch)
        for number, content in enumerate(contents.values()):
            (place / f"blob-{number}").write_bytes(content)
        (place / "paths").write_text("".join(f"blob-{number}\n" for number in range(len(contents))))
        (place / "slim").write_bytes(index_info(named, id_length))
        (place / "rules-line-ends").write_bytes(rules.line_ends)
        (place / "rules-attributes").write_bytes(rules.attributes + b"\n")
        governed = any(path.endswith(".gitattributes") for path in named) or b".gitattributes" in b"".join(
            patches.values()
        )
        converts = governed or rules.attributes or not rules.line_ends.startswith(b"false")
        (place / "converts").write_bytes(b"yes" if converts else b"")
        crlf = (path for path, entry in named.items() if _has_crlf(contents.get(entry.id, b"")))
        (place / "crlf").write_bytes(b"".join(map(_as_crlf, crlf)))
        done = run_here(_REFER, temporary, str(id_length))
        if done.exit_code == NO_GIT:
            raise GraderError("grading needs git on this host: install your system's package 'git'")
        if done.exit_code == _BAD_TESTS:
            raise GraderError(
                f"the test patch of the task {task.instance_id!r} does not apply to the repository of its "
                f"sandbox, which has to be at {task.base_commit}: {last_line(done)}"
            )
        if done.exit_code != 0:
            raise GraderError(
                f"the patches of the task {task.instance_id!r} could not be applied on this host: "
                f"{last_line(done)}"
            )
        tests, whole = (
            parse_changes((place / name).read_text(errors="surrogateescape").split("\0")[:-1])
            for name in ("tests", "whole")
        )
        changed = (tests.values(), whole.values(), (named[path] for path in whole if path in named))
        entries = {entry.id for side in changed for entry in side if entry is not None}
        how, note = place / "gold.how", ""
        gold_with = how.read_text().strip() if how.exists() and patches["gold.patch"] else ""
        if patches["gold.patch"] and not gold_with:
            why = last_line(replace(done, stderr=(place / "gold.said").read_bytes()))
            note = (
                f"the gold patch of the task {task.instance_id!r} does not apply to its repository, so "
                f"the tests run without the test configuration that it may change: {why}"
            )
        return Reference(tests, whole, dict(_loose(place / "objects", entries)), gold_with, note)


def _has_crlf(content: bytes) -> bool:
    """Return whether it is a text each of whose lines ends with CRLF."""
    lines = content.count(b"\n")
    return lines > 0 and content.count(b"\r\n") == lines and b"\0" not in content


def _as_crlf(path: str) -> bytes:
    """Return a line of attributes by which git changes a file as if its lines ended with LF."""
    pattern = re.sub(rb"([\\*?\[])", rb"\\\1", path.encode(errors="surrogateescape"))
    quoted = re.sub(rb"[^ !#-\[\]-~]", lambda found: b"\\%03o" % found[0][0], pattern)
    return b'"/%b" text eol=crlf\n' % quoted


def _loose(objects: Path, ids: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the contents of those of these files that are loose objects (gitformat-loose).

    A loose object is deflated: `blob SIZE`, NUL, the content.
    """
    for identity in ids:
        path = objects / identity[:2] / identity[2:]
        if path.is_file():
            kind, _, content = zlib.decompress(path.read_bytes()).partition(b"\0")
            if kind.startswith(b"blob "):
                yield identity, content


def _named(patch: bytes) -> Iterator[str]:
    """Yield every path that a patch may name, and the directories above it.

    There may be too many: lines of text can look like names.
    """
    found = [match[1] for match in _NAMES.finditer(patch)]
    for header in _HEADER.finditer(patch):
        pair = header[1]
        if pair.startswith(b'"') or pair.endswith(b'"'):
            found += re.findall(rb'"(?:[^"\\]|\\.)*"|\S+', pair)
        else:  # the same name twice, which may have blanks
            found.append(pair[: len(pair) // 2])
    for name in set(found):
        path = _plain(name.rstrip(b"\r"))
        for beginning in (path, path.partition("/")[2]):  # `rename from` has no "a/" before it
            yield beginning
            yield from ancestors(beginning)


def _plain(name: bytes) -> str:
    """Return a name that git printed, without quotes and escapes."""
    if len(name) > 1 and name.startswith(b'"') and name.endswith(b'"'):
        name = _ESCAPED.sub(lambda m: _unescaped(m[1]), name[1:-1])
    return name.decode(errors="surrogateescape")


def _unescaped(text: bytes) -> bytes:
    if len(text) == 3:
        return bytes((int(text, 8) & 255,))
    return bytes((_LETTERS[text],)) if text in _LETTERS else text
