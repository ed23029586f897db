"""The formats: what each is for, what it needs, and what its data card says."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec

from swe_core.api.records import Outcome
from swe_core.errors import UsageError
from swe_core.export.writer import Writer
from swe_core.system.plural import counted

_VERDICTS: tuple[Outcome, ...] = ("resolved", "unresolved")


@dataclass(frozen=True, slots=True)
class Format:
    """A format.

    Args:
        title: What an export is, as a title.
        unit: What one rollout becomes, in the singular.
        units: The plural, if it is not `unit` with an `s`.
        writer: Module and class that write it.
        fields: Field or file → its meaning.
        load: Code or a command that opens it. `{folder}` is the folder's name.
        language: Of `load`.
        train: The file that `datasets` loads as the split `train`.
        outcomes: Outcomes of the rollouts that are exported by default; None is all.
        needs: Modules that are not installed with swe-core.
        extra: The extra of swe-core that installs them.
        tokens: Whether it consists of token ids.
    """

    title: str
    unit: str
    writer: str
    fields: Mapping[str, str]
    load: str
    language: str = "bash"
    train: str | None = None
    outcomes: tuple[Outcome, ...] | None = None
    needs: tuple[str, ...] = ()
    extra: str = ""
    tokens: bool = False
    units: str = ""

    def count(self, number: int) -> str:
        """Return a number of units, such as `3 rows`."""
        return counted(number, self.unit, self.units)

    def open(self) -> type[Writer]:
        """Return the class of its writer.

        Raises:
            UsageError: A library is not installed.
        """
        missing = [name for name in self.needs if find_spec(name) is None]
        if missing:
            raise UsageError(
                f"this format needs the package {missing[0]!r}, which is not installed: pip install "
                f"'swe-core[{self.extra}]'"
            )
        module, _, name = self.writer.partition(":")
        writer: type[Writer] = getattr(import_module(f"swe_core.export.{module}"), name)
        return writer


_ROW = {
    "run, rollout_id, task_id, attempt": "the rollout",
    "group": "the attempts whose rewards are compared: of one task, in a training of one group",
    "row": "number of the row in its rollout, from 0; a compaction or a sub-agent starts another",
    "agent, model": "of the rollout",
    "outcome": "resolved or unresolved is the verdict",
    "reward": "what the rollout earned: 1.0 or 0.0, unless grader or plugins gave another; null without a "
    "verdict",
    "advantage": "of the rollout in its group, from the training; null where none computed it",
    "input_ids": "ids in the order in which the engine saw and sampled them",
    "completion_mask": "true for ids that the policy sampled and that a step may train",
    "old_log_probs": "natural log-probability of each such id when it was sampled; else 0",
    "versions": "policy version that sampled each such id; else -1",
    "turns": "the calls to the model that the row trains",
    "cause": "why the row does not extend another",
}
_ROWS = Format(
    title="Training rows",
    unit="row",
    writer="rows:JsonlWriter",
    fields=_ROW,
    load='from datasets import load_dataset\n\nrows = load_dataset("{folder}", split="train")',
    language="python",
    train="train.jsonl",
    outcomes=_VERDICTS,
    needs=("numpy",),
    extra="export",
    tokens=True,
)
FORMATS: Mapping[str, Format] = {
    "jsonl": _ROWS,
    "parquet": replace(_ROWS, writer="rows:ParquetWriter", train="train.parquet", needs=("numpy", "pyarrow")),
    "sft": Format(
        title="Conversations for fine-tuning",
        unit="conversation",
        writer="sft:SftWriter",
        fields={
            "messages": "one conversation, as chat templates take it; arguments of tool calls are objects",
            "tools": "the tools of its last call to the model; null without",
            "run, rollout_id, task_id, outcome": "where it is from",
        },
        load='from datasets import load_dataset\n\nconversations = load_dataset("{folder}", split="train")',
        language="python",
        train="train.jsonl",
        outcomes=("resolved",),
    ),
    "atif": Format(
        title="Trajectories (ATIF)",
        unit="trajectory",
        units="trajectories",
        writer="harbor:HarborWriter",
        fields={
            "<run>/<rollout>/agent/trajectory.json": "the last conversation as ATIF 1.8; earlier ones and "
            "those of sub-agents are its `subagent_trajectories`",
            "<run>/<rollout>/result.json": "reward, error, times and tokens, as Harbor has them",
            "<run>/<rollout>/verifier/": "the output of the tests",
            "<run>/<rollout>/artifacts/patch.diff": "the agent's change",
        },
        load="harbor view {folder}",
        needs=("atif",),
        extra="export",
    ),
}
REMOVED: Mapping[str, str] = {
    "inspect": "`harbor view` and Docent read --format atif",
    "sqlite": "DuckDB reads --format parquet, and `swe-core report --csv` lists rollouts",
}
"""Format that is gone → what reads another, as the end of a sentence."""


def format_named(name: str) -> Format:
    """Return a format.

    Raises:
        UsageError: There is none of this name.
    """
    if name in FORMATS:
        return FORMATS[name]
    if name in REMOVED:
        raise UsageError(f"the format {name!r} no longer exists: {REMOVED[name]}")
    near = difflib.get_close_matches(name, FORMATS, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(FORMATS)}"
    raise UsageError(f"there is no format {name!r}; {hint}")
