"""ForeignEngine: an engine at a URL that a client named, whose refusals are not shown.

The URL may be a service that only the server reaches, and its answers may hold what the client must not see.
"""

from __future__ import annotations

from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession
from swe_core.errors import ContextOverflow, RequestRefused


class ForeignEngine(Engine):
    """Pass all calls on to an engine, which its opener closes; of a refusal give the status alone."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.model = engine.model
        self.limits_context = engine.limits_context
        self.sampling = engine.sampling

    @property
    def context(self) -> int | None:
        """Return the size of the model's context, tokens."""
        return self._engine.context

    async def check(self) -> None:
        """Check that the engine can serve.

        Raises:
            EngineError: It cannot.
        """
        await self._engine.check()

    async def end(self, session: EngineSession) -> None:
        """End a session.

        Raises:
            EngineError: It cannot be ended properly.
        """
        await self._engine.end(session)

    async def count_tokens(self, request: ChatRequest) -> int | None:
        """Return the tokens of a prompt; None where they cannot be counted.

        Raises:
            RequestRefused: The chat template refuses the conversation.
        """
        return await self._engine.count_tokens(request)

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        """Return a reply.

        Raises:
            EngineError: The engine failed, or refuses the request.
        """
        try:
            return await self._engine.complete(request, session, emit)
        except ContextOverflow:  # its sentence is ours
            raise
        except RequestRefused as error:
            raise RequestRefused(f"the engine refuses this request ({error.status})", error.status) from None
