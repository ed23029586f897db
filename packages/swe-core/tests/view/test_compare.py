"""The page that compares two runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.api.grader import Grade
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor
from swe_core.view.routes import all_paths
from swe_core.view.site import Site
from swe_testing.records import make_rollout

from .html import html, words


def make(path: Path, results: dict[str, str], tasks: dict[str, str] | None = None) -> Path:
    """A run of tasks with an attempt per letter: r(esolved), u(nresolved), e(rror)."""
    run = RunDirectory.create(path, new_run_info({}, {}, None, [], tasks), Redactor())
    for task, letters in results.items():
        for number, letter in enumerate(letters):
            outcome = {"r": "resolved", "u": "unresolved", "e": "error"}[letter]
            status = "PASSED" if letter == "r" else "FAILED"
            tests = {"fail_to_pass": {"t::fixed": status}, "pass_to_pass": {"t::kept": "PASSED"}}
            grade = None if letter == "e" else Grade(resolved=letter == "r", **tests)
            run.append(make_rollout(task, number, outcome, grade=grade))
    return path


@pytest.fixture
def site(tmp_path: Path) -> Site:
    make(tmp_path / "a", {"t-1": "uu", "t-2": "ru", "t-10": "ee", "only-a": "r"}, {"t-1": "x", "t-2": "y"})
    make(
        tmp_path / "b", {"t-1": "rr", "t-2": "ru", "t-10": "ru", "only-b": "r"}, {"t-1": "x", "t-2": "other"}
    )
    return Site([tmp_path])


def test_runs_are_compared_by_task(site: Site) -> None:
    text = words(html(site, "compare", "a", "b"))
    assert "pass@1 of b is 50.0 points higher than that of a" in text
    assert "Of the 2 tasks with a verdict in both, it is better on 1 , worse on 0 , and equal on 1." in text
    assert "The interval contains 0" in text
    assert "Only these tasks count: 25.0% against 75.0%." in text
    assert "t-1 ✗ ✗ 0 of 2 ✓ ✓ 2 of 2 +100.0" in text
    assert "t::fixed passed 0 of 2 → 2 of 2" in text
    assert "t::kept" not in text
    assert "1 task only in a" in text
    assert "1 task only in b" in text
    assert "1 task has another content in the second run, so the verdicts do not compare: t-2" in text


def test_runs_without_a_common_task(tmp_path: Path) -> None:
    make(tmp_path / "a", {"t-1": "r"})
    make(tmp_path / "b", {"t-2": "r"})
    assert "The runs share no task with a verdict in both" in html(Site([tmp_path]), "compare", "a", "b")


def test_many_tasks_tell_runs_apart(tmp_path: Path) -> None:
    make(tmp_path / "a", {f"t-{n}": "u" for n in range(30)})
    make(tmp_path / "b", {f"t-{n}": "r" for n in range(30)})
    text = words(html(Site([tmp_path]), "compare", "a", "b"))
    assert "The second run is better: its interval is above 0." in text
    assert "The second run is worse: its interval is below 0." in html(Site([tmp_path]), "compare", "b", "a")


def test_copy_has_the_pairs_of_few_runs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {path for path in all_paths(site) if path[:1] == ("compare",)} == {
        ("compare", "a", "b"),
        ("compare", "b", "a"),
    }
    monkeypatch.setattr("swe_core.view.pages.compare.MAX_COPIED", 1)
    assert not any(path[:1] == ("compare",) for path in all_paths(site))
