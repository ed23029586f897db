"""`swe-core regrade`: a run of the demo, graded again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from swe_core.api.grader import Grade, Hashes
from swe_core.builtin.local import bwrap
from swe_core.cli import cli
from swe_core.errors import UsageError
from swe_core.run.regrade import compare

if (obstacle := bwrap.why_not(bwrap.find_bwrap())) is not None:
    pytest.skip(obstacle, allow_module_level=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("regrade") / "run"
    options = ["--agent", "oracle", "--tasks", "demo", "--limit", "1", "--out", str(path)]
    done = CliRunner().invoke(cli, ["run", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return path


def regrade(*args: str) -> Result:
    return CliRunner().invoke(cli, ["regrade", *args], catch_exceptions=False)


def files(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file()}


def test_regrade_repeats_the_verdict_and_writes_nothing(finished: Path) -> None:
    before = files(finished)
    done = regrade(str(finished))
    assert done.exit_code == 0, done.output
    assert "1 of 1 graded the same" in done.output
    assert files(finished) == before


def test_regrade_of_another_patch_differs(finished: Path, tmp_path: Path) -> None:
    first = json.loads((finished / "rollouts.jsonl").read_text().splitlines()[0])["id"]
    patch = finished / "rollouts" / first / "patch.diff"
    kept = patch.read_bytes()
    try:
        patch.write_bytes(b"")
        done = regrade(str(finished), first, "--json")
    finally:
        patch.write_bytes(kept)
    assert done.exit_code == 1
    (found,) = json.loads(done.stdout)
    assert found["cause"] == "the kept patch has changed"
    assert {"what": "resolved", "before": "True", "now": "False"} in found["differences"]


def test_regrade_reports_each_difference() -> None:
    grade = Grade(resolved=True, fail_to_pass={"t": "PASSED"}, hashes=Hashes(task="1", patch="2", tree="3"))
    changes: list[tuple[int, dict[str, Any]]] = [
        (0, {"test_seconds": 3.0}), (1, {"resolved": False}), (1, {"image_id": "sha256:1"}),
        (1, {"fail_to_pass": {"t": "FAILED"}}), (1, {"channel": "log"}),
        (1, {"hashes": Hashes(task="1", patch="2", tree="4")}),
    ]  # fmt: skip
    for number, change in changes:
        assert len(list(compare(grade, grade.model_copy(update=change)))) == number


def test_regrade_needs_grades_and_patches(finished: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(finished, copy)
    (patch, *_) = (copy / "rollouts").glob("*/patch.diff")
    patch.unlink()
    done = CliRunner().invoke(cli, ["regrade", str(copy), patch.parent.name])
    assert done.exit_code == 1
    assert "bytes is no longer in the run directory" in " ".join(done.output.split())
    done = CliRunner().invoke(cli, ["regrade", str(copy), "nobody"])
    assert "has no graded rollout 'nobody'" in str(done.exception)
    (copy / "rollouts.jsonl").write_text("")
    with pytest.raises(UsageError, match="has no graded rollout: there is nothing to compare"):
        regrade(str(copy))
