"""What our worker costs a training with TRL: beside TRL's own worker, and in the trainer's process.

    python benchmarks/training_worker.py [--runs N] [--share F] [--no-peers]

Feeding. Both workers feed the same consumer, which takes rows as TRL's trainer does, from the same engine
that has its answers ready, with the same prompts of 2 KB, groups of 8, 32 rollouts at once and one turn in
each. Counted per delivered group: the processor time of the worker's processes and of the consumer's, which
is the trainer's share, and wall time. Each run is a process of its own, in turns.

    swe-core    the whole way of a rollout: its own token, the agent's call through the interception server,
                turns and verdict on disk, the journal. Agent, sandbox and grader are a plugin that costs next
                to nothing.
    TRL         `AsyncRolloutWorker` renders the prompt, asks the engine and scores; nothing is recorded

Steps. TRL's trainer trains the same rows of a tiny model on the CPU, one thread, with its weights sent to
nobody: alone, with all rows in its queue; and with our worker, beside a process in which 32 agents ask once a
second each. Counted is the processor time of the trainer's process per step.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from _common import Report, Target, give_up, median, ratio, shown
from _proxies import HERE, process
from _workload import MAX_MODEL_LEN, MODEL, Texts
from rich.table import Table

from swe_core.errors import SweError

GROUP, CONCURRENCY, QUEUE_ROWS = 8, 32, 64
WARM, GROUPS = 10, 100
PROMPTS, PROMPT_BYTES, REPLIES, REPLY_CHARACTERS = 64, 2048, 50, 200
AGENTS, CALLS, PAUSE, STEPS = 32, 10, 1.0, 30
LIMIT = 1.1
SECONDS = 900.0
SIDES = {"swe_core": "swe-core", "trl": "TRL's AsyncRolloutWorker"}
PARTS = {
    "worker": "worker, processor",
    "trainer": "trainer, processor",
    "wall": "wall",
    "first": "first group",
}
Feeding = Mapping[str, Mapping[str, float | None]]
"""Side → part → seconds."""
Steps = Mapping[str, Sequence[Sequence[float]]]
"""Side → processor time and wall time of a step, seconds, for each round."""


class Bench:
    """The engine, the model and the prompts that all measurements share.

    Args:
        config: Of a measurement's process, besides its folder.
    """

    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        self._folder = folder
        self._config = config
        self._number = 0

    def run(self, script: str, *args: str, **config: Any) -> dict[str, Any]:
        """What `script` prints last.

        Raises:
            SweError: It failed; the message is its last line.
        """
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        file = folder / "config.json"
        file.write_text(json.dumps({**self._config, **config, "folder": str(folder)}))
        command = [sys.executable, str(HERE / script), *args, str(file)]
        environment = {**os.environ, "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                stdin=subprocess.DEVNULL,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            raise SweError(f"{script} did not end within {SECONDS:g} s") from None
        if done.returncode != 0:
            raise SweError((done.stderr.strip().splitlines() or [f"{script} ended badly"])[-1])
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


@contextmanager
def bench() -> Iterator[Bench]:
    """Start what is shared."""
    from transformers import AutoTokenizer

    from swe_testing.serving.tiny_model import make_tiny_model

    with tempfile.TemporaryDirectory(prefix="swe-bench-") as scratch:
        folder, texts = Path(scratch), Texts()
        model = make_tiny_model(folder / "model")
        tokenizer = AutoTokenizer.from_pretrained(model)
        replies = []
        for _ in range(REPLIES):
            text = " ".join(texts.piece(REPLY_CHARACTERS).split()) + "<|im_end|>"
            ids = tokenizer.encode(text, add_special_tokens=False)
            pieces = [tokenizer.decode([id_]) for id_ in ids]
            replies.append({"content": text, "text": text, "ids": ids, "pieces": pieces})
        engine, statements = folder / "replies.json", folder / "statements.json"
        engine.write_text(
            json.dumps({"model": MODEL, "max_model_len": MAX_MODEL_LEN, "replies": {"short": replies}})
        )
        statements.write_text(json.dumps([texts.piece(PROMPT_BYTES) for _ in range(PROMPTS)]))
        command = [sys.executable, str(HERE / "_mock_engine.py"), str(engine)]
        with process(command, os.sched_getaffinity(0)) as running:
            yield Bench(
                folder,
                {
                    "upstream": f"http://127.0.0.1:{int(running.read())}",
                    "model": MODEL,
                    "model_directory": str(model),
                    "statements": str(statements),
                    "group_size": GROUP,
                    "concurrency": CONCURRENCY,
                    "queue_rows": QUEUE_ROWS,
                },
            )


def measure_feeding(shared: Bench, report: Report, sides: list[str], runs: int, share: float) -> Feeding:
    """The medians of each side's parts, seconds."""
    found: dict[str, list[dict[str, float]]] = defaultdict(list)
    groups = max(1, round(share * GROUPS))
    for _ in range(runs):
        for side in list(sides):
            try:
                found[side].append(shared.run("_training_feed.py", side, warm=WARM, groups=groups))
            except SweError as error:
                report.notes.append(f"{SIDES[side]} is skipped: {error}")
                sides.remove(side)
    lengths = {(round(one["ids"], -1), round(one["trained"], -1)) for side in found.values() for one in side}
    if len(lengths) > 1:
        report.notes.append(f"rows are not alike: ids and trained ids of a row are about {sorted(lengths)}")
    return {side: {part: median(one[part] for one in found[side]) for part in PARTS} for side in SIDES}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="default: 3")
    parser.add_argument("--share", type=float, default=1.0, help="of the groups and steps of a run")
    parser.add_argument("--no-peers", action="store_true", help="leave TRL's own worker out")
    options = parser.parse_args()
    if find_spec("trl") is None:
        give_up("TRL is not installed: `make bench` installs it")

    report = Report("training_worker", options.runs)
    sides = ["swe_core"] if options.no_peers else list(SIDES)
    with bench() as shared:
        feeding = measure_feeding(shared, report, sides, options.runs, options.share)
        try:
            steps: Steps = shared.run(
                "_training_step.py",
                rounds=options.runs,
                steps=max(1, round(options.share * STEPS)),
                agents=AGENTS,
                calls=CALLS,
                pause=PAUSE,
            )
        except SweError as error:
            report.notes.append(f"steps are skipped: {error}")
            steps = {"alone": [], "agents": []}

    _enter_feeding(report, feeding)
    _enter_steps(report, steps)
    report.show(_table(report, feeding, steps))


