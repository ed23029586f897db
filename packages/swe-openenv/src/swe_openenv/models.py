"""What crosses the wire: SweAction, SweObservation, SweState."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

ActionType = Literal["run_agent", "exec", "read", "write", "submit"]
Status = Literal["ready", "running", "finished"]

_LONE = re.compile("[\ud800-\udfff]")
"""Half a character, which UTF-8 cannot write."""
_NEEDS: dict[str, tuple[str, ...]] = {"exec": ("command",), "read": ("path",), "write": ("path", "content")}


class SweAction(Action):
    """One action.

    `run_agent` runs the server's agent on the task and grades its patch. The others are those of an
    interactive server: they work in the task's sandbox, and `submit` grades what they left there.
    """

    type: ActionType = Field(default="run_agent", description="what to do")
    command: str | None = Field(default=None, description="shell command of `exec`")
    path: str | None = Field(
        default=None, description="file of `read` and `write`; relative to the repository"
    )
    content: str | None = Field(default=None, description="text for `write`")
    timeout_s: float = Field(
        default=120.0, gt=0, le=3600, description="seconds that `exec`, `read` and `write` may take"
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        # No ValueError: OpenEnv's server cannot serialise one, and would end the session.
        for name in _NEEDS.get(self.type, ()):
            text = getattr(self, name)
            if text is None:
                raise PydanticCustomError(
                    "incomplete", "the action '{type}' needs '{name}'", {"type": self.type, "name": name}
                )
            if _LONE.search(text) or (name != "content" and "\0" in text):
                raise PydanticCustomError(
                    "no_text", "'{name}' is no text that a program takes", {"name": name}
                )
        return self


class SweObservation(Observation):
    """The state of an episode after an action. `reward` is that of the record, null for no verdict."""

    episode_id: str
    task_id: str
    status: Status
    prompt: str = Field(default="", description="the task as an agent gets it; after a reset only")
    output: str | None = Field(default=None, description="stdout of `exec`, or the text of `read`")
    error_output: str | None = Field(default=None, description="stderr of `exec`")
    exit_code: int | None = Field(default=None, description="exit code of `exec`; 128+N after signal N")
    truncated: bool = Field(default=False, description="whether output is missing")
    outcome: str | None = Field(default=None, description="resolved, unresolved, error or cancelled")
    reason: str | None = Field(default=None, description="why it is not resolved")
    tests: dict[str, dict[str, str]] = Field(
        default_factory=dict, description="fail_to_pass and pass_to_pass: test id → status"
    )
    patch: str | None = Field(default=None, description="what changed, a git diff")
    turns: int = Field(default=0, description="LLM calls")
    ledger: dict[str, Any] | None = Field(default=None, description="account of the sampled tokens")
    seconds: float | None = Field(default=None, description="wall time of the rollout")
    records: str | None = Field(default=None, description="the rollout's folder on the server")


class SweState(State):
    """The session's episode."""

    task_id: str | None = None
    split: str | None = None
    status: Status | None = None
    agent: str | None = None
