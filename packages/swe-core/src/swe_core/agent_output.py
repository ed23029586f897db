"""What an agent's process prints, taken in as it comes: raw log, transcript, last error."""

from __future__ import annotations

from swe_core.api.agent import AgentEvent, AgentSpec
from swe_core.api.sandbox import Stream
from swe_core.store import RolloutFolder

MAX_LINE = 4 * 1024 * 1024
"""Bytes of one stdout line that are still parsed as an event; a longer one is only logged."""
STDERR_TAIL = 4000


class AgentOutput:
    """Splits an agent's output into lines, logs them and turns them into events; memory is bounded.

    Args:
        agent: Whose `parse_event` reads stdout.
        folder: Where the log and the transcript go.
    """

    def __init__(self, agent: AgentSpec, folder: RolloutFolder) -> None:
        self._agent = agent
        self._folder = folder
        self._line = bytearray()
        self._skipping = False
        self._tail = b""
        self.last_error: AgentEvent | None = None

    def feed(self, stream: Stream, chunk: bytes) -> None:
        """Take in one chunk of stdout or stderr."""
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
        """Take the last line as it is, whether or not it was ended."""
        if self._line:
            self._end_line()

    @property
    def stderr_tail(self) -> str:
        """The end of standard error, as text."""
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
            events = list(self._agent.parse_event(line))
        for event in events:
            self._folder.add_event(event)
            if event.kind == "error":
                self.last_error = event
            elif event.kind != "info":
                self.last_error = None
