"""Files of a run directory for its reader: token strings, trained rows, closed groups, evaluations.

docs/internals/run-directory.md documents the format.
"""

from __future__ import annotations

import gzip
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import orjson
from pydantic import Field, ValidationError

from swe_core.api.engine import ForkCause, TokenTable
from swe_core.api.records import Record
from swe_core.system.files import write_whole

VOCABULARY_FILE = "vocab.json.gz"
TRAINED_FILE = "trained.jsonl"
GROUPS_FILE = "groups.jsonl"
EVALUATIONS_FILE = "evaluations.jsonl"
JOURNAL_FILE = "train.sqlite"
SUMMARY_FILE = "training.json"
EARLIER_FILE = "earlier.jsonl"
"""Names in the run directory. The last has the finished rollouts of before a restore."""

_HEAD = re.compile(rb'\{"step":(\d+),"version":(\d+),"rollout_id":("(?:[^"\\]|\\.)*"),')
"""The beginning of a line of `trained.jsonl`."""

R = TypeVar("R", bound=Record)


class Vocabulary(Record):
    """`vocab.json.gz`: the bytes of each token id, written once per run by an engine that owns its tokens."""

    tokenizer: str = Field(description="name or path of the tokenizer")
    tokens: list[str | None] = Field(
        description="by id: the token's bytes, each as the character of its number (latin-1); null for none"
    )
    special: dict[int, str] = Field(
        description="id → name of each token that a text contains as a whole, such as `<|im_end|>`"
    )


class TrainedRow(Record):
    """A line of `trained.jsonl`: what the trainer computed for one row of a rollout in one step.

    The loss of a step is the sum over its rows of `weight` times the sum of the loss of each trained id,
    divided by the number of trained ids in the step. By default, the loss of an id is `-min(r A, clip(r) A)`
    with the `advantage` A and the ratio r of the trainer's probability to the sampler's. With `weight` 1 on
    all rows the loss is the mean over ids, as TRL computes it for a step of one micro-batch.
    """

    step: int = Field(ge=1, description="optimizer step that trained the row, from 1")
    version: int = Field(ge=0, description="newest policy version at the start of the step")
    rollout_id: str
    row: int = Field(ge=0, description="index of the row among `RunDirectory.chains` of its rollout")
    cause: ForkCause | None = Field(default=None, description="why the row began; null if not known")
    advantage: float = Field(description="advantage of its rollout in its group")
    weight: float = Field(description="weight of each trained id in the step; 1 is the mean over ids")
    tokens: int = Field(ge=0, description="trained ids of the row")
    logprobs: list[float | None] | None = Field(
        description="the trainer's natural log-probability of each trained id, in order; null if not known"
    )
    clipped: int | None = Field(description="trained ids whose ratio the loss clipped; null if not known")


class GroupMember(Record):
    """One attempt of a closed group."""

    rollout_id: str
    reward: float | None = Field(description="as compared: 0 for what `worker.trl.overlong` = zero zeroes")
    advantage: float | None = Field(description="null if the group is skipped or `left_out` is set")
    left_out: str | None = Field(
        default=None,
        description="why it does not count: `no_reward`, `overlong`, or `stale` for an old policy; null if "
        "it counts",
    )
    overlong: bool = Field(default=False, description="whether a budget or the limit of a reply cut it")


class ClosedGroup(Record):
    """A line of `groups.jsonl`: the attempts at one task whose rewards were compared."""

    group: int = Field(ge=0)
    task_id: str
    members: tuple[GroupMember, ...]
    skipped: str | None = Field(
        description="why no row of it is trained, such as `no_spread`; null if some are"
    )


class Evaluation(Record):
    """A line of `evaluations.jsonl`: attempts of the policy at held-out tasks, during a training.

    Weights may change while its attempts run: `oldest` and `newest` say which versions answered.
    """

    step: int = Field(ge=0, description="optimizer steps of the evaluated weights")
    version: int = Field(ge=0, description="policy version at its start")
    oldest: int | None = Field(description="oldest policy version that sampled an id; null without ids")
    newest: int | None = Field(description="newest policy version, likewise")
    rollouts: int = Field(ge=0, description="finished attempts")
    verdicts: int = Field(ge=0, description="attempts with a verdict")
    resolved: int = Field(ge=0, description="resolved attempts")
    errors: int = Field(ge=0, description="attempts that ended in an error")
    reward: float | None = Field(description="mean over attempts with a verdict; null without any")
    finished_at: datetime

    @property
    def resolved_rate(self) -> float | None:
        """Return the share of resolved attempts among those with a verdict; None without any."""
        return self.resolved / self.verdicts if self.verdicts else None


