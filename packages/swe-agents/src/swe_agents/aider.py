"""The agent `aider`: edits as text, without tools."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from swe_agents.python_agent import PythonAgent, PythonAgentConfig
from swe_core import AgentContext, AgentEvent, AgentSpec, Component, hookimpl
from swe_core.api.checks import Check
from swe_core.api.event_lines import json_line, make_event, odd_line
from swe_core.bundles import bundle_checks

_DAY = 24 * 3600
"""Timeout longer than any rollout, because the host limits the time of a reply."""
_NEVER = 1_000_000_000


_REASONING = re.compile(r"<(thinking-content-\w+)>\s*(.*?)\s*</\1>\s*", re.DOTALL)
"""How aider writes reasoning into the text of a reply."""
_UNUSED = (
    *(
        f"scipy/{name}/*"
        for name in (
            "cluster",
            "fft",
            "integrate",
            "interpolate",
            "io",
            "ndimage",
            "optimize",
            "signal",
            "spatial",
            "special",
            "stats",
        )
    ),
    *(
        f"tree_sitter_language_pack/bindings/{name}.*"
        for name in ("cobol", "cuda", "fsharp*", "hlsl", "latex", "nim", "objc", "perl", "sql", "verilog")
    ),
)
"""What the map of a repository does not use: languages whose names aider does not look for, most of SciPy."""


class AiderConfig(PythonAgentConfig):
    """`[agent.aider]`. `[budget]` limits calls and tokens."""

    edit_format: Literal["whole", "diff", "diff-fenced", "udiff", "patch"] = Field(
        default="whole", description="form of the edits in a reply; aider uses `whole` for an unknown model"
    )
    map_tokens: int = Field(default=1024, ge=0, description="size of the map of the repository; 0: no map")
    reflections: int = Field(
        default=100,
        ge=0,
        description="calls after the first one: for added files, edits that do not apply, and lint errors; "
        "aider's own limit is 3",
    )
    history_tokens: int = Field(
        default=_NEVER, gt=0, description="tokens of earlier replies that aider keeps; it summarises more"
    )
    retry_seconds: float = Field(
        default=0, ge=0, description="how long a failed LLM call is repeated; for black-box mode"
    )


class Aider(PythonAgent):
    """Aider, one prompt. It asks for files by name, and writes edits without a commit.

    Each call shows the files and the map anew, so that no call extends the one before. Aider loads no file of
    the repository for agents, since nothing of its command line runs.
    """

    name = "aider"
    calls_tools = False
    title = "aider"
    needs = "git"
    version = "0.86.2"
    module = "aider"
    pythons = ("3.12", "3.11")
    dropped = _UNUSED

    def __init__(self, config: AiderConfig | None = None) -> None:
        self.config: AiderConfig = config or AiderConfig()

    def settings(self, ctx: AgentContext) -> Mapping[str, Any]:
        return {
            **self.config.model_dump(exclude={"python"}),
            "model": f"openai/{ctx.model}",
            "params": {"api_base": ctx.base_url, "timeout": _DAY, "max_retries": 0},
            "metadata": {"litellm_provider": "openai", "mode": "chat", "max_input_tokens": _NEVER},
            "cache": f"{ctx.home}/tags",
        }

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Return the events of one line of the runner."""
        said = json_line(line) or {}
        text = str(said.get("text"))
        match said.get("type"):
            case "text":
                thoughts = [make_event("reasoning", found[2]) for found in _REASONING.finditer(text)]
                return (*thoughts, make_event("text", _REASONING.sub("", text)))
            case "info":
                return (make_event("info", text),)
            case "error":
                return (make_event("error", text, fatal=True),)
        return odd_line(line)


@hookimpl
def swe_agents() -> Iterable[Component[AgentSpec]]:
    """Register the agent `aider`."""
    return [Component("aider", Aider, AiderConfig, "aider, from a host-built bundle")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    """Register the check of its bundle."""
    return bundle_checks(Aider)
