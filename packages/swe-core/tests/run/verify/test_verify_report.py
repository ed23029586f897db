"""The report: round trips, torn and foreign files, and tasks that changed since."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.grader import Grade
from swe_core.api.limits import Limits
from swe_core.api.task import Task
from swe_core.errors import UsageError
from swe_core.run.plan import limits_of
from swe_core.run.settings import RunOptions, Settings
from swe_core.run.verified_tasks import gold_seconds, image_ids, other_images, usable_ids
from swe_core.run.verify.report import VERDICTS, Check, ReportFile, TaskVerdict, VerifyReport
from swe_testing.records import make_rollout, make_task


def tried(*names: str, **fields: Any) -> tuple[Check, ...]:
    return tuple(Check(**{"name": name, "resolved": False, **fields}) for name in names)


def verdict_on(task: Task, verdict: str = "usable", **fields: Any) -> TaskVerdict:
    values: dict[str, Any] = {
        "task_id": task.instance_id,
        "verdict": verdict,
        "digest": task.digest,
        "sandbox": "local",
        "grader": "swe",
        "versions": {"swe-core": "1"},
        "repeat": 1,
        "checks": tried("conftest-root"),
        "started_at": datetime(2026, 1, 1, tzinfo=UTC),
        "seconds": 1.0,
    }
    return TaskVerdict(**{**values, **fields})


A, B, C = make_task("a"), make_task("b"), make_task("c")


@given(verdicts=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(VERDICTS)), min_size=1))
@settings(max_examples=50)
def test_last_line_of_a_task_counts(
    tmp_path_factory: pytest.TempPathFactory, verdicts: list[tuple[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("report") / "report.jsonl"
    tasks = {"a": A, "b": B, "c": C}
    for name, verdict in verdicts:
        ReportFile(path).append(verdict_on(tasks[name], verdict))
    expected = dict(verdicts)
    report = VerifyReport.read(path)
    assert {task.task_id: task.verdict for task in report.tasks} == expected
    assert sum(report.counts().values()) == len(expected)
    assert list(report.counts()) == [name for name in VERDICTS if name in expected.values()]
    assert usable_ids(path, tasks.values()) == {name for name, is_ in expected.items() if is_ == "usable"}


def test_torn_last_line_is_skipped_and_truncated(tmp_path: Path) -> None:
    report = ReportFile(path := tmp_path / "report.jsonl")
    report.append(verdict_on(A))
    report.append(verdict_on(B))
    path.write_bytes(path.read_bytes()[:-1])
    assert [task.task_id for task in VerifyReport.read(path).tasks] == ["a"]
    ReportFile(path).append(verdict_on(C))
    assert [task.task_id for task in VerifyReport.read(path).tasks] == ["a", "c"]
    path.write_bytes(path.read_bytes()[:40])  # also the first
    ReportFile(path).append(verdict_on(B))
    assert [task.task_id for task in VerifyReport.read(path).tasks] == ["b"]


NO_VERDICT = "line 1 of '.*file' is not a verdict of this version's"
OTHER = verdict_on(A).model_dump_json().replace('"format":1', '"format":2').encode() + b"\n"


@pytest.mark.parametrize(
    ("content", "reading", "writing"),
    [
        *((text, NO_VERDICT, NO_VERDICT.removesuffix(" of this version's")) for text in (b"hello\n", OTHER)),
        (b"somebody's notes", "the report '.*file' is empty", "is no report of `tasks verify`: name another"),
        (None, "cannot read the report '.*': Is a directory", "cannot write the report '.*': Is a directory"),
    ],
    ids=["text", "another format", "no line", "a directory"],
)
def test_foreign_file_is_not_touched(
    tmp_path: Path, content: bytes | None, reading: str, writing: str
) -> None:
    path = tmp_path / "file"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    for use, says in ((VerifyReport.read, reading), (ReportFile, writing)):
        with pytest.raises(UsageError, match=says):
            use(path)
    assert content is None or path.read_bytes() == content


def test_changed_tasks_are_rejected(tmp_path: Path) -> None:
    report = ReportFile(path := tmp_path / "report.jsonl")
    for task, verdict in ((A, "usable"), (B, "usable"), (C, "flaky")):
        report.append(verdict_on(task, verdict))
    assert usable_ids(path, [A, C, make_task("new")]) == {"a"}
    assert usable_ids(path, [make_task("a", problem_statement="the same bug, in other words")]) == {"a"}
    assert usable_ids(path, [make_task("c", patch="other")]) == set()
    with pytest.raises(UsageError, match="commands of 'a' have changed since the report"):
        usable_ids(path, [make_task("a", image="another")])
    with pytest.raises(UsageError, match="commands of 'a', 'b' have changed"):
        usable_ids(path, [make_task("a", patch="x"), make_task("b", patch="x")])


def test_tasks_without_cheats_are_rejected(tmp_path: Path) -> None:
    report = ReportFile(path := tmp_path / "report.jsonl")
    nothing = (*tried("gold", resolved=True), *tried("empty", "unrelated"))
    report.append(verdict_on(A, checks=nothing))
    report.append(verdict_on(B, checks=(*nothing, *tried("tests-deleted", resolved=None))))
    assert usable_ids(path, [B]) == {"b"}
    with pytest.raises(UsageError, match=r"no cheat was tried on 'a', so .* without `--cheats none`"):
        usable_ids(path, [A, B])


def test_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = ReportFile(path := tmp_path / "report.jsonl")
    report.append(verdict_on(A))
    with monkeypatch.context() as broken:
        broken.setattr("os.fsync", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(OSError, match="No space left"):
            report.append(verdict_on(B))
    report.append(verdict_on(C))
    assert [task.task_id for task in VerifyReport.read(path).tasks] == ["a", "c"]


def test_weaker_verification_does_not_clear_a_task(tmp_path: Path) -> None:
    for before, later, counts in (
        ({"checks": tried("gold", "conftest")}, {"checks": tried("gold")}, "cheatable"),
        ({"checks": tried("gold", "conftest")}, {"checks": tried("gold", "conftest")}, "usable"),
        ({"repeat": 5}, {"repeat": 1}, "cheatable"),
        ({"repeat": 5}, {"repeat": 5}, "usable"),
        ({"repeat": 5}, {"repeat": 1, "digest": "another row"}, "usable"),
        ({"repeat": 5}, {"repeat": 1, "image_id": "another image"}, "usable"),
    ):
        (tmp_path / "report.jsonl").unlink(missing_ok=True)
        report = ReportFile(tmp_path / "report.jsonl")
        report.append(verdict_on(A, "cheatable", **before))
        report.append(verdict_on(A, "usable", **later))
        (task,) = VerifyReport.read(tmp_path / "report.jsonl").tasks
        assert task.verdict == counts


def test_gold_patch_time_bounds_a_test_run(tmp_path: Path) -> None:
    """Five times the longest run, at least a minute, at most the setting."""
    took = {"quick": (0.5, 2.0), "slow": (20.0, 30.0), "hours": (900.0,), "old": (0.0,)}
    report = tmp_path / "report.jsonl"
    lines = []
    for name, seconds in took.items():
        checks = tuple(Check(name="gold", resolved=True, test_seconds=one) for one in seconds)
        checks += tried("pth", test_seconds=1000.0)
        lines.append(verdict_on(make_task(name), checks=checks).model_dump_json() + "\n")
    report.write_text("".join(lines))
    assert gold_seconds(report) == {"quick": 2.0, "slow": 30.0, "hours": 900.0}
    given = Settings(limits=Limits(grade=1800.0), run=RunOptions(verified=report))
    of = limits_of(given)
    found = {name: of(make_task(name)).grade for name in (*took, "unknown")}
    assert found == {"quick": 60.0, "slow": 150.0, "hours": 1800.0, "old": 1800.0, "unknown": 1800.0}
    assert limits_of(Settings())(make_task("quick")) == Limits()


def test_task_graded_in_another_image_than_it_was_verified_in_is_told(tmp_path: Path) -> None:
    report = ReportFile(tmp_path / "report.jsonl")
    for task, image in ((A, "sha256:1"), (B, "sha256:2"), (C, None)):
        report.append(verdict_on(task, image_id=image))
    graded = [
        make_rollout(name, grade=Grade(resolved=True, image_id="sha256:1")) for name in ("a", "b", "b", "c")
    ]
    (told,) = other_images(image_ids(tmp_path / "report.jsonl"), [*graded, make_rollout("b")])
    assert (
        "the task 'b' was verified in the image 'sha256:2' and graded in 'sha256:1': its image name" in told
    )
