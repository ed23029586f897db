"""The pages that compare runs, and of a group."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swe_core.api.grader import Grade
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.rollout.training_records import ClosedGroup, GroupMember
from swe_core.system.redaction import Redactor
from swe_core.view.pages.group import why_advantages
from swe_core.view.routes import all_paths
from swe_core.view.site import Site
from swe_testing.records import make_rollout, make_run

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
    other = {"t-1": "rr", "t-2": "ru", "t-10": "ru", "only-b": "r"}
    make(tmp_path / "b", other, {"t-1": "x", "t-2": "other"})
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


def test_many_tasks_tell_runs_apart(tmp_path: Path) -> None:
    make(tmp_path / "a", {f"t-{n}": "u" for n in range(30)})
    make(tmp_path / "b", {f"t-{n}": "r" for n in range(30)})
    make(tmp_path / "c", {"other": "r"})
    for first, second, said in (
        ("a", "b", "The second run is better: its interval is above 0."),
        ("b", "a", "The second run is worse: its interval is below 0."),
        ("a", "c", "The runs share no task with a verdict in both"),
    ):
        assert said in html(Site([tmp_path]), "compare", first, second)


def test_copy_has_the_pairs_of_few_runs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = {path for path in all_paths(site) if path[:1] == ("compare",)}
    assert compared == {("compare", "a", "b"), ("compare", "b", "a")}
    monkeypatch.setattr("swe_core.view.pages.compare.MAX_COPIED", 1)
    assert not any(path[:1] == ("compare",) for path in all_paths(site))


def closed(
    rewards: list[float | None], skipped: str | None = None, left_out: str | None = None
) -> ClosedGroup:
    members = tuple(
        GroupMember(
            rollout_id=f"t-g0-{number}", reward=reward, advantage=None, left_out=None if number else left_out,
        )
        for number, reward in enumerate(rewards)
    )  # fmt: skip
    return ClosedGroup(group=0, task_id="t", members=members, skipped=skipped)


ALIKE = "the group has no spread, so every advantage is 0"
SKIPPED = "The trainer skipped this group, so none of its rows was trained"


def test_sentence_says_why_an_advantage_is_what_it_is() -> None:
    for group, said in (
        (closed([0.0] * 4, "no_spread"), f"All 4 rewards are equal (0.0): {ALIKE}. The trainer skipped it"),
        (closed([1.0, 1.0]), f"All 2 rewards are equal (1.0): {ALIKE}. The trainer trained it all the same"),
        (closed([1.0, None], "too_few_scored"), f"{SKIPPED}: too few of its attempts have a verdict"),
        (closed([1.0, 0.0], "overlong"), f"{SKIPPED}: too few of its attempts with a verdict were not cut"),
        (closed([None, 1.0, 0.0]), "have a mean of 0.5 and a standard deviation of 0.5: an advantage is ("),
        (closed([0.0, 1.0, 0.0], None, "stale"), "1 of the 3 attempts does not count"),
    ):
        assert said in why_advantages([], group, training=True)


def test_sentence_of_an_open_group_and_of_an_evaluation() -> None:
    heads = [make_rollout("t", number, outcome="unresolved") for number in range(2)]
    assert why_advantages(heads, None, training=False) == (
        "All 2 rewards are equal (0.0): the group has no spread, so every advantage is 0."
    )
    assert "has not closed this group" in why_advantages(heads, None, training=True)
    assert "There is one reward (0.0)" in why_advantages(heads[:1], None, training=False)
    said = why_advantages([make_rollout("t", 0, outcome="error")], None, training=False)
    assert said == "No attempt has a reward, so there is no advantage."


def test_attempts_stand_side_by_side(training: Path) -> None:
    text = words(html(Site([training]), "run", "train", "group", "g0"))
    assert "advantage +1.000 -1.000 +1.000 -1.000" in text
    assert "advantage × weight +1.000 -1.000 +1.000 -1.000" in text
    assert re.search(r"sampling policy( version 0(–1)?){4}", text)
    assert "staleness 1 version behind" in text
    assert "tests/test_offset.py::test_minutes ✓ PASSED ✗ FAILED ✓ PASSED ✗ FAILED" in text
    assert "computed" not in text
    text = words(html(Site([training]), "run", "train", "group", "g2"))
    assert "not trained, because – it has no reward it was cancelled as stale –" in text
    assert "1 version behind – cancelled as stale 1 version behind" in text


def test_advantages_of_an_evaluation_are_marked_as_computed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    for number, outcome in enumerate(("resolved", "unresolved", "error")):
        run.append(make_rollout("t", number, outcome=outcome))
    text = words(html(Site([run.path]), "run", "run", "group", "t"))
    assert "advantage, computed +1.000 -1.000 –" in text
    assert "No trainer has recorded this group" in text


def test_shaped_and_zeroed_rewards_stand_beside_the_record(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    run.append(make_rollout("t", 0, id="t-g0-0", reward=0.75, unshaped_reward=1.0))
    run.append(make_rollout("t", 1, id="t-g0-1", outcome="unresolved"))
    text = words(html(Site([run.path]), "run", "run", "group", "g0"))
    assert "reward 0.75 0 unshaped reward 1 0" in text
    assert "reward in the group" not in text
    group = closed([0.0, 0.0, 1.0], None, "overlong")
    (run.path / "groups.jsonl").write_bytes(group.model_dump_json().encode() + b"\n")
    text = words(html(Site([run.path]), "run", "run", "group", "g0"))
    assert "reward in the group 0 0" in text
    assert "not trained, because a budget or the limit of a reply cut it" in text