def write_vocabulary(run: Path, table: TokenTable) -> None:
    """Write `vocab.json.gz` into a run directory: all of it, or nothing.

    Raises:
        OSError: It cannot be written.
    """
    tokens = [None if token is None else token.decode("latin-1") for token in table.tokens]
    found = Vocabulary(tokenizer=table.tokenizer, tokens=tokens, special=dict(table.special))
    data = gzip.compress(orjson.dumps(found.model_dump(mode="json")), compresslevel=6, mtime=0)
    write_whole(run / VOCABULARY_FILE, data)


def read_vocabulary(run: Path) -> Vocabulary | None:
    """Return the `vocab.json.gz` of a run directory; None if it is missing or damaged."""
    try:
        return Vocabulary.model_validate_json(gzip.decompress((run / VOCABULARY_FILE).read_bytes()))
    except (OSError, EOFError, zlib.error, ValidationError):
        return None


def append_lines(file: Path, lines: Iterable[bytes]) -> None:
    """Append whole lines, given without their ends, to a file. After a torn line they begin a new one.

    Raises:
        OSError: They cannot be written; the file is as before.
    """
    data = b"".join(line + b"\n" for line in lines)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        before = os.fstat(descriptor).st_size
        if before and os.pread(descriptor, 1, before - 1) != b"\n":  # its process was killed
            data = b"\n" + data
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        except OSError:  # a full disk
            os.ftruncate(descriptor, before)
            raise
    finally:
        os.close(descriptor)


def read_trained(run: Path, rollout_id: str | None = None) -> list[TrainedRow]:
    """Return the rows of `trained.jsonl`, in the order of their training.

    A step that the file has again, under another policy version, is that of a resumed training: earlier rows
    of that step and of later ones are left out, because their weights are lost. So are damaged lines, and an
    incomplete last one.

    Args:
        rollout_id: The rollout whose rows are returned; None for all. The lines of others are not parsed.
    """
    wanted = None if rollout_id is None else orjson.dumps(rollout_id)
    kept: list[TrainedRow] = []
    step = version = -1
    for line in _lines(run / TRAINED_FILE):
        head = _HEAD.match(line)
        row = None
        if wanted is None or head is None or head[3] == wanted:
            row = _parsed(line, TrainedRow)
            if row is None:
                continue
            at = row.step, row.version
        else:
            at = int(head[1]), int(head[2])
        if at != (step, version) and at[0] <= step:
            kept = [one for one in kept if one.step < at[0]]
        step, version = at
        if row is not None and rollout_id in (None, row.rollout_id):
            kept.append(row)
    return kept


def read_groups(run: Path) -> list[ClosedGroup]:
    """Return the groups of `groups.jsonl`, in the order of closing.

    Of a group that was closed twice, around a kill, the last line counts. Damaged lines are left out.
    """
    found: dict[int, ClosedGroup] = {}
    for line in _lines(run / GROUPS_FILE):
        group = _parsed(line, ClosedGroup)
        if group is not None:
            found.pop(group.group, None)
            found[group.group] = group
    return list(found.values())


def read_evaluations(run: Path) -> list[Evaluation]:
    """Return the finished evaluations of `evaluations.jsonl`, by their steps.

    An evaluation of weights that a resume has lost is left out once a later line evaluates that step, or an
    earlier one, again: that line has a higher policy version. Damaged lines are left out.
    """
    found: list[Evaluation] = []
    for line in _lines(run / EVALUATIONS_FILE):
        new = _parsed(line, Evaluation)
        if new is not None:
            found = [one for one in found if one.step < new.step or one.version > new.version]
            found.append(new)
    return sorted(found, key=lambda one: one.step)


def _lines(file: Path) -> Iterator[bytes]:
    """Yield the complete lines of a file; none if it cannot be read."""
    try:
        with file.open("rb", buffering=1 << 20) as lines:  # a line may have as many bytes
            for line in lines:
                if line.endswith(b"\n"):
                    yield line
    except OSError:
        return


def _parsed(line: bytes, model: type[R]) -> R | None:
    try:
        return model.model_validate_json(line)
    except ValidationError:
        return None
