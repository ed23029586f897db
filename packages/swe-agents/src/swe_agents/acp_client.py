"""Session: one session of the Agent Client Protocol, with the protocol's own Python library."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import anyio
from acp import PROTOCOL_VERSION, RequestError, text_block
from acp.client.connection import ClientSideConnection
from acp.interfaces import Client
from acp.schema import (
    AgentMessageChunk,
    AgentThoughtChunk,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    Implementation,
    PermissionOption,
    RequestPermissionResponse,
    ToolCallProgress,
    ToolCallStart,
    ToolCallUpdate,
)

from swe_core.api.agent import AgentConsole, AgentDialogue, AgentEvent, EventKind
from swe_core.errors import AgentError

_STARTING = 120.0
"""Seconds until an agent must have opened a session."""


class Ended(Exception):
    """The agent exited before it answered."""


class Session:
    """One session, which survives the agent's process.

    Args:
        permissions: The answer to permission requests.

    Attributes:
        prompted: Whether a turn was begun that has not ended.
    """

    def __init__(self, dialogue: AgentDialogue, cwd: str, permissions: Literal["allow", "reject"]) -> None:
        self.prompted = False
        self._dialogue = dialogue
        self._cwd = cwd
        self._client = _Client(dialogue, permissions)
        self._id: str | None = None
        self._connection: ClientSideConnection | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[bool]:
        """Start the agent, and open the earlier session, or a new one if the agent has lost it.

        Yields:
            Whether it is the earlier one.

        Raises:
            AgentError: The agent opens no session.
            Ended: The agent exited.
        """
        async with self._dialogue.start() as console:
            # What the client does not offer (files, terminals) it does not implement either.
            connection = ClientSideConnection(cast(Client, self._client), _LineTransport(console))
            try:
                with _errors(), anyio.fail_after(_STARTING):
                    loaded = await self._begin(connection)
                self._connection = connection
                yield loaded
            except TimeoutError:
                raise AgentError(
                    f"the agent opened no session within {_STARTING:g} s: check that its command speaks the "
                    "Agent Client Protocol"
                ) from None
            finally:
                self._connection = None
                self._client.flush()
                with anyio.CancelScope(shield=True):
                    await connection.close()

    async def prompt(self, text: str) -> str:
        """Take one turn, and return why it stopped.

        Once a budget is spent, the turn is cancelled.

        Raises:
            AgentError: The agent answers an error.
            Ended: The agent exited.
        """
        connection, id = self._connection, self._id
        if connection is None or id is None:
            raise RuntimeError("the session is not open")
        self.prompted = True

        async def cancel_when_over() -> None:
            await self._dialogue.over()
            await connection.cancel(session_id=id)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cancel_when_over)
            problem: Exception | None = None
            try:
                with _errors():
                    reply = await connection.prompt(session_id=id, prompt=[text_block(text)])
            except (AgentError, Ended) as error:  # the task group would wrap it
                problem = error
            tasks.cancel_scope.cancel()
        self._client.flush()
        if problem is not None:
            raise problem
        self.prompted = False
        return reply.stop_reason

    async def _begin(self, connection: ClientSideConnection) -> bool:
        agent = await connection.initialize(
            PROTOCOL_VERSION, ClientCapabilities(), Implementation(name="swe-core", version="1")
        )
        if agent.protocol_version != PROTOCOL_VERSION:
            raise AgentError(
                f"the agent speaks version {agent.protocol_version} of the Agent Client Protocol, and this "
                f"client {PROTOCOL_VERSION}"
            )
        can = agent.agent_capabilities
        if self._id is not None and can is not None and can.load_session:
            self._client.muted = True  # the agent tells the whole session again
            try:
                await connection.load_session(cwd=self._cwd, session_id=self._id)
                return True
            except RequestError:  # such as a session that it had not written yet
                pass
            finally:
                self._client.muted = False
        self._id = (await connection.new_session(cwd=self._cwd)).session_id
        return False


class _errors:  # noqa: N801 (a context manager in place of a function: it must not be a generator)
    """Turn the library's errors into ours."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ConnectionError):
            raise Ended from error
        if isinstance(error, RequestError):
            more = f" ({json.dumps(error.data)})" if error.data else ""
            raise AgentError(f"the agent answered with the error {error}{more}"[:1000]) from None


class _LineTransport:
    """Messages as lines of JSON. Other lines are noise of the agent: they are in its log."""

    def __init__(self, console: AgentConsole) -> None:
        self._console = console
        self._lines = console.lines()

    async def send(self, message: dict[str, Any]) -> None:
        await self._console.send(json.dumps(message).encode() + b"\n")

    async def receive(self) -> dict[str, Any] | None:
        async for line in self._lines:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if isinstance(message, dict):
                return message
        return None

    async def close(self) -> None:
        """The console closes with its context."""


class _Client:
    """Answers the agent's requests, and records what it tells as events.

    Attributes:
        muted: Whether updates are ignored.
    """

    def __init__(self, dialogue: AgentDialogue, permissions: Literal["allow", "reject"]) -> None:
        self.muted = False
        self._dialogue = dialogue
        self._permissions = permissions
        self._kind: EventKind = "text"
        self._text = ""
        self._calls: dict[str, str] = {}

    def flush(self) -> None:
        """Record the text so far."""
        if self._text:
            self._dialogue.record(AgentEvent(kind=self._kind, text=self._text))
        self._text = ""

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **kwargs: Any
    ) -> RequestPermissionResponse:
        fitting = [option for option in options if option.kind.startswith(self._permissions)]
        if not fitting:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        chosen = min(fitting, key=lambda option: option.kind.endswith("always"))
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=chosen.option_id)
        )

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        if self.muted:
            return
        if isinstance(update, AgentMessageChunk | AgentThoughtChunk):
            kind: EventKind = "text" if isinstance(update, AgentMessageChunk) else "reasoning"
            if kind != self._kind:
                self.flush()
            self._kind = kind
            self._text += str(getattr(update.content, "text", ""))
        elif isinstance(update, ToolCallStart | ToolCallProgress):
            self.flush()
            self._call(update)

    def _call(self, update: ToolCallStart | ToolCallProgress) -> None:
        """Record a call once its input is known, and its result once it has ended."""
        id, tool = update.tool_call_id, update.title or self._calls.get(update.tool_call_id)
        if update.raw_input and id not in self._calls:
            self._dialogue.record(AgentEvent(kind="tool_call", text=_text(update.raw_input), tool=tool))
            self._calls[id] = tool or ""
        if update.status in ("completed", "failed"):
            if id not in self._calls:  # some agents do not tell the input
                self._dialogue.record(AgentEvent(kind="tool_call", text=tool or "", tool=tool))
                self._calls[id] = tool or ""
            shown = [part.content for part in update.content or () if part.type == "content"]
            said = "\n".join(str(getattr(content, "text", "")) for content in shown)
            text = said or _text(update.raw_output)
            self._dialogue.record(AgentEvent(kind="tool_result", text=text, tool=self._calls.get(id, tool)))


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
