"""AgentOutput: what an agent prints, as a log and as events."""

from __future__ import annotations

import io

from swe_core.api import agent_contract
from swe_core.api.agent import AgentEvent, AgentSpec
from swe_core.api.sandbox import Stream
from swe_core.rollout.run_directory import RolloutFolder

MAX_LINE = 4 * 1024 * 1024
"""Length of the longest stdout line that is parsed as an event, bytes; a longer one is only logged."""
STDERR_TAIL = 4000


class AgentOutput:
    """Logs an agent's output and turns its lines into events, with bounded memory.

    Args:
        agent: Its `parse_event` reads the lines of stdout.
        folder: Receives the log and the transcript.

    Attributes:
        last_error: The last event that is not `info`, if it is an error.
    """

    def __init__(self, agent: AgentSpec, folder: RolloutFolder) -> None:
        self._agent = agent
        self._folder = folder
        self._line = bytearray()
        self._skipping = False
        self._tail = b""
        self._begun: AgentEvent | None = None
        self._text = io.StringIO()
        self.last_error: AgentEvent | None = None

    def feed(self, stream: Stream, chunk: bytes) -> None:
        """Process one chunk of stdout or stderr."""
        self._folder.add_output(chunk)
        if stream == "stderr":
            self._tail = (self._tail + chunk)[-STDERR_TAIL:]
            return
        *whole, rest = chunk.split(b"\n")
        for piece in whole:
            self._extend(piece)
            self._end_line()
        self._extend(rest)

    def close(self) -> None:
        """Process the last line, even if it lacks a line end."""
        if self._line:
            self._end_line()
        self._end_text()

    @property
    def stderr_tail(self) -> str:
        """Return the end of standard error as text."""
        return self._tail.decode(errors="replace")

    def _extend(self, piece: bytes) -> None:
        if self._skipping:
            return
        self._line += piece
        if len(self._line) > MAX_LINE:
            self._skipping = True
            self._line.clear()

    def _end_line(self) -> None:
        line = self._line.decode(errors="replace")
        self._line.clear()
        if self._skipping:
            self._skipping = False
            events = [AgentEvent(kind="info", text=f"a line of more than {MAX_LINE} bytes was left out")]
        else:
            events = agent_contract.parse_event(self._agent, line)
        for event in events:
            self.add(event)

    def add(self, event: AgentEvent) -> None:
        """Add an event to the transcript. Pieces of a text are joined."""
        if event.kind == "error":
            self.last_error = event
        elif event.kind != "info":
            self.last_error = None
        if self._begun is not None and not (event.partial and event.kind == self._begun.kind):
            self._end_text()
        if not event.partial:
            self._folder.add_event(event)
            return
        self._begun = event
        self._text.write(event.text)
        if self._text.tell() > MAX_LINE:
            self._end_text()

    def _end_text(self) -> None:
        if self._begun is not None:
            self._folder.add_event(self._begun.model_copy(update={"text": self._text.getvalue()}))
        self._begun, self._text = None, io.StringIO()
