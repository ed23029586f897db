"""What it saves to cancel stale rollouts while they run, and how many groups to have ahead of the trainer, in
simulated trainings.

    python benchmarks/staleness.py [--runs N] [--share F]

The package's own feeder, with its schedule, staleness and tally, runs in virtual time (`_staleness_world`):
groups of 8 on 64 slots, 16 rows a step of 60 s, and rollouts whose durations have a heavy tail: log-normal
(median 240 s, sigma 1) or Pareto (from 120 s, alpha 1.5), both ended at 1800 s. Sandbox time is that of all
rollouts until the last step, training time that of the clock on the wall.

Cancelling: each training is done twice with the same durations: stale rollouts are cancelled in flight, or
run to their end and are left out then. Saved is how much longer the cancelled rollouts would have run, which
a simulation knows and a run does not; the estimate is that of `Tally`, logged as
`staleness/saved_sandbox_seconds_total`. Freed slots begin other rollouts at once, so the sandbox time of two
trainings need not differ by what was saved.

Groups ahead: the same trainings with each number of `AHEAD` and with what the launcher chooses; besides, with
steps of 600 s, in which rows wait for the trainer, and with groups of 16 and 64 rows a step. The best number
is that with the least training time; the thriftiest that with the least sandbox time of those with which the
training takes at most 10 % longer.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping

from _common import Report, Target, median, ratio
from _staleness_world import LAWS, Setting, Spent, simulate
from rich.console import Group
from rich.table import Table

STEPS = 30
STALENESS = (1, 2, 3, 4)
SETTINGS = {
    "usual": Setting(),
    "slow_step": Setting(step_seconds=600),
    "large_group": Setting(group=16, rows=64),
}
AHEAD = (2, 4, 8, 12, 16, 24, 32)
NEAR = 1.1
"""How much longer than with the best number of groups ahead a training may take."""
HOUR = 3600
Pair = tuple[Spent, Spent]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3, help="seeds; default: 3")
    parser.add_argument("--share", type=float, default=1.0, help=f"of the {STEPS} steps of a training")
    options = parser.parse_args()
    steps = max(1, round(options.share * STEPS))

    report = Report("staleness", options.runs)
    tables = _cancelling(report, steps), _groups_ahead(report, steps)
    report.notes.append(
        "the estimate knows of cancelled rollouts only that they would have lasted longer, nothing beyond "
        "the longest that was seen, so it is too low"
    )
    report.show(Group(*tables))


def _cancelling(report: Report, steps: int) -> Table:
    """Each training with and without cancelling."""
    table = Table(
        title=f"Trainings of {steps} steps, stale ones run on → cancelled, medians of {report.runs} seeds"
    )
    table.add_column("law, staleness")
    for column in ("groups", "sandbox h", "training h", "cancelled", "saved h", "estimate", "stale at end"):
        table.add_column(column, justify="right")
    for law in LAWS:
        for staleness in STALENESS:
            pairs = [
                (
                    simulate(law, staleness, seed, steps, cancels=False),
                    simulate(law, staleness, seed, steps),
                )
                for seed in range(report.runs)
            ]
            _enter(report, table, f"{law}_{staleness}", pairs)
    return table


def _groups_ahead(report: Report, steps: int) -> Table:
    """Each training with several numbers of groups ahead."""
    table = Table(title=f"The same trainings by groups ahead: best, chosen, thriftiest within {NEAR - 1:.0%}")
    table.add_column("setting, law, staleness")
    for column in ("groups ahead", "training h", "chosen to best", "sandbox h"):
        table.add_column(column, justify="right")
    for name, setting in SETTINGS.items():
        for law in LAWS:
            found = [
                _sweep(report, table, f"{name}_{law}_{staleness}", setting, law, staleness, steps)
                for staleness in STALENESS
            ]
            what = f"training time with the chosen groups ahead to that with the best, {name}, {law}"
            report.targets.append(Target(f"{what}, worst staleness", max(found), NEAR, "x"))
        table.add_section()
    return table


def _sweep(
    report: Report, table: Table, name: str, setting: Setting, law: str, staleness: int, steps: int
) -> float:
    """Put one training with each number of groups ahead into the report and the table.

    Returns:
        Its time with the chosen number to that with the best.
    """
    chosen = setting.chosen(staleness)
    training, sandbox = dict[int, float](), dict[int, float]()
    for ahead in sorted({*AHEAD, chosen}):
        spent = [
            simulate(law, staleness, seed, steps, setting=setting, ahead=ahead) for seed in range(report.runs)
        ]
        training[ahead] = statistics.median(one.seconds for one in spent) / HOUR
        sandbox[ahead] = statistics.median(one.sandbox_seconds for one in spent) / HOUR
    best = min(training, key=training.__getitem__)
    near = [ahead for ahead, hours in training.items() if hours <= NEAR * training[best]]
    shown = best, chosen, min(near, key=sandbox.__getitem__)
    longer = training[chosen] / training[best]
    report.medians[f"ahead_{name}"] = {
        "best": best,
        "chosen": chosen,
        "thriftiest": shown[-1],
        "training_h": _rounded(training),
        "sandbox_h": _rounded(sandbox),
    }
    report.ratios[f"ahead_{name}_training"] = ratio(training[chosen], training[best])
    report.ratios[f"ahead_{name}_sandbox"] = ratio(sandbox[chosen], sandbox[shown[-1]])
    table.add_row(
        name.replace("_", " "),
        ", ".join(str(ahead) for ahead in shown),
        ", ".join(f"{training[ahead]:.1f}" for ahead in shown),
        f"{longer:.2f} x",
        ", ".join(f"{sandbox[ahead]:.0f}" for ahead in shown),
    )
    return longer


def _rounded(hours: Mapping[int, float]) -> dict[str, float]:
    return {str(ahead): round(value, 2) for ahead, value in hours.items()}


def _enter(report: Report, table: Table, name: str, pairs: list[Pair]) -> None:
    """Put one setting into the report and the table."""

    def each(value: Callable[[Spent], float]) -> tuple[float | None, float | None]:
        return median(value(without) for without, _ in pairs), median(value(cancels) for _, cancels in pairs)

    def both(value: Callable[[Spent], float]) -> float | None:
        found = [ratio(value(cancels), value(without)) for without, cancels in pairs]
        return median(one for one in found if one is not None)

    groups, sandbox, wall = (
        each(lambda spent: spent.groups),
        each(lambda spent: spent.sandbox_seconds / HOUR),
        each(lambda spent: spent.seconds / HOUR),
    )
    stale = each(lambda spent: spent.stale)
    cancelled = median(cancels.cancelled for _, cancels in pairs)
    saved = median(cancels.saved / HOUR for _, cancels in pairs)
    estimated = median(cancels.estimated / HOUR for _, cancels in pairs)
    estimates = [ratio(cancels.estimated, cancels.saved) for _, cancels in pairs]
    estimate = median(one for one in estimates if one is not None)
    report.medians[name] = {
        **_sides("groups", groups),
        **_sides("sandbox_h", sandbox),
        **_sides("training_h", wall),
        **_sides("stale", stale),
        "cancelled": cancelled,
        "saved_h": saved,
        "estimated_h": estimated,
    }
    report.ratios[f"{name}_sandbox"] = both(lambda spent: spent.sandbox_seconds)
    report.ratios[f"{name}_training"] = both(lambda spent: spent.seconds)
    report.ratios[f"{name}_estimate_to_truth"] = estimate
    table.add_row(
        name.replace("_", " "),
        *(f"{without:.1f} → {cancels:.1f}" for without, cancels in (groups, sandbox, wall)),
        f"{cancelled:g}",
        f"{saved:.1f}",
        "-" if estimate is None else f"{estimate:.2f} x",
        f"{stale[0]:g} → {stale[1]:g}",
    )


def _sides(name: str, values: tuple[float | None, float | None]) -> dict[str, float | None]:
    return {f"{name}_without": values[0], f"{name}_with": values[1]}


if __name__ == "__main__":
    main()
