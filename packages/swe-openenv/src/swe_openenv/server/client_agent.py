"""ClientAgent: the agent of an interactive episode, whose loop is the client's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import anyio

from swe_core.api.agent import AgentContext, AgentDialogue, AgentEvent, InteractiveAgent
from swe_core.api.sandbox import Sandbox


class ClientAgent(InteractiveAgent):
    """Hands out its sandbox until the client submits its work.

    Attributes:
        opened: Set with `sandbox`.
        submitted: Whether the client has submitted.
    """

    name = "client"
    dialect = None

    def __init__(self) -> None:
        self.sandbox: Sandbox | None = None
        self.environment: Mapping[str, str] = {}
        self.opened = anyio.Event()
        self.submitted = False
        self._work = anyio.Event()
        self._dialogue: AgentDialogue | None = None

    def command(self, ctx: AgentContext) -> Sequence[str]:
        """Return nothing to run: the client acts through `sandbox`."""
        return ("true",)

    async def converse(self, ctx: AgentContext, dialogue: AgentDialogue) -> None:
        """Wait until the client submits."""
        self._dialogue, self.sandbox, self.environment = dialogue, dialogue.sandbox, ctx.environment
        self.opened.set()
        await self._work.wait()

    def record(self, event: AgentEvent) -> None:
        """Add an event to the transcript."""
        if self._dialogue is not None:
            self._dialogue.record(event)

    def submit(self) -> None:
        """End the client's work."""
        self.submitted = True
        self._work.set()
