"""The agent "mini": its files, command, environment and events."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping, Sequence

from swe_core.api.agent import AgentContext, AgentEvent, AgentExit, AgentSpec
from swe_core.builtin.mini import MiniConfig

# The first python3 on PATH may be that of an old project, which the set-up lines of the task put there.
_START = """\
set -f
IFS=:
for place in $PATH; do
  if "$place/python3" -I -c 'import sys; sys.exit(sys.version_info < (3, 8))' </dev/null 2>/dev/null; then
    exec "$place/python3" -I "$1"
  fi
done
exec python3 -I "$1"
"""


class Mini(AgentSpec):
    """The agent "mini"."""

    name = "mini"
    version = "1"
    dialect = "chat"

    def __init__(self, config: MiniConfig) -> None:
        self._config = config

    def files(self, ctx: AgentContext) -> Mapping[str, bytes]:
        source = importlib.resources.files("swe_core.builtin.mini").joinpath("mini_agent.py")
        return {_program(ctx): source.read_bytes()}

    def command(self, ctx: AgentContext) -> Sequence[str]:
        """Return the command, isolated from the modules of repository and user (`-I`)."""
        return ("sh", "-c", _START, "mini", _program(ctx))

    def env(self, ctx: AgentContext) -> Mapping[str, str]:
        """Return its settings, which it removes from the environment of its commands."""
        return {
            "SWE_MINI_BASE_URL": ctx.base_url,
            "SWE_MINI_API_KEY": ctx.api_key,
            "SWE_MINI_MODEL": ctx.model,
            "SWE_MINI_WORKDIR": ctx.workdir,
            "SWE_MINI_MAX_TURNS": str(self._config.max_turns),
            "SWE_MINI_COMMAND_TIMEOUT": str(self._config.command_timeout),
            "SWE_MINI_OUTPUT_CHARS": str(self._config.output_chars),
        }

    def stdin(self, ctx: AgentContext) -> bytes:
        return ctx.prompt.encode()

    def parse_event(self, line: str) -> Sequence[AgentEvent]:
        """Parse one JSON event; any other line becomes an event of the kind `info`."""
        if not line.strip():
            return ()
        try:
            return (AgentEvent.model_validate_json(line),)
        except ValueError:
            return (AgentEvent(kind="info", text=line),)

    def failure(self, ended: AgentExit) -> str | None:
        """Return its error event if it printed one, else a sentence about the exit code."""
        if ended.exit_code != 0 and ended.last_error is not None:
            return f"the agent 'mini' ended with an error: {ended.last_error.text}"
        if ended.exit_code == 127:
            return "the agent 'mini' could not start: the sandbox has no python3"
        return super().failure(ended)


def _program(ctx: AgentContext) -> str:
    return f"{ctx.home}/mini_agent.py"
