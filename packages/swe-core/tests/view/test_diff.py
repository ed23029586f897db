"""Patches for a page."""

from __future__ import annotations

from pathlib import Path

from swe_core.view.diff import MAX_FILE_LINES, MAX_FILES, MAX_LINES, patch_at, patch_of

PATCH = b"""diff --git a/src/a.py b/src/a.py
index 1..2 100644
--- a/src/a.py
+++ b/src/a.py
@@ -1,3 +1,3 @@ def f():
 same
--- removed, not a header
+++ added, not a header
+added
diff --git a/old name.py b/new name.py
similarity index 100%
rename from old name.py
rename to new name.py
diff --git a/img.png b/img.png
new file mode 100644
index 0..1
GIT binary patch
literal 5
Mc$_abc

literal 0
Hc$@<O00001

"""


def test_files_have_their_lines_and_counts() -> None:
    first, second, third = patch_of(PATCH).files
    assert (first.path, first.added, first.removed, first.note) == ("src/a.py", 2, 1, "")
    assert [kind for kind, _ in first.parts] == ["hunk", "same", "removed", "added"]
    assert (second.path, second.note, second.parts) == ("new name.py", "renamed from old name.py", [])
    assert (third.path, third.note) == ("img.png", "new file, binary")
    assert third.parts == []
    assert third.left_out


def test_long_patches_are_cut() -> None:
    lines = b"".join(b"+x\n" for _ in range(2 * MAX_FILE_LINES))
    one = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n" + lines
    files = patch_of(one * 10).files
    assert all(file.added == 2 * MAX_FILE_LINES for file in files)
    assert files[0].left_out == MAX_FILE_LINES + 1
    assert sum(text.count("\n") + 1 for file in files for _, text in file.parts) <= MAX_LINES
    wide = patch_of(b"diff --git a/f b/f\n@@ -0,0 +1 @@\n+" + b"y" * 10_000_000 + b"\n").files
    assert sum(len(text) for _, text in wide[0].parts) < 3_000


def test_odd_patches_are_shown() -> None:
    assert patch_of(b"").files == []
    (odd,) = patch_of(b"no diff \xff\n").files
    assert (odd.path, odd.parts) == ("", [("same", "no diff \ufffd\n")])


def test_large_patch_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "patch.diff"
    path.write_bytes(b"diff --git a/f b/f\n@@ -0,0 +1 @@\n" + (b"+" + b"x" * 98 + b"\n") * 50_000)
    patch = patch_at(path, tmp_path)
    assert patch is not None
    assert (patch.read, patch.unread, patch.digest) == (4_000_000, path.stat().st_size - 4_000_000, None)
    many = patch_of(b"".join(b"diff --git a/%d b/%d\n@@ -0,0 +1 @@\n+x\n" % (n, n) for n in range(500)))
    assert (len(many.files), many.more_files, many.added) == (MAX_FILES, 500 - MAX_FILES, 500)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "patch.diff").symlink_to(path)
    assert patch_at(tmp_path / "run" / "patch.diff", tmp_path / "run") is None, "it lies outside of the run"


def test_path_is_whole() -> None:
    for patch, path in (
        ("diff --git a/src/auth b/README.md b/src/auth b/README.md\nold mode 100644", "src/auth b/README.md"),
        ("diff --git a/x b/y b/x b/y\n--- a/x b/y\n+++ b/x b/y\t\n@@ -1 +1 @@\n-a\n+b", "x b/y"),
        ("diff --git a/x b/y\ndeleted file mode 100644\n--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a", "x"),
        ("diff --git a/x b/p b/q\nrename from x\nrename to p b/q", "p b/q"),
        (r'diff --git "a/\303\244" "b/\303\244"', r"\303\244"),
    ):
        (one,) = patch_of(patch.encode()).files
        assert one.path == path
