"""Host tools that one rollout's agent may call."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
from pydantic import BaseModel, ValidationError

from swe_core.api.agent import HostTool
from swe_core.errors import AgentError
from swe_core.interception.calls import OVER, RolloutOver
from swe_core.system.detached import apart

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

log = logging.getLogger(__name__)


class UnknownTool(LookupError):
    """The rollout has no tool of this name."""


class BadArguments(ValueError):
    """The arguments do not fit the tool's schema; the sentence names the argument."""


class ToolFailed(Exception):
    """The tool raised an error. The host logs the error; the sandbox does not see it."""


class Tools:
    """The host tools of one rollout."""

    def __init__(self) -> None:
        self._tools: dict[str, HostTool[Any]] = {}
        self._running: set[anyio.CancelScope] = set()
        self._closing: anyio.Event | None = None

    def offer(self, tools: Sequence[HostTool[Any]]) -> None:
        """Make `tools` callable.

        Raises:
            AgentError: Two tools have the same name, or a name is not valid in a path.
        """
        for tool in tools:
            if not _NAME.fullmatch(tool.name):
                raise AgentError(
                    f"the host tool {tool.name!r} has an unusable name: "
                    "take up to 64 letters, digits, '_' and '-'"
                )
            if tool.name in self._tools:
                raise AgentError(f"there are two host tools {tool.name!r}: names are unique")
            self._tools[tool.name] = tool

    def listed(self) -> list[dict[str, Any]]:
        """Return name, description and parameters (a JSON schema) of each tool."""
        return [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.arguments.model_json_schema(),
            }
            for tool in self._tools.values()
        ]

    async def run(self, name: str, raw: bytes) -> str:
        """Call the tool `name` with the arguments `raw`, a JSON object.

        Raises:
            UnknownTool: The name is unknown.
            BadArguments: The arguments do not fit the schema.
            ToolFailed: The tool raised an error.
            RolloutOver: The rollout ended.
        """
        tool = self._tools.get(name)
        if tool is None:
            raise UnknownTool(f"there is no tool {name!r}; there are: {', '.join(self._tools) or 'none'}")
        try:
            arguments = tool.arguments.model_validate_json(raw, strict=True)
        except ValidationError as error:
            raise BadArguments(_explain(name, error)) from None
        if self._closing is not None:
            raise RolloutOver(OVER)
        with anyio.CancelScope() as scope:  # no await since the check: a close from here on sees the scope
            self._running.add(scope)
            try:
                return await _run(tool, arguments)
            finally:
                self._leave(scope)
        raise RolloutOver(OVER)

    def _leave(self, scope: anyio.CancelScope) -> None:
        self._running.discard(scope)
        if self._closing is not None and not self._running:
            self._closing.set()

    async def close(self) -> None:
        """Refuse new calls, cancel running ones and wait for them (`swe_core.system.detached`)."""
        self._closing = anyio.Event()
        for scope in self._running:
            scope.cancel()
        if self._running:
            await self._closing.wait()


async def _run(tool: HostTool[Any], arguments: BaseModel) -> str:
    try:
        return str(await apart(partial(tool.run, arguments), f"the host tool {tool.name!r}"))
    except Exception as error:  # any error of a plugin's tool stays on the host
        log.warning("the host tool %r failed", tool.name, exc_info=error)
        raise ToolFailed(f"the tool {tool.name!r} failed") from error


def _explain(name: str, error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    where = ".".join(str(part) for part in problems[0]["loc"])
    field = f"{where!r}: " if where else ""
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"the arguments of the tool {name!r} are wrong: {field}{problems[0]['msg']}{more}"