def _enter_feeding(report: Report, feeding: Feeding) -> None:
    for side, parts in feeding.items():
        for part, figure in parts.items():
            if part == "first":
                report.medians[f"{side}_first_group"] = figure
            else:
                report.medians[f"{side}_{part}_ms"] = _ms(figure)
    report.ratios |= {
        f"swe_core_to_trl_{part}": ratio(feeding["swe_core"][part], feeding["trl"][part]) for part in PARTS
    }


def _enter_steps(report: Report, steps: Steps) -> None:
    for side, rounds in steps.items():
        report.medians[f"step_{side}_ms"] = _ms(median(used for used, _ in rounds))
        report.medians[f"step_{side}_wall_ms"] = _ms(median(took for _, took in rounds))
    pairs = zip(steps["agents"], steps["alone"], strict=True)
    figure = report.ratios["step_agents_to_alone"] = median(beside[0] / alone[0] for beside, alone in pairs)
    what = f"a step's processor time beside {AGENTS} agents, to that of TRL's trainer alone"
    report.targets = [Target(what, figure, LIMIT, "x")]


def _table(report: Report, feeding: Feeding, steps: Steps) -> Table:
    table = Table(title=f"A delivered group of {GROUP}, and a step; medians of {report.runs} runs")
    table.add_column("")
    for title in (*SIDES.values(), "ratio"):
        table.add_column(title, justify="right")
    for part, title in PARTS.items():
        figures = [feeding[side][part] for side in SIDES]
        cells = [shown(one) if part == "first" else shown(_ms(one), "ms") for one in figures]
        table.add_row(title, *cells, shown(report.ratios[f"swe_core_to_trl_{part}"], "x"))
    table.add_section()
    for title, place in (("step, processor", 0), ("step, wall", 1)):
        beside, alone = (median(one[place] for one in steps[side]) for side in ("agents", "alone"))
        cells = [shown(_ms(beside), "ms"), shown(_ms(alone), "ms"), shown(ratio(beside, alone), "x")]
        table.add_row(f"{title}: beside {AGENTS} agents, alone", *cells)
    return table


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 3)


if __name__ == "__main__":
    main()
