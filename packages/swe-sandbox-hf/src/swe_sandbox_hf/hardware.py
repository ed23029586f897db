"""Check of a flavor's hardware against the resources that a sandbox requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from huggingface_hub import JobHardwareInfo

from swe_core.api.sandbox import SandboxSpec
from swe_core.errors import ConfigError, PolicyRefused

_MB = {"MB": 1, "GB": 1024, "TB": 1024 * 1024}
_NAMED = 4


@dataclass(frozen=True, slots=True)
class Flavor:
    """One kind of hardware for jobs.

    Args:
        name: As in `hf jobs hardware`.
        cpus: Number of processors; None if the service's text cannot be parsed.
        memory_mb: Memory in MiB; None as above.
        dollars: Price per minute, US dollars.
    """

    name: str
    cpus: float | None
    memory_mb: int | None
    dollars: float

    def has(self, spec: SandboxSpec) -> bool:
        """Return whether the flavor has the resources of `spec`. An unknown amount counts as enough."""
        return (self.cpus is None or self.cpus >= spec.cpus) and (
            self.memory_mb is None or self.memory_mb >= spec.memory_mb
        )


def flavors_of(hardware: Sequence[JobHardwareInfo]) -> dict[str, Flavor]:
    """Return name → flavor, cheapest first. The service writes `2 vCPU` and `16 GB`."""
    found = (
        Flavor(one.name, _number(one.cpu), _memory(one.ram), float(one.unit_cost_usd)) for one in hardware
    )
    return {flavor.name: flavor for flavor in sorted(found, key=lambda flavor: flavor.dollars)}


def check(spec: SandboxSpec, name: str, flavors: dict[str, Flavor]) -> None:
    """Raise if a sandbox requests more than the flavor `name` has.

    Raises:
        ConfigError: The flavor does not exist.
        PolicyRefused: The flavor is too small.
    """
    flavor = known(name, flavors)
    if flavor.has(spec):
        return
    enough = [other.name for other in flavors.values() if other.has(spec)][:_NAMED]
    remedy = (
        f"choose another, such as {', '.join(enough)}"
        if enough
        else "no flavor has this much, so request less"
    )
    raise PolicyRefused(
        f"the flavor {name!r} of sandbox.hf.flavor has {flavor.cpus} processors and {flavor.memory_mb} MiB "
        f"of memory, but the sandbox needs {spec.cpus:g} and {spec.memory_mb} MiB: {remedy}"
    )


def known(name: str, flavors: dict[str, Flavor]) -> Flavor:
    """Return the flavor of this name.

    Raises:
        ConfigError: The flavor does not exist.
    """
    if name not in flavors:
        raise ConfigError(
            f"sandbox.hf.flavor is {name!r}, which Hugging Face does not offer: choose one of "
            f"{', '.join(flavors)}"
        )
    return flavors[name]


def _number(words: str) -> float | None:
    found = re.match(r"\s*([0-9]+(?:\.[0-9]+)?)", words)
    return float(found[1]) if found else None


def _memory(words: str) -> int | None:
    found = re.match(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([MGT]B)\b", words)
    return int(float(found[1]) * _MB[found[2]]) if found else None
