"""The data set's card: a README that says what its rows are and where they come from.

Each push rewrites the text between the two marks. The rest belongs to the owner, who states the licence
there. A README without the marks stays as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

from swe_core.hub.pushed_run import SHARDS, Pushed, PushedRun
from swe_core.system.plural import counted
from swe_core.system.printable import printable

README = "README.md"
BEGIN = "<!-- swe-core: begin; what stands here is written anew with each push -->"
END = "<!-- swe-core: end -->"

_HEAD = """---
pretty_name: Rollouts of coding agents
tags:
- agent-rollouts
- software-engineering
- swe-core
configs:
- config_name: default
  data_files:
  - split: train
    path: {shards}/*.parquet
---

"""
LICENCE = """

## Licence

None is stated. Whoever owns this data set says under which licence others may use it (`license:` in the
metadata above), with regard to those of the tasks' repositories and of the model.
"""
_HELD_OUT = (
    "with `-eval<step>-` in the id are evaluations while training. The table leaves them out: their tasks "
    "are held out."
)
_MARKUP = re.compile(r"[\\|\[\]`]|!(?=\[)")
"""What ends a table's cell, or begins a link, an image, code or an escape."""


def card(repo_id: str, runs: Iterable[PushedRun], existing: str | None) -> str | None:
    """Return the README; None if the existing one is the owner's own.

    Args:
        existing: The README of the repository; None without one.
    """
    text = f"{BEGIN}\n{_section(repo_id, sorted(runs, key=lambda run: run.created_at))}\n{END}"
    if existing is None:
        return _HEAD.format(shards=SHARDS) + text + LICENCE
    before, begin, rest = existing.partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + text + after if begin and end else None


def _section(repo_id: str, runs: Collection[PushedRun]) -> str:
    parts = [
        "# Rollouts of coding agents",
        *overview(runs, "Each row is one run"),
        "## Columns",
        "`messages` and `tools` are the last conversation with the model, as trainers take it; `patch` is "
        "the agent's change, `outcome` the verdict, `reward` what it earned, `fail_to_pass` and "
        "`pass_to_pass` each test's status. `chains` are the exact token ids that were sampled, with the "
        "mask and the log-probabilities to train on, where the engine owns them. `turns` has each call to "
        "the model and `record` the whole record, as JSON.",
        "```python\nfrom datasets import load_dataset\n\n"
        f'rows = load_dataset("{repo_id}", split="train")\n```',
    ]
    return "\n\n".join(parts)


def overview(runs: Collection[PushedRun], each: str = "Each is one run") -> list[str]:
    """Return the paragraphs that say what the rollouts of `runs` are: counts, a table, notes.

    Args:
        each: Begins the sentence about one rollout.
    """
    outcomes = Counter[str](outcome for run in runs for outcome in _outcomes(run))
    tasks = {one.task_id for run in runs for one in run.rollouts.values()}
    held_out = sum(_is_evaluation(name, one) for run in runs for name, one in run.rollouts.items())
    count = outcomes.total() + held_out
    rows = [
        [
            *("run", "tasks from", "model", "agent", "sandbox"),
            *("tasks", "rollouts", "resolved", "errors", "swe-core"),
        ],
        ["---"] * 5 + ["---:"] * 4 + ["---"],
        *(_line(run) for run in runs),
    ]
    notes = list(dict.fromkeys(note for run in runs for note in run.notes))
    return [
        f"{counted(count, 'rollout')} of {counted(len(tasks), 'task')}, {_resolved(outcomes)}. {each} of an "
        "unmodified coding agent on a task of a repository, in an isolated sandbox, graded by the task's own "
        "tests in a fresh one.",
        "\n".join("| " + " | ".join(row) + " |" for row in rows),
        "A rollout that ended in an error or was cancelled has no reward, and says nothing of the model.",
        *([f"{counted(held_out, 'rollout')} {_HELD_OUT}"] if held_out else []),
        *(["Notes of the runs:", "\n".join(f"- {plain(note)}" for note in notes)] if notes else []),
    ]


def _is_evaluation(rollout_id: str, rollout: Pushed) -> bool:
    """Return whether a rollout is one of an evaluation while training: `<task>-eval<step>-<attempt>`."""
    return rollout_id.startswith(f"{rollout.task_id}-eval")


def _outcomes(run: PushedRun) -> list[str]:
    return [one.outcome for name, one in run.rollouts.items() if not _is_evaluation(name, one)]


def _line(run: PushedRun) -> list[str]:
    outcomes = Counter[str](_outcomes(run))
    return [
        run.run,
        *(plain(text) for text in (run.tasks, _few(run.models), _few(run.agents), _few(run.sandboxes))),
        f"{len({one.task_id for one in run.rollouts.values()}):,}",
        f"{outcomes.total():,}",
        _resolved(outcomes),
        f"{outcomes['error']:,}",
        plain(run.versions.get("swe-core", "")),
    ]


def _resolved(outcomes: Counter[str]) -> str:
    verdicts = outcomes["resolved"] + outcomes["unresolved"]
    return (
        f"{outcomes['resolved']:,} of {verdicts:,} resolved ({outcomes['resolved'] / max(1, verdicts):.1%})"
    )


def _few(names: Collection[str]) -> str:
    listed = ", ".join(list(names)[:3])
    return f"{listed} and {len(names) - 3} more" if len(names) > 3 else listed


def plain(text: str) -> str:
    """Escape `text` so that it neither ends a table's cell nor begins markup."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(printable(text).split())).replace("<", "&lt;")
