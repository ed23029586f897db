"""A reversed diff does what `git apply -R` does, for what git itself writes."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.builtin.rows.reverse import NotReversible, reversed_diff

ENV = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}


def git(directory: Path, *args: str, stdin: bytes | None = None) -> bytes:
    done = subprocess.run(
        ["git", "-c", "core.autocrlf=false", *args], cwd=directory, input=stdin, capture_output=True, env=ENV
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def write(directory: Path, files: Mapping[str, tuple[bytes, bool]]) -> None:
    for path in [path for path in directory.rglob("*") if path.is_file() and ".git" not in path.parts]:
        path.unlink()
    for name, (content, executable) in files.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o755 if executable else 0o644)


def tree(directory: Path) -> bytes:
    git(directory, "add", "-A")
    return git(directory, "write-tree")


lines = st.sampled_from(b"a,b,, c,-- x,++ y,--- a/x,+++ b/x,@@ -1 +1 @@,\\ d,e\r,\xc3\xa9".split(b","))
text = st.builds(
    lambda parts, end: b"\n".join(parts) + (b"\n" if end else b""),
    st.lists(lines, max_size=12),
    st.booleans(),
)
content = st.one_of(text, st.just(b"\0binary\n"), st.just(b"\0other"))
names = st.sampled_from(["a.py", "b c.py", "d/e.txt", "\u00e9.py", 'q".py', "tab\tname"])
states = st.dictionaries(names, st.tuples(content, st.booleans()), max_size=4)


@given(states, states)
@settings(max_examples=60, deadline=None)
def test_files_that_git_writes_are_removed(
    before: dict[str, tuple[bytes, bool]], after: dict[str, tuple[bytes, bool]]
) -> None:
    """Edits, new and deleted files, modes, renames, binary files, odd names, no line end at the end."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        git(directory, "init", "-q")
        write(directory, before)
        first = tree(directory)
        write(directory, after)
        second = tree(directory)
        diff = git(directory, "diff", "--binary", "-M", first.decode().strip(), second.decode().strip())
        reverse = reversed_diff(diff.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        again = reversed_diff(reverse.decode(errors="surrogateescape")).encode(errors="surrogateescape")
        for patch, expected in ((reverse, first), (again, second)):
            if patch:
                git(directory, "apply", "--index", "--whitespace=nowarn", "-", stdin=patch)
            assert tree(directory) == expected


@pytest.mark.parametrize(
    ("diff", "reversed_"),
    [
        ("--- a/x.py\n+++ b/x.py\n@@ -1,3 +1,3 @@ def f():\n a\n-b\n+c\n \n",
         "--- a/x.py\n+++ b/x.py\n@@ -1,3 +1,3 @@ def f():\n a\n-c\n+b\n \n"),
        ("From: somebody\n\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n-- \n2.40\n",
         "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-b\n+a\n"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b", "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-b\n+a\n"),
    ],
    ids=["without git's headers", "text before and after", "no line end at the end"],
)  # fmt: skip
def test_diff_of_others_is_reversed(diff: str, reversed_: str) -> None:
    assert reversed_diff(diff) == reversed_


IRREVERSIBLE = (
    ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n+b\n", "does not have the lines that its head counts"),
    ("--- a/x\n+++ b/x\n@@ one @@\n", "the head of a hunk is malformed"),
    ("diff --git a/x b/y\nsimilarity index 100%\ncopy from x\ncopy to y\n", "copies a file"),
    ("diff --git a/x b/x\nBinary files a/x and b/x differ\n", "without saying how"),
    ("diff --git a/x b/x\nGIT binary patch\nliteral 1\nIc\n\n", "one direction"),
)


def test_irreversible_patch_is_reported() -> None:
    for diff, says in IRREVERSIBLE:
        with pytest.raises(NotReversible, match=says):
            reversed_diff(diff)


@given(st.text(alphabet="@-+ \\ab1,\n"), st.sampled_from(["", "--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n"]))
def test_any_text_is_reversed_or_refused(text: str, start: str) -> None:
    with contextlib.suppress(NotReversible):
        reversed_diff(start + text)
