"""Turning the turns of a long session into training rows: ours, TRL's, and a plain comparison.

    python benchmarks/chains.py [--runs N] [--no-peers]

A session grows to 74k tokens in 100 turns, and each turn's prompt begins with all ids before it. Counted is
processor time, in one process, in turns:

    swe-core    `build_chains`: the steps as the token log keeps them, to chains and their rows
    compared    `TokenLog`: the same from an engine that gives whole prompts, so that ids must be compared
    numpy       the plain comparison: does each whole prompt, int32, begin with the ids before it? No rows.
    TRL         `_chain_to_sequences` of TRL's AsyncGRPO on lists of int as it gets them from JSON: no two
                lists share their int objects
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from importlib.metadata import version

import numpy as np
from _common import Report, Target, median, ratio, shown
from numpy.typing import NDArray
from rich.table import Table

from swe_core.api.engine import Sampled
from swe_core.tokens.chains import Step, build_chains
from swe_core.tokens.token_log import TokenLog

TURNS, TOKENS = 100, 74_000
COMPLETION = 60
VOCABULARY = 150_000
LIMIT = 5.0
SIDES = {
    "swe_core": "swe-core",
    "compared": "swe-core, ids compared",
    "numpy": "numpy comparison",
    "trl": "TRL _chain_to_sequences",
}
Ids = NDArray[np.int32]


class Session:
    """The ids of a session of `turns` turns, each as long as the others."""

    def __init__(self, turns: int) -> None:
        random = np.random.default_rng(0)
        added = TOKENS // TURNS - COMPLETION
        self.added = [random.integers(0, VOCABULARY, added, np.int32) for _ in range(turns)]
        self.completions = [random.integers(0, VOCABULARY, COMPLETION, np.int32) for _ in range(turns)]
        self.logprobs = np.full(COMPLETION, -0.5, np.float32)
        self.versions = np.zeros(COMPLETION, np.int32)

    def prompts(self) -> list[Ids]:
        """The whole prompt of each turn."""
        prompts, before = [], np.empty(0, np.int32)
        for added, completion in zip(self.added, self.completions, strict=True):
            prompts.append(np.concatenate([before, added]))
            before = np.concatenate([prompts[-1], completion])
        return prompts

    def steps(self) -> list[Step]:
        """What a token log holds."""
        pairs = zip(self.added, self.completions, strict=True)
        return [
            Step(number, number - 1 if number else None, added, completion, self.logprobs, self.versions)
            for number, (added, completion) in enumerate(pairs)
        ]

    def sampled(self) -> list[Sampled]:
        """What an engine gives that does not say which turn a prompt extends."""
        pairs = zip(self.prompts(), self.completions, strict=True)
        return [
            Sampled(None, prompt, completion, self.logprobs, self.versions) for prompt, completion in pairs
        ]


def side_swe_core(session: Session) -> Callable[[], int]:
    steps = session.steps()
    return lambda: len(build_chains(steps))


def side_compared(session: Session) -> Callable[[], int]:
    sampled = session.sampled()

    def work() -> int:
        log = TokenLog()
        for index, one in enumerate(sampled):
            log.add(index, one)
        return len(log.chains())

    return work


def side_numpy(session: Session) -> Callable[[], int]:
    prompts = session.prompts()

    def work() -> int:
        chains, before = 1, prompts[0][:0]
        for prompt, completion in zip(prompts, session.completions, strict=True):
            chains += not np.array_equal(prompt[: len(before)], before)
            before = np.concatenate([prompt, completion])
        return chains

    return work


def side_trl(session: Session) -> Callable[[], int]:
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    from trl.experimental.async_grpo.async_grpo_config import AsyncGRPOConfig
    from trl.experimental.async_grpo.async_rollout_worker import TurnRecord, _chain_to_sequences

    threshold = AsyncGRPOConfig.fork_threshold_tokens
    logprobs = session.logprobs.tolist()
    pairs = zip(session.prompts(), session.completions, strict=True)
    turns = [TurnRecord(prompt.tolist(), completion.tolist(), logprobs) for prompt, completion in pairs]
    return lambda: len(_chain_to_sequences(turns, "rollout", threshold)[0])


def processor_time(work: Callable[[], int]) -> float:
    """What `work` takes, milliseconds; it must find one chain.

    Raises:
        RuntimeError: It finds another number.
    """
    started = time.process_time()
    chains = work()
    used = time.process_time() - started
    if chains != 1:
        raise RuntimeError(f"{chains} chains were found where there is one")
    return 1000 * used


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=20, help="default: 20")
    parser.add_argument(
        "--no-peers", action="store_true", help="leave TRL out, which takes seconds to import"
    )
    options = parser.parse_args()

    report = Report("chains", options.runs)
    session = Session(TURNS)
    made: dict[str, Callable[[], Callable[[], int]]] = {
        "swe_core": lambda: side_swe_core(session),
        "compared": lambda: side_compared(session),
        "numpy": lambda: side_numpy(session),
    }
    if not options.no_peers:
        try:
            trl = side_trl(session)
        except ImportError as error:
            report.notes.append(f"TRL is skipped: {error}")
        else:
            made["trl"] = lambda: trl
            report.notes.append(f"TRL is {version('trl')}")
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    for side in made.values():
        processor_time(side())
    for _ in range(options.runs):
        for name, side in made.items():
            times[name].append(processor_time(side()))

    medians = {name: median(values) for name, values in times.items()}
    report.medians = {f"{name}_ms": figure for name, figure in medians.items()}
    report.ratios = {
        f"{name}_to_{ours}": ratio(medians[name], medians[ours])
        for ours in ("swe_core", "compared")
        for name in ("numpy", "trl")
    }
    report.targets = [
        Target(f"{SIDES[name]}: {TURNS} turns, 74k tokens", medians[name], LIMIT, "ms")
        for name in ("swe_core", "compared")
    ]
    table = Table(title=f"{TURNS} turns to rows, processor time, medians of {options.runs} runs")
    for column in ("side", "median", "fastest", "slowest", "to ours", "to ours, compared"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for name, values in times.items():
        if values:
            row = [shown(figure, "ms") for figure in (medians[name], min(values), max(values))]
            over = [shown(ratio(medians[name], medians[ours]), "x") for ours in ("swe_core", "compared")]
            table.add_row(SIDES[name], *row, *over)
    report.show(table)


if __name__ == "__main__":
    main()
