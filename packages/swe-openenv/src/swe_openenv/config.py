"""The settings of the environment server."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from swe_core.api.component import Config


def _name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError("expected letters, digits, - and _")
    return name


class ServerConfig(Config):
    """`[worker.openenv]`: the environment server. Clients choose tasks and nothing else."""

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="port; 0 selects a free one")
    name: Annotated[str, AfterValidator(_name)] = Field(default="swe", description="name of the environment")
    split: str = Field(default="train", min_length=1, description="name of the split of all tasks")
    sessions: int = Field(default=64, ge=1, description="connections at the same time")
    session_timeout: float = Field(
        default=6 * 3600.0, gt=0, description="seconds until a session ends that sends nothing"
    )
    interactive: bool = Field(
        default=False,
        description="the client is the agent: it works in the task's sandbox with exec, read and write",
    )
    key_env: str | None = Field(
        default=None, description="environment variable with the key that clients need; unset: none"
    )
