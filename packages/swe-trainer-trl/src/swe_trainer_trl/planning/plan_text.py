"""A training's plan as text, for `swe-core run --dry-run`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from swe_core.system.plural import counted
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.planning.cards import GIB
from swe_trainer_trl.planning.memory import known_optimizer
from swe_trainer_trl.planning.training_plan import TrainingPlan

_NAMES = {"cache": "KV cache", "working": "working memory"}


def plan_text(plan: TrainingPlan, config: TRLConfig, *, tasks: int, attempts: int, concurrency: int) -> str:
    """Return the plan as lines of a name and its value.

    Args:
        plan: The plan.
        config: The settings of the worker.
        tasks: Number of tasks.
        attempts: Attempts of a group.
        concurrency: Rollouts that run at the same time.
    """
    lines = [
        ("training", _amount(plan, tasks, attempts)),
        ("step", step_text(plan)),
        ("policy", _policy(plan)),
        ("hardware", f"{plan.cards}" + (f" ({config.hardware})" if config.hardware else "")),
        *_trainers(plan),
        *_servers(plan, config),
        *((f"GPU {name}", f"idle: {why}") for name, why in plan.layout.idle.items()),
        *_cache(plan, concurrency),
    ]
    return "\n".join(f"{name:<10}{value}" for name, value in lines)


def _amount(plan: TrainingPlan, tasks: int, attempts: int) -> str:
    keys = plan.keys
    if keys.max_steps > 0:
        end = counted(keys.max_steps, "step")
    else:
        groups = math.ceil(keys.num_train_epochs * tasks)
        end = f"{counted(groups, 'group')}, {keys.num_train_epochs:g} for each of {counted(tasks, 'task')}"
    return f"{end}, groups of {counted(attempts, 'attempt')}"


def step_text(plan: TrainingPlan) -> str:
    """Return how many rows a step has, or forward passes, over all trainer processes."""
    keys, processes = plan.keys, plan.processes
    passes = keys.gradient_accumulation_steps * processes
    made = f"{counted(passes, 'forward pass', 'forward passes')} of packed rows"
    if keys.token_budget == 0:
        rows = keys.per_device_train_batch_size
        made = f"{counted(rows * passes, 'row')}, {rows} in a forward pass"
    each = f", {counted(keys.gradient_accumulation_steps, 'pass', 'passes')} in each of {processes} processes"
    return made + (each if processes > 1 else "")


def _policy(plan: TrainingPlan) -> str:
    size = plan.size
    if size is None:
        return f"{plan.model}, of unknown size"
    trained = f"an adapter of {_millions(size.trained)} is trained" if size.adapter else "all are trained"
    dtype = str(plan.keys.initial["dtype"]).removeprefix("torch.")
    return (
        f"{plan.model}: {_millions(size.parameters)} parameters in {dtype}, {trained}; context "
        f"{plan.context:,} tokens, forward passes of at most {plan.row:,}"
    )


def _trainers(plan: TrainingPlan) -> Iterator[tuple[str, str]]:
    for number in range(plan.processes):
        trainers = plan.layout.trainers
        where = f"GPU {trainers[number]}" if trainers else "CPU"
        what = "trainer" if plan.processes == 1 else f"trainer {number + 1} of {plan.processes}"
        what += ", a share of the weights (FSDP)" if plan.sharding == "fsdp" else ""
        yield where, f"{what}: {_parts(plan.trainer)}"
    if not known_optimizer(plan.keys.optim):
        yield "note", f"the states of the optimizer {plan.keys.optim!r} are counted as those of AdamW"


def _servers(plan: TrainingPlan, config: TRLConfig) -> Iterator[tuple[str, str]]:
    if not plan.layout.servers:
        yield "vLLM", "that of --engine-url"
    for number, gpus in enumerate(plan.layout.servers, 1):
        for name in gpus or (None,):
            where = "CPU" if name is None else f"GPU {name}"
            split = f", with {', '.join(one for one in gpus if one != name)}" if len(gpus) > 1 else ""
            yield where, f"vLLM {number}{split}: {_parts(plan.server)}"
    if config.server.args:
        yield "note", "worker.trl.server.args may change what vLLM takes, and is not read here"


def _cache(plan: TrainingPlan, concurrency: int) -> Iterator[tuple[str, str]]:
    if plan.cached is None:
        return
    replicas = len(plan.layout.servers)
    whole = plan.cached / plan.context
    yield (
        "KV cache",
        f"{plan.cached:,} tokens in {'each of ' if replicas > 1 else ''}{counted(replicas, 'replica')}: "
        f"{whole * replicas:,.1f} rollouts at once at the full context, for {concurrency} concurrent ones; "
        "shorter ones need less, and wait if there is no room",
    )


def _parts(parts: Mapping[str, int]) -> str:
    """Return `weights 1.0 + gradients 1.0 = 2.0 GiB`."""
    if not parts:
        return "its memory is unknown"
    each = " + ".join(f"{_NAMES.get(name, name)} {size / GIB:.1f}" for name, size in parts.items() if size)
    return f"{each} = {sum(parts.values()) / GIB:.1f} GiB"


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"
