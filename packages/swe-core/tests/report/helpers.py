"""How tests run `swe-core report`."""

from __future__ import annotations

from click.testing import CliRunner, Result

from swe_core.cli.report import report
from swe_core.rollout.run_directory import RunDirectory


def reported(run: RunDirectory, *options: str) -> Result:
    return CliRunner().invoke(report, [str(run.path), *options], env={"COLUMNS": "160"})


def lines_of(run: RunDirectory, *options: str) -> list[str]:
    done = reported(run, *options)
    assert done.exit_code == 0, done.output
    return [" ".join(line.split()) for line in done.output.splitlines()]
