"""ATIF trajectories in the folders that Harbor's viewer opens: a job per run, a trial per rollout.

<run>/config.json, result.json                    the job
<run>/<rollout>/config.json, result.json          the trial: reward, error, times, tokens
                agent/trajectory.json             the conversation
                verifier/test-stdout.txt, reward.json
                artifacts/patch.diff
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import orjson

from swe_core.api.records import Phases, Rollout
from swe_core.errors import UsageError
from swe_core.export.atif import trajectory_of
from swe_core.export.results import Results
from swe_core.export.source import ExportedRollout, ExportedRun
from swe_core.export.writer import Reason, Writer

NOTHING_SAID = Reason("rollout", "in which nothing was said")
_JOB_FILES = ("config.json", "result.json")
_PHASES = {
    "open": "environment_setup",
    "prepare": "agent_setup",
    "agent": "agent_execution",
    "grade": "verifier",
}
"""Our phase → Harbor's."""


class HarborWriter(Writer):
    """Writes the folders of jobs and trials."""

    def __init__(self, folder: Path, runs: Sequence[ExportedRun]) -> None:
        super().__init__(folder, runs)
        self._job: _Job | None = None

    def add(self, rollout: ExportedRollout) -> int:
        trajectory = trajectory_of(rollout)
        test_log, patch = rollout.test_log, rollout.patch
        if self._job is None or self._job.run is not rollout.run:
            self._close_job()
            self._job = _Job(self.folder / rollout.run.name, rollout.run)
        told = (
            None if trajectory is None else _dumped(trajectory.to_json_dict())
        )  # fails before a file is there
        trial = self._job.add(rollout.record)
        if told is not None:
            _put(trial / "agent" / "trajectory.json", told)
        else:
            self.left_out[NOTHING_SAID] += 1
        for path, text in (("verifier/test-stdout.txt", test_log), ("artifacts/patch.diff", patch)):
            if text is not None:
                _put(trial / path, text.encode())
        return int(told is not None)

    def close(self) -> None:
        self._close_job()

    def abort(self) -> None:
        """No file is open."""

    def _close_job(self) -> None:
        if self._job is not None:
            self._job.close()


class _Job:
    def __init__(self, folder: Path, run: ExportedRun) -> None:
        self.run = run
        self._folder = folder
        self._id = str(uuid5(NAMESPACE_URL, run.name))
        self._counts = Counter[str]()
        self._results: defaultdict[tuple[str, str], Results] = defaultdict(Results)
        """By agent and model."""
        self._sandboxes: dict[str, None] = {}
        self._last = run.facts.created_at

    def add(self, record: Rollout) -> Path:
        """Write the files of a trial but its trajectory, and return its folder."""
        if record.id in _JOB_FILES:
            raise UsageError("its id is the name of a file of the job")
        folder = self._folder / record.id
        ended = record.started_at + timedelta(seconds=record.seconds)
        last = max(self._last, ended)
        config = {
            "task": {"path": record.task_id, "source": self.run.facts.tasks or None},
            "trial_name": record.id,
            "trials_dir": ".",
            "agent": {"name": record.agent, "model_name": record.model},
            "environment": {"import_path": record.sandbox},
            "job_id": self._id,
        }
        rewards = {} if record.reward is None else {"reward": record.reward}
        result = {
            "id": str(uuid5(NAMESPACE_URL, f"{self.run.name}/{record.id}")),
            "task_name": record.task_id,
            "trial_name": record.id,
            "trial_uri": record.id,
            "task_id": {"path": record.task_id},
            "source": self.run.facts.tasks or None,
            "task_checksum": self.run.directory.info.tasks.get(record.task_id, ""),
            "config": config,
            "agent_info": {
                "name": record.agent,
                "version": "unknown",
                "model_info": {"name": record.model},
            },
            "agent_result": {
                "n_input_tokens": record.usage.prompt_tokens,
                "n_output_tokens": record.usage.completion_tokens,
                "metadata": {
                    "outcome": record.outcome,
                    "turns": record.turns,
                    "ended_by": record.ended_by,
                },
            },
            "verifier_result": {"rewards": rewards} if rewards else None,
            "exception_info": _exception(record, ended),
            "started_at": record.started_at.isoformat(),
            "finished_at": ended.isoformat(),
            **_times(record.started_at, record.phases),
        }
        files = {"config.json": _dumped(config), "result.json": _dumped(result)}
        if rewards:
            files["verifier/reward.json"] = _dumped(rewards)
        for path, data in files.items():
            _put(folder / path, data)
        self._last = last
        self._results[record.agent, record.model].add(record)
        self._sandboxes[record.sandbox] = None
        self._counts["n_completed_trials"] += 1
        self._counts["n_errored_trials"] += record.outcome == "error"
        self._counts["n_cancelled_trials"] += record.outcome == "cancelled"
        self._counts["n_input_tokens"] += record.usage.prompt_tokens
        self._counts["n_output_tokens"] += record.usage.completion_tokens
        return folder

    def close(self) -> None:
        """Write the files of the job."""
        started = self.run.facts.created_at.isoformat()
        _write(
            self._folder / _JOB_FILES[0],
            {
                "job_name": self.run.name,
                "jobs_dir": ".",
                "agents": [{"name": agent, "model_name": model} for agent, model in self._results],
                "environment": {"import_path": ", ".join(self._sandboxes)},
            },
        )
        _write(
            self._folder / _JOB_FILES[1],
            {
                "id": self._id,
                "started_at": started,
                "finished_at": self._last.isoformat(),
                "n_total_trials": self._counts["n_completed_trials"],
                "stats": {**self._counts, "evals": self._evals()},
            },
        )

    def _evals(self) -> dict[str, Any]:
        """Return the results of each agent and model, under the name that Harbor gives them."""
        source = self.run.facts.tasks or "adhoc"
        return {
            f"{agent}__{model}__{source}": {
                "n_trials": results.verdicts,
                "n_errors": results.errors,
                "metrics": [] if results.rate is None else [{"mean": results.rate}],
                "pass_at_k": {str(one.k): one.value for one in results.passes()},
            }
            for (agent, model), results in self._results.items()
        }


def _exception(record: Rollout, ended: datetime) -> dict[str, Any] | None:
    if record.failure is not None:
        kind, message = record.failure.type, f"{record.failure.boundary}: {record.failure.message}"
    elif record.outcome == "cancelled":
        kind, message = "CancelledError", f"cancelled: {record.cancelled_as}"
    else:
        return None
    return {
        "exception_type": kind,
        "exception_message": message,
        "exception_traceback": "",
        "occurred_at": ended.isoformat(),
    }


def _times(started: datetime, phases: Phases) -> dict[str, dict[str, str]]:
    """Return start and end of each phase that was reached. They follow each other."""
    found, at = {}, started
    for name in Phases.model_fields:
        seconds = getattr(phases, name)
        if seconds is None:
            continue
        end = at + timedelta(seconds=seconds)
        if name in _PHASES:
            found[_PHASES[name]] = {"started_at": at.isoformat(), "finished_at": end.isoformat()}
        at = end
    return found


def _write(path: Path, value: Any) -> None:
    _put(path, _dumped(value))


def _dumped(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2)


def _put(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
