"""The settings of the executor."""

from __future__ import annotations

import os
from typing import Any

from pydantic import Field, model_validator

from swe_core.api.component import Config
from swe_core.errors import ConfigError


class RayConfig(Config):
    """`[executor.ray]`."""

    workers: int | None = Field(
        default=None,
        ge=0,
        description="nodes of a cluster on this host, for the time of the run; unset: one a processor, at "
        "most `run.concurrency` (`--workers`)",
    )
    address: str | None = Field(
        default=None,
        min_length=1,
        description="cluster to join, `auto` or HOST:PORT; unset: one is started on this host (`--address`)",
    )
    slots: int | None = Field(
        default=None,
        ge=1,
        description="rollouts on a node at the same time where no node of the cluster offers `swe_slots`; "
        "unset: `run.concurrency`, shared out among the nodes",
    )
    env: tuple[str, ...] = Field(
        default=(),
        description="environment variables, such as OPENAI_API_KEY, that nodes get from this process",
    )
    runtime_env: dict[str, Any] = Field(
        default_factory=dict,
        description="runtime environment of the nodes' processes, passed to Ray as it is",
    )

    @model_validator(mode="after")
    def _one_cluster(self) -> RayConfig:
        if self.workers == 0 and self.address is None:
            raise ValueError("no workers without a cluster: add --address auto, or give --workers 1 or more")
        if self.workers and self.address is not None:
            raise ValueError("--workers starts a cluster, and --address joins one: leave one out")
        if self.address is not None and "://" in self.address:
            raise ValueError(
                "the address is 'auto' or HOST:PORT; with ray:// the run would be outside the cluster: start "
                "it on a machine of the cluster, with --address auto"
            )
        return self

    def variables(self) -> dict[str, str]:
        """Return the variables that nodes get, with their values here.

        Raises:
            ConfigError: One is unset.
        """
        missing = [name for name in self.env if not os.environ.get(name)]
        if missing:
            raise ConfigError(
                f"executor.ray.env names the variable {missing[0]!r}, which is unset here: set it"
            )
        return {name: os.environ[name] for name in self.env}
