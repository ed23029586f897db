"""`swe-core run` with a plugin that shapes rewards: a failing one stops the run, and a resume repairs it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from swe_core.cli import cli
from swe_core.errors import RunStopped
from swe_core.rollout.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("no_installed_plugins")

PLUGIN = """
import logging
from swe_core import hookimpl

@hookimpl
def swe_shape_reward(rollout, reward):
    return {value}

@hookimpl
def swe_rollout_finished(rollout):
    logging.getLogger(__name__).warning("finished with %s", rollout.reward)
"""


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["run", *args])


@pytest.mark.slow
def test_failing_plugin_loses_no_verdict_and_a_resume_runs_nothing_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plugin, out = tmp_path / "lengths.py", tmp_path / "out"
    plugin.write_text(PLUGIN.format(value="float('nan')"))
    options = ["--agent", "oracle", "--task", "demo__memofn-1", "--set", "sandbox.local.unisolated=true"]
    done = run("-p", str(plugin), *options, "--out", str(out))
    assert isinstance(done.exception, RunStopped)
    assert str(done.exception) == (
        "the plugin 'lengths' returned nan from swe_shape_reward() at 'demo__memofn-1-0', "
        "expected a number from -1e6 to 1e6: return the reward, changed or not; the run was stopped, and "
        "the verdict of this rollout is kept: correct the plugin and continue with "
        f"`swe-core run --resume {out}`"
    )
    assert "0 of 1 finished" in done.stdout
    again = run("--resume", str(out))
    assert isinstance(again.exception, RunStopped)
    assert "returned nan" in str(again.exception)
    assert "finished with" not in caplog.text

    plugin.write_text(PLUGIN.format(value="reward - rollout.patch_bytes / 10_000"))
    patch = (out / "rollouts" / "demo__memofn-1-0" / "patch.diff").stat()
    done = run("--resume", str(out))
    assert done.exit_code == 0, done.output
    (rollout,) = RunDirectory.open(out).rollouts()
    assert rollout.reward == 1 - rollout.patch_bytes / 10_000
    assert (rollout.outcome, rollout.unshaped_reward) == ("resolved", 1.0)
    assert f"finished with {rollout.reward}" in caplog.text
    assert (out / "rollouts" / rollout.id / "patch.diff").stat().st_mtime_ns == patch.st_mtime_ns
    assert "resolved 1 of 1" in done.stdout
    assert "Note: Plugins shape the rewards: 'lengths'. Outcomes are the grader's." in done.output
