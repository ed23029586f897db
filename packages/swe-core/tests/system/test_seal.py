"""Seals: when a file is read, and what is archived. Other tests cover seals of bundles and repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.system import seal
from swe_core.system.seal import Seal, contents_of, set_aside


@pytest.fixture(autouse=True)
def _own_seals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def test_seal_waits_until_file_times_are_unambiguous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, slept, ages = tmp_path / "file", list[float](), [-1.0, 1.0, 0.015, 0.0]
    path.write_text("x")
    monkeypatch.setattr(seal.time, "sleep", slept.append)
    monkeypatch.setattr(seal.time, "time", lambda: path.stat().st_ctime + ages.pop())
    while ages:
        assert list(contents_of(path)) == ["."]
    assert slept == pytest.approx([0.02, 0.005], abs=1e-4)


def test_unsealed_directory_does_not_match(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    assert not Seal(tree).holds()
    tree.mkdir()
    (tree / "file").write_text("x")
    assert not Seal(tree).holds()
    Seal(tree).put()
    assert Seal(tree).holds()
    (tree / "file").touch()  # which changes its times, and no byte
    assert Seal(tree).holds()


def test_set_aside_directory_is_kept_until_the_next(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for text in ("first", "second"):
        tree.mkdir()
        (tree / "file").write_text(text)
        aside = set_aside(tree)
        assert (aside / "file").read_text() == text
    assert [path.parent for path in tmp_path.glob(".tree-*.changed/tree")] == [aside.parent]
