"""Real packages' bugs, from their releases on PyPI, verified and run in both sandboxes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SweCore
from .sdist_tasks import NoIndex, make_tasks

pytestmark = pytest.mark.slow

PROGRAM = str(Path(sys.executable).parent / "swe-core")
CHEATS = "conftest-root,reports-patched,history-at-work,history-at-test"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return make_tasks(tmp_path_factory.mktemp("sdist"))
    except NoIndex as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("local_sandbox")
def test_tasks_of_releases_are_verified_and_run(rows: Path, swe_core: SweCore, tmp_path: Path) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    report = tmp_path / "report.jsonl"
    chosen = ["--tasks", str(rows), "--sandbox", "local"]
    done = subprocess.run(
        [PROGRAM, "tasks", "verify", *chosen, "--cheats", CHEATS, "--repeat", "2", "--out", str(report)],
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert {line["verdict"]: line["reason"] for line in lines} == {"usable": ""}, done.stdout + done.stderr
    assert done.returncode == 0
    assert len(lines) == 2
    for line in lines:
        checks = {check["name"]: check for check in line["checks"]}
        assert checks["history-at-work"]["patch_bytes"] == 0  # nothing was there to be taken
        assert checks["history-at-test"]["patch_bytes"] > 0
    chosen += ["--verified", str(report)]
    gold = swe_core(*chosen, "--agent", "oracle", env=own)
    assert [rollout["reward"] for rollout in gold.rollouts] == [1.0, 1.0], gold.stdout
    nothing = swe_core(*chosen, "--agent", "nop", env=own)
    assert [rollout["reward"] for rollout in nothing.rollouts] == [0.0, 0.0], nothing.stdout


def test_fix_is_in_the_history_that_the_sandboxes_are_given(rows: Path) -> None:
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        git = ["git", "-C", row["repository"]]
        later = subprocess.run([*git, "rev-list", "--all", "--not", "HEAD"], capture_output=True, text=True)
        assert len(later.stdout.split()) == 1
        assert row["FAIL_TO_PASS"]
        assert len(row["PASS_TO_PASS"]) > 20
