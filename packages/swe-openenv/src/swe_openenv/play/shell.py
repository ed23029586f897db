"""Shell: the calls of `inside/call.sh` through one tool of an episode, within the tool's own limits."""

from __future__ import annotations

from swe_core.errors import SandboxBroken, SandboxDied, SandboxError
from swe_core.system.printable import one_line
from swe_openenv.play.calls import OVERHEAD, SAMPLE, SUPERVISE, Answer, Call, Garbled, encoded
from swe_openenv.play.episode import Episode, ServerRefused
from swe_openenv.play.replies import ShellTool

SIZES = ((96 * 1024, 192 * 1024), (24 * 1024, 24 * 1024), (12 * 1024, 6 * 1024), (12 * 1024, 1024))
"""Characters of a command and bytes of output that tools may take, from the best to the least that is useful.
No Linux takes an argument of more than 128 KiB."""


class Shell:
    """A shell inside an environment.

    Args:
        tool: The tool that runs commands.
    """

    def __init__(self, episode: Episode, tool: ShellTool) -> None:
        self._episode = episode
        self._tool = tool
        self._command, self._room = SIZES[-1]
        self._base = ""
        self.name = f"the tool {tool.name!r} of {episode.name}"

    @property
    def chunk(self) -> int:
        """Return the number of bytes that one call can carry."""
        return (self._command - OVERHEAD) * 3 // 4

    async def prepare(self, name: str, home: str, workdir: str) -> None:
        """Find the tool's limits, and make the directories.

        Raises:
            SandboxError: The tool runs no POSIX shell with the usual programs, or a directory is missing.
        """
        why = ""
        for command, room in SIZES:
            padding = "-" * (command - OVERHEAD)
            try:
                answer = await self._call(room, "probe", padding)
            except (ServerRefused, Garbled) as error:
                why = str(error)
                continue
            sent = sum(len(content) for _, _, content in answer.news[""].chunks)
            if (answer.padding, sent) == (len(padding), room):
                self._command, self._room = command, room
                break
            why = "it changes commands or their output"
        else:
            raise SandboxError(
                f"{self.name} does not run shell commands in full: {why}; name another with "
                "--set sandbox.openenv.tool=NAME"
            )
        answer = await self.ask("setup", name, home, workdir)
        if answer.failure is not None or not answer.base:
            raise SandboxError(
                f"{self.name} cannot be worked with: {answer.failure or 'it has no place for files'}"
            )
        self._base = answer.base

    async def put(self, mark: str, file: str, data: bytes) -> None:
        """Append `data` to a file of a command, in as many calls as it takes.

        Raises:
            SandboxError: It cannot be written.
        """
        for start in range(0, len(data), self.chunk):
            answer = await self.ask("put", mark, file, encoded(data[start : start + self.chunk]))
            self._refuse_failed(answer)

    async def run(self, mark: str, command: bytes, stdin: bytes, over: list[str]) -> Answer:
        """Start a command; the answer has what it did at once.

        Args:
            over: Marks of ended commands, whose files are removed.

        Raises:
            SandboxError: It cannot be started.
        """
        inline = [encoded(command), encoded(stdin)]
        if len(command) + len(stdin) > self.chunk:
            for number, (file, data) in enumerate((("command", command), ("in", stdin))):
                if len(data) > self.chunk // 2:
                    await self.put(mark, file, data)
                    inline[number] = "-"
        answer = await self.ask("run", mark, *inline, SUPERVISE, " ".join(over))
        self._refuse_failed(answer)
        return answer

    async def ask(self, mode: str, *arguments: str) -> Answer:
        """Make a call.

        Raises:
            SandboxError: The server refused the call, or its reply was lost. It may have been carried out.
            SandboxBroken: The code inside has removed or replaced what the call needs.
            SandboxDied: The episode is over, or the tool runs no commands any more.
        """
        try:
            return await self._call(self._room, mode, *arguments)
        except ServerRefused as error:  # for reasons of its own, as far as anyone knows
            raise SandboxError(f"{self.name} did not run a command: {error}") from None
        except Garbled as error:
            raise await self._cause(error) from None

    async def _cause(self, garbled: Garbled) -> SandboxError:
        """Return the error for a reply without an answer.

        Whose fault it is, is asked with a call that needs no more than the tool's own shell: only that shell
        can prove that the code inside has taken the programs away.
        """
        lost = f"{self.name} did not answer a command: {garbled}"
        call = Call(["0", "", "check"])
        try:
            answer = call.answer(await self._ask_tool(call.in_place))
        except (Garbled, ServerRefused) as error:
            return SandboxDied(f"{self.name} no longer runs commands: {error}")
        if answer.missing:
            names = ", ".join(sorted(answer.missing))
            return SandboxBroken(f"the code inside broke {self.name}: it removed {one_line(names)}")
        if answer.sample not in ("", SAMPLE):
            return SandboxBroken(f"the code inside broke {self.name}: it replaced sh, head, tail or base64")
        return SandboxError(lost)

    async def _call(self, room: int, mode: str, *arguments: str) -> Answer:
        call = Call([str(room), self._base, mode, *arguments])
        return call.answer(await self._ask_tool(call.command))

    async def _ask_tool(self, command: str) -> object:
        return await self._episode.call(self._tool.name, {self._tool.parameter: command})

    def _refuse_failed(self, answer: Answer) -> None:
        if answer.failure is not None:
            raise SandboxError(f"{self.name} cannot start a command: {answer.failure}")
