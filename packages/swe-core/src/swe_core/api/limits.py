"""Time limits and budgets of one rollout."""

from __future__ import annotations

from pydantic import Field

from swe_core.api.component import Config


class Limits(Config):
    """`[limits]`: maximum duration of each phase, seconds."""

    open: float = Field(default=600.0, gt=0, description="open a sandbox, including an image pull")
    prepare: float = Field(default=120.0, gt=0, description="prepare the repository; export the patch")
    agent: float = Field(default=1800.0, gt=0, description="run the agent")
    first_call: float = Field(default=300.0, gt=0, description="from the agent's start to its first LLM call")
    grade: float = Field(default=1800.0, gt=0, description="run the tests of a grade")

    @property
    def verdict(self) -> float:
        """Return the time for one verdict [s]: tests in fresh sandboxes for patch, reference and base."""
        return 3 * (self.open + self.prepare + self.grade)


class Budgets(Config):
    """`[budget]`: resources of the policy in one rollout. An exhausted budget is no error."""

    turns: int | None = Field(default=None, ge=1, description="LLM calls")
    completion_tokens: int | None = Field(default=None, ge=1, description="sampled tokens of all calls")
    context: int | None = Field(default=None, ge=1, description="tokens of one call: prompt and completion")
    wall: float | None = Field(default=None, gt=0, description="seconds from the agent's start")
    grace: float = Field(
        default=30.0,
        ge=0,
        description="seconds until a process that has spent its budget or submitted is killed",
    )


MAX_BODY = 32 * 1024 * 1024
"""Default maximum size of a request, bytes; see `server.max_body`."""
