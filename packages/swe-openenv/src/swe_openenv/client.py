"""SweEnv: the typed client of an environment server, and the actions that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from openenv.core.client_types import StepResult
from openenv.core.env_client import EnvClient
from pydantic import Field

from swe_openenv.models import SweAction, SweObservation, SweState

LONGEST_ROLLOUT = 3600.0
"""Seconds that a client waits for an answer: one action runs a whole rollout."""


class RunAgent(SweAction):
    """Run the server's agent on the task, and grade its patch."""

    type: Literal["run_agent"] = "run_agent"


class Exec(SweAction):
    """Run a shell command in the repository. Interactive servers only, as the actions below."""

    type: Literal["exec"] = "exec"
    command: str = Field(description="shell command")


class Read(SweAction):
    """Read a text file; a relative path is relative to the repository."""

    type: Literal["read"] = "read"
    path: str = Field(description="file")


class Write(SweAction):
    """Create or replace a text file; a relative path is relative to the repository."""

    type: Literal["write"] = "write"
    path: str = Field(description="file")
    content: str = Field(description="its text")


class Submit(SweAction):
    """End the work, and grade the repository as it is."""

    type: Literal["submit"] = "submit"


class SweEnv(EnvClient[SweAction, SweObservation, SweState]):
    """Client of an environment server: `async with`, or `.sync()` and `with`.

    Args:
        base_url: The server, such as `http://127.0.0.1:8000`.
        message_timeout_s: Seconds to wait for an answer.
        options: Further arguments of OpenEnv's `EnvClient`, such as `headers` with the server's key.
    """

    def __init__(
        self, base_url: str | None = None, *, message_timeout_s: float = LONGEST_ROLLOUT, **options: Any
    ) -> None:
        super().__init__(base_url, message_timeout_s=message_timeout_s, **options)

    def _step_payload(self, action: SweAction) -> dict[str, Any]:
        payload: dict[str, Any] = action.model_dump(mode="json", exclude_none=True)
        return payload

    def _parse_result(self, payload: Mapping[str, Any]) -> StepResult[SweObservation]:
        reward, done = payload.get("reward"), payload.get("done", False)
        observation = SweObservation(**{**payload["observation"], "reward": reward, "done": done})
        return StepResult(observation=observation, reward=reward, done=done, metadata=payload.get("metadata"))

    def _parse_state(self, payload: Mapping[str, Any]) -> SweState:
        state: SweState = SweState.model_validate(payload)
        return state
