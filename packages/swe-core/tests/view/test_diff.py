"""Patches for a page."""

from __future__ import annotations

from swe_core.view.diff import MAX_FILE_LINES, MAX_LINES, file_diffs

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
    first, second, third = file_diffs(PATCH)
    assert (first.path, first.added, first.removed, first.note) == ("src/a.py", 2, 1, "")
    assert [kind for kind, _ in first.parts] == ["hunk", "same", "removed", "added"]
    assert (second.path, second.note, second.parts) == ("new name.py", "renamed from old name.py", [])
    assert (third.path, third.note) == ("img.png", "new file, binary")
    assert third.parts == []
    assert third.left_out


def test_long_patches_are_cut() -> None:
    lines = b"".join(b"+x\n" for _ in range(2 * MAX_FILE_LINES))
    one = b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -0,0 +1 @@\n" + lines
    files = file_diffs(one * 10)
    assert all(file.added == 2 * MAX_FILE_LINES for file in files)
    assert files[0].left_out == MAX_FILE_LINES + 1
    assert sum(text.count("\n") + 1 for file in files for _, text in file.parts) <= MAX_LINES
    wide = file_diffs(b"diff --git a/f b/f\n@@ -0,0 +1 @@\n+" + b"y" * 10_000_000 + b"\n")
    assert sum(len(text) for _, text in wide[0].parts) < 3_000


def test_odd_patches_are_shown() -> None:
    assert file_diffs(b"") == []
    (odd,) = file_diffs(b"no diff \xff\n")
    assert (odd.path, odd.parts) == ("", [("same", "no diff \ufffd\n")])
