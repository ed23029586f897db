"""The settings of the tasks, the sandbox and the grader `openenv`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from swe_core import Config
from swe_openenv.urls import server_url


class PlayTasksConfig(Config):
    """`[tasks.openenv]`: the tasks of an OpenEnv server that has the Task API."""

    url: Annotated[str, AfterValidator(server_url)] | None = Field(
        default=None, description="the server, such as http://127.0.0.1:8000"
    )
    env_name: str | None = Field(default=None, min_length=1, description="environment; unset: the only one")
    split: str | None = Field(default=None, description="split; unset: the only one, else test, else train")
    workdir: str = Field(
        default="/testbed", pattern=r"^/.+", description="the repository in the environment, for all tasks"
    )
    timeout: float = Field(default=60.0, gt=0, description="seconds for each request")


class PlaySandboxConfig(Config):
    """`[sandbox.openenv]`: episodes of the server that a task names."""

    internet: bool = Field(
        default=False, description="accept that the server decides what an episode can reach and use"
    )
    tool: str | None = Field(
        default=None,
        description="tool that runs a shell command; unset: the one whose name and parameters say so",
    )
    timeout: float = Field(
        default=120.0, gt=0, description="seconds for each call; a tool call takes milliseconds"
    )
    reset_timeout: float = Field(default=600.0, gt=0, description="seconds for the start of an episode")
    wait: float = Field(
        default=300.0, ge=0, description="seconds to wait for a place while the server is full"
    )


class PlayGraderConfig(Config):
    """`[grader.openenv]`: the reward of the environment."""

    submit: str | None = Field(
        default=None, description="tool that gives the reward; unset: the one whose name says so"
    )
    by: Literal["step", "call"] = Field(
        default="step",
        description="step: a step calls the tool, and the observation has the reward; "
        "call: a plain tool call, which has no time limit of the server, and whose result has the reward",
    )
    action: dict[str, Any] | None = Field(
        default=None, description="the step that gives the reward, for an environment without such a tool"
    )
    threshold: float = Field(default=1.0, description="least reward that counts as resolved")
