"""The finished rollouts of runs, one at a time: a run of any size is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from swe_core.api.agent import AgentEvent
from swe_core.api.records import Outcome, Rollout, Turn
from swe_core.errors import UsageError
from swe_core.hub.pushed_run import Pushed, PushedRun, public_name
from swe_core.rollout.run_directory import ROLLOUTS_FILE, RunDirectory
from swe_core.rollout.training_records import read_groups
from swe_core.system.files import open_below
from swe_core.system.redaction import MARK, Redactor

_LONGEST_NAME = 255
"""Bytes of a file's name."""
_MOST_TOKENS = 2**40
"""Tokens of a rollout. Sums of more rollouts than there are still fit into 64 bits."""


@dataclass(frozen=True, slots=True)
class Head:
    """What is kept of a finished rollout while others are read.

    Args:
        owned: Whether the engine owned its tokens.
        offset: Where its line begins in `rollouts.jsonl`, bytes.
    """

    id: str
    task_id: str
    outcome: Outcome
    final: bool
    owned: bool
    started_at: str
    seconds: float
    offset: int


@dataclass(slots=True, eq=False)
class ExportedRun:
    """A run and those of its rollouts that are exported.

    Args:
        facts: The public description of the run. Without its rollouts until all were read.
        heads: The chosen rollouts, in the order in which they finished.
        tasks: Tasks of its finished rollouts, chosen or not.
        finished: Finished rollouts of the run, chosen or not.
        interrupted: Rollouts that run again when the run is resumed; never chosen.
        advantages: Rollout → its advantage in its group, for a training.
        damaged: Ids of rollouts that turned out to be unreadable.
        models, agents, sandboxes: Public names in the rollouts read so far, in order.
    """

    directory: RunDirectory
    facts: PushedRun
    heads: list[Head]
    tasks: frozenset[str]
    finished: int
    interrupted: int
    advantages: Mapping[str, float | None]
    damaged: set[str] = field(default_factory=set)
    models: dict[str, None] = field(default_factory=dict)
    agents: dict[str, None] = field(default_factory=dict)
    sandboxes: dict[str, None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the unique name of the run, the same as on the Hub."""
        return self.facts.run

    @property
    def path(self) -> Path:
        """Return the run directory."""
        return self.directory.path

    def description(self) -> PushedRun:
        """Return the public description of the run with its exported rollouts. Call it after the last."""
        return self.facts.model_copy(
            update={
                "rollouts": {
                    head.id: Pushed.model_validate(  # reads each form of a time that a record may have
                        {"task_id": head.task_id, "outcome": head.outcome, "started_at": head.started_at}
                    )
                    for head in self.heads
                    if head.id not in self.damaged
                },
                "models": tuple(self.models),
                "agents": tuple(self.agents),
                "sandboxes": tuple(self.sandboxes),
            }
        )


class ExportedRollout:
    """One finished rollout, without secrets and with public names. Its files are read when asked for.

    Attributes:
        record: The record.
    """

    def __init__(self, run: ExportedRun, record: Rollout, redactor: Redactor) -> None:
        self.run = run
        self.record = record
        self._redactor = redactor

    @property
    def id(self) -> str:
        """Return the rollout's id, unique in its run."""
        return self.record.id

    @property
    def group(self) -> str:
        """Return the name of its group in the run: the attempts whose rewards are compared.

        An evaluation has a group for each task. A training has many: `<task>-g<number>`.
        """
        task, number = self.record.task_id, self.id.removeprefix(f"{self.record.task_id}-g")
        digits = number.partition("-")[0]
        return f"{task}-g{digits}" if number != self.id and digits.isdecimal() else task

    @property
    def advantage(self) -> float | None:
        """Return its advantage in its group; None where a training has not computed one."""
        return self.run.advantages.get(self.id)

    @cached_property
    def turns(self) -> Sequence[Turn]:
        """Return its LLM calls.

        Raises:
            UsageError: A file is damaged.
        """
        return [self._redacted(turn) for turn in self.run.directory.turns(self.id)]

    @cached_property
    def told_secret(self) -> bool:
        """Return whether a text of its calls contained a secret. Ids cannot be redacted, so they spell it."""
        mark = MARK.encode()
        return any(
            mark in orjson.dumps([turn.messages, turn.params, turn.reply, turn.error]) for turn in self.turns
        )

    @cached_property
    def events(self) -> Sequence[AgentEvent]:
        """Return its transcript.

        Raises:
            UsageError: The file is damaged.
        """
        return [
            event.model_copy(update={"text": self._redactor.text(event.text)})
            for event in self.run.directory.events(self.id)
        ]

    @cached_property
    def patch(self) -> str | None:
        """Return its patch; bytes that are not UTF-8 are replaced."""
        patch = self.run.directory.patch(self.id)
        return None if patch is None else self._redactor.text(patch.decode(errors="replace"))

    @cached_property
    def test_log(self) -> str | None:
        """Return the output of its test run; None without one."""
        log = self.run.directory.test_log(self.id)
        return None if log is None else self._redactor.text(log.decode(errors="replace"))

    def require_safe(self) -> None:
        """Check what could damage the whole export in any format: a run may be a download.

        Raises:
            UsageError: An id leads out of a folder or is no file's name, or a count is beyond all bounds.
        """
        for what, name in (("its id", self.id), ("the id of its task", self.record.task_id)):
            if name in ("", ".", "..") or set(name) & set("/\\\0") or len(name.encode()) > _LONGEST_NAME:
                raise UsageError(f"{what} cannot be the name of a file")
        usage = self.record.usage
        if max(usage.prompt_tokens, usage.completion_tokens) > _MOST_TOKENS:
            raise UsageError("its record has more tokens than there can be")

    def _redacted(self, turn: Turn) -> Turn:
        texts = ("messages", "params", "reply", "error")
        return turn.model_copy(update={name: self._redactor.value(getattr(turn, name)) for name in texts})


def open_run(
    path: Path, outcomes: Collection[Outcome] | None = None, tasks: Collection[str] = ()
) -> ExportedRun:
    """Open a run and choose its rollouts. It may still be running: what has finished by now counts.

    Args:
        outcomes: Outcomes of the chosen rollouts; None takes all.
        tasks: Ids of their tasks; none takes all.

    Raises:
        UsageError: It is no run directory, or a line of its rollouts is damaged.
    """
    directory = RunDirectory.open(path)
    last = {head.id: head for head in _heads(path / ROLLOUTS_FILE)}
    final = [head for head in last.values() if head.final]
    chosen = [
        head
        for head in final
        if (outcomes is None or head.outcome in outcomes) and (not tasks or head.task_id in tasks)
    ]
    advantages = {one.rollout_id: one.advantage for group in read_groups(path) for one in group.members}
    return ExportedRun(
        directory,
        PushedRun.of(directory),
        chosen,
        frozenset(head.task_id for head in final),
        len(final),
        len(last) - len(final),
        advantages,
    )


def rollouts(runs: Iterable[ExportedRun], redactor: Redactor) -> Iterator[ExportedRollout]:
    """Yield the chosen rollouts, run after run.

    Args:
        redactor: Removes secrets in addition to those that the run has redacted.

    Raises:
        UsageError: A file has changed since `open_run`.
    """
    for run in runs:
        if not run.heads:
            continue
        path = run.path / ROLLOUTS_FILE
        try:
            with open_below(path, run.path) as file:
                for head in run.heads:
                    record = _record(file, head, redactor)
                    record = record.model_copy(update={"model": public_name(record.model)})
                    run.models[record.model] = run.agents[record.agent] = run.sandboxes[record.sandbox] = None
                    yield ExportedRollout(run, record, redactor)
        except OSError as error:
            raise UsageError(f"cannot read {str(path)!r}: {error.strerror or error}") from None


def _record(file: BinaryIO, head: Head, redactor: Redactor) -> Rollout:
    file.seek(head.offset)
    try:
        return Rollout.model_validate_json(redactor.text(file.readline().decode()))
    except ValueError:  # no UTF-8, or no record
        raise UsageError(
            f"the record of {head.id!r} in {file.name!r} cannot be read: it is damaged, or the run was "
            "resumed meanwhile; repeat the export"
        ) from None


def _heads(path: Path) -> Iterator[Head]:
    """Yield the head of each line; an incomplete last one is left out."""
    try:
        file = open_below(path, path.parent)
    except FileNotFoundError:
        return
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    with file:
        offset = 0
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _head(orjson.loads(line), offset)
            except (orjson.JSONDecodeError, TypeError, KeyError, AttributeError):
                raise UsageError(f"line {number} of {str(path)!r} is not a finished rollout") from None
            offset += len(line)


def _head(raw: Any, offset: int) -> Head:
    outcome = raw["outcome"]
    return Head(
        raw["id"],
        raw["task_id"],
        outcome,
        outcome != "cancelled" or raw.get("cancelled_as") is not None,
        raw.get("ledger") is not None,
        raw["started_at"],
        raw["seconds"],
        offset,
    )
