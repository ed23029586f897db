"""The trainer's sampling: what is trained must be sampled from the distribution that the loss computes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from swe_core.api.engine import Engine
from swe_core.errors import ConfigError
from swe_core.run.components import ResolvedComponent
from swe_core.run.plan import Plan

_TEMPERATURE = "temperature"


def sampled_as(plan: Plan, sampling: Mapping[str, float]) -> Plan:
    """Return `plan` with the trainer's temperature, where the settings leave that open.

    Args:
        sampling: Temperature, top_p and so on, by vLLM's names.

    Raises:
        ConfigError: Nothing of the run can be trained, or the settings sample in another way.
    """
    if not isinstance(plan.model_side, ResolvedComponent):
        raise ConfigError(
            f"the agent {plan.agent.name!r} makes no LLM calls, so there is nothing to train: set run.agent "
            "to one that does"
        )
    if _TEMPERATURE not in sampling:
        raise ConfigError("the trainer's sampling has no temperature: give it one")
    engine = plan.model_side
    whose = f"the engine {engine.name!r}"
    fields = type(engine.config).model_fields
    if _TEMPERATURE in fields and _TEMPERATURE not in engine.config.model_fields_set:
        temperature = sampling[_TEMPERATURE]
        engine = engine.with_settings({_TEMPERATURE: ("sampling", temperature)})
        tables = plan.settings.engine
        tables = {**tables, engine.name: {**tables.get(engine.name, {}), _TEMPERATURE: temperature}}
        plan = replace(plan, model_side=engine, settings=plan.settings.model_copy(update={"engine": tables}))
    found = cast(Engine, engine.create()).sampling
    if found is None:
        raise ConfigError(
            f"{whose} does not own its tokens, so nothing can be trained: use the engine 'vllm'"
        )
    for name, value in sampling.items():
        if found.get(name) != value:
            raise ConfigError(
                f"{whose} samples with {name} {found.get(name)} and the trainer with {value}: leave "
                f"engine.{engine.name}.{name} out of the settings"
            )
    return plan
