"""The rollouts' process: python -m swe_trainer_trl.rollouts.process READ WRITE, two descriptors of pipes.

It has an event loop of its own, so that the trainer never holds up an agent. It ends when the trainer says so
or is gone, and then every sandbox is closed.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.errors import SweError, sentence
from swe_core.hub.options import hub_extensions
from swe_core.run.components import load_plugins
from swe_core.run.execute import execute
from swe_core.run.plan import plan_run
from swe_core.run.settings import Settings
from swe_core.system.event_loop import run
from swe_core.system.redaction import RedactingFormatter, Redactor, redaction_scope
from swe_core.system.urls import base_url
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.rollouts.messages import Beat, Command, Failed, Report, Start, command, line
from swe_trainer_trl.rollouts.worker import Feeder
from swe_trainer_trl.server.health import dead

logger = logging.getLogger("swe_trainer_trl")


class Link:
    """The two pipes, seen from here.

    Args:
        read: Descriptor of what the trainer's process says.
        write: Descriptor of what it is told.
    """

    def __init__(self, read: int, write: int) -> None:
        for descriptor in (read, write):  # a process that outlives us must not keep the pipes open
            os.set_inheritable(descriptor, False)
        self._read = os.fdopen(read, "rb", buffering=0)
        self._write = write

    def start(self) -> Start:
        """The first message."""
        first = bytearray()
        while not first.endswith(b"\n"):
            byte = self._read.read(1)
            if not byte:
                raise EOFError("the trainer ended before it said what to do")
            first += byte
        message = command(bytes(first))
        if not isinstance(message, Start):
            raise EOFError(f"the trainer said {message.kind!r} first")
        return message

    async def commands(self) -> AsyncIterator[Command]:
        """All further messages; it ends when the trainer's process does."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), self._read
        )
        try:
            async for data in reader:
                yield command(data)
        finally:
            transport.close()

    def report(self, message: Report) -> None:
        """Say something; nobody hears it where the trainer is gone. Its process reads at once, always, so
        this does not block for long."""
        data = line(message)
        try:
            while data:
                data = data[os.write(self._write, data) :]
        except BrokenPipeError:
            return


class _Silent:
    """The display of a run whose progress the feeder logs."""

    def started(self, request: RolloutRequest) -> None:
        """Nothing to show."""

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Nothing to show."""

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Nothing to show."""

    def finished(self, rollout: Rollout) -> None:
        """Nothing to show."""


def main() -> int:
    """Run rollouts for the trainer on the other side of the pipes. Returns the exit code."""
    with redaction_scope() as redactor:
        return _main(redactor)


def _main(redactor: Redactor) -> int:
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter(redactor, "%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler])
    link = Link(int(sys.argv[1]), int(sys.argv[2]))
    try:
        start = link.start()
        _feed(start, link)
    except SweError as error:
        link.report(Failed(message=redactor.text(sentence(error)), traceback=""))
        return 1
    except BaseException as error:  # the boundary of the process: the trainer tells what happened here
        told = redactor.text(traceback.format_exc())
        link.report(Failed(message=redactor.text(sentence(error)), traceback=told))
        return 1
    return 0


def _feed(start: Start, link: Link) -> None:
    settings = Settings(**start.settings)
    plugins = load_plugins(settings.run)
    for module in plugins.manager.get_plugins():
        logging.getLogger(str(module.__name__).partition(".")[0]).setLevel(logging.INFO)
    link.report(Beat())  # each part of the start may take minutes: a data set, a bundle, a server that loads
    plan = plan_run(settings, plugins)
    link.report(Beat())
    journal = Journal(Path(start.journal))
    feeder = Feeder(
        start.options,
        journal,
        start.version,
        start.updates,
        link.commands(),
        link.report,
        partial(_dead, settings.run.engine_url),
    )

    def observe(requests: Sequence[RolloutRequest], notes: Sequence[str]) -> _Silent:
        link.report(Beat())
        for note in notes:
            logger.warning("%s", note)
        return _Silent()

    going = partial(execute, resume=True, lock=False, extensions=hub_extensions(settings.push))
    run(going, plan, plugins, Path(start.directory), observe, feeder)


def _dead(url: str | None) -> bool:
    """Whether the policy's server is dead."""
    return url is not None and dead(base_url(url).removesuffix("/v1")) is not None


if __name__ == "__main__":
    sys.exit(main())
