"""Settings to a plan of a run whose rollouts clients start."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.errors import ConfigError
from swe_core.rollout.run_directory import RUN_FILE, RunDirectory
from swe_core.run.components import PluginSet, load_plugins
from swe_core.run.plan import Plan, plan_run
from swe_core.run.resume import check_same
from swe_core.run.settings import load_settings
from swe_core.system.redaction import RedactingFormatter, Redactor

logger = logging.getLogger(__name__)

PLUGIN = "openenv"
_HERE = "local"
"""The executor of this process."""
_ADJUSTABLE = tuple(
    f"worker.openenv.{name}" for name in ("host", "port", "sessions", "session_timeout", "key_env")
)


def load_plan(
    config: Path | None,
    sets: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[Plan, PluginSet]:
    """Return the plan of a run of this plugin's worker, and its plugins.

    Args:
        config: TOML file with settings.
        sets: `SECTION.KEY=VALUE` above the file.
        options: Section → setting → value, above all.

    Raises:
        UsageError: A setting, a plugin or a task is wrong, or the run has black-box mode.
    """
    settings = load_settings(config, sets, options)
    run = settings.run
    if run.worker not in (None, PLUGIN):
        raise ConfigError(f"run.worker is {run.worker!r}, but clients start these rollouts: leave it out")
    if run.attempts != 1:
        raise ConfigError(f"run.attempts is {run.attempts}, but clients start each episode: leave it out")
    run = run.model_copy(update={"worker": PLUGIN})
    if run.executor not in (None, _HERE):
        raise ConfigError(
            f"run.executor is {run.executor!r}, but clients of an environment server work in sandboxes of "
            "its own process: leave it out"
        )
    if run.mode == "black-box":
        raise ConfigError("an environment server answers the agent's LLM calls itself: leave out run.mode")
    if run.plugins is not None and PLUGIN not in run.plugins:
        run = run.model_copy(update={"plugins": (*run.plugins, PLUGIN)})
    settings = settings.model_copy(update={"run": run})
    plugins = load_plugins(settings.run)
    return plan_run(settings, plugins), plugins


def begun(plan: Plan, out: Path) -> bool:
    """Return whether `out` holds a run of the same settings, which can be resumed.

    Raises:
        UsageError: It holds another run, or no run.
    """
    if not (out / RUN_FILE).exists():
        return False
    check_same(RunDirectory.open(out), plan, _ADJUSTABLE)
    return True


class LogObserver:
    """Logs the start and the end of each rollout."""

    def started(self, request: RolloutRequest) -> None:
        """Log the task."""
        logger.info("%s: starts on %s", request.id, request.task.instance_id)

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Log it where all is logged."""
        logger.debug("%s: %s", rollout_id, phase)

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Log nothing."""

    def finished(self, rollout: Rollout) -> None:
        """Log the outcome."""
        why = f": {rollout.failure.message}" if rollout.failure else ""
        logger.info("%s: %s after %.1f s%s", rollout.id, rollout.outcome, rollout.seconds, why)


def observe(requests: Sequence[RolloutRequest], notes: Sequence[str]) -> LogObserver:
    """Log the notes for the user, and return the observer."""
    for note in notes:
        logger.warning("%s", note)
    return LogObserver()


def log_to_stderr(plugins: PluginSet, redactor: Redactor) -> None:
    """Log the core and the plugins to stderr without secrets, and only warnings of libraries."""
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter(redactor, "%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    for module in plugins.manager.get_plugins():
        logging.getLogger(str(module.__name__).partition(".")[0]).setLevel(logging.INFO)
