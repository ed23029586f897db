"""The rollout process: python -m swe_trainer_trl.rollouts.process READ WRITE, two descriptors of pipes.

It has an event loop of its own, so that the trainer never delays an agent. It ends on the trainer's request,
or with the trainer, and then closes every sandbox.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import traceback
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from swe_core.api.records import Rollout, Turn
from swe_core.api.rollout_request import Phase, RolloutRequest
from swe_core.errors import SweError, sentence
from swe_core.hub.extensions import hub_extensions
from swe_core.run.components import load_plugins
from swe_core.run.execute import execute
from swe_core.run.plan import plan_run
from swe_core.run.settings import Settings
from swe_core.run.task_selection import selection
from swe_core.system.event_loop import run
from swe_core.system.redaction import RedactingFormatter, Redactor, redaction_scope
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.journal.journal import Journal
from swe_trainer_trl.rollouts.held_out import held_out
from swe_trainer_trl.rollouts.messages import Beat, Command, Failed, Report, Start, command, line
from swe_trainer_trl.rollouts.worker import RolloutFeeder
from swe_trainer_trl.server.health import dead
from swe_trainer_trl.server.urls import server_urls

logger = logging.getLogger("swe_trainer_trl")


class RolloutLink:
    """The pipes to the trainer.

    Args:
        read: Descriptor of the pipe with commands.
        write: Descriptor of the pipe for reports.
    """

    def __init__(self, read: int, write: int) -> None:
        for descriptor in (read, write):  # a surviving child must not keep the pipes open
            os.set_inheritable(descriptor, False)
        self._read = os.fdopen(read, "rb", buffering=0)
        self._write = write

    def start(self) -> Start:
        """Return the first message."""
        first = bytearray()
        while not first.endswith(b"\n"):
            byte = self._read.read(1)
            if not byte:
                raise EOFError("the trainer ended before it sent a message")
            first += byte
        message = command(bytes(first))
        if not isinstance(message, Start):
            raise EOFError(f"the trainer's first message is {message.kind!r}, but must be 'start'")
        return message

    async def commands(self) -> AsyncIterator[Command]:
        """Yield all further messages, until the trainer's process ends."""
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
        """Send a message, if the trainer still exists.

        The trainer's process always reads at once, so this does not block for long.
        """
        data = line(message)
        try:
            while data:
                data = data[os.write(self._write, data) :]
        except BrokenPipeError:
            return


class _Silent:
    """An observer without a display: the feeder logs the progress."""

    def started(self, request: RolloutRequest) -> None:
        """Nothing to show."""

    def phase(self, rollout_id: str, phase: Phase) -> None:
        """Nothing to show."""

    def turn(self, rollout_id: str, turn: Turn) -> None:
        """Nothing to show."""

    def finished(self, rollout: Rollout) -> None:
        """Nothing to show."""


def main() -> int:
    """Run rollouts for the trainer on the other side of the pipes; return the exit code."""
    with redaction_scope() as redactor:
        return _main(redactor)


def _main(redactor: Redactor) -> int:
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter(redactor, "%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    logging.basicConfig(handlers=[handler])
    link = RolloutLink(int(sys.argv[1]), int(sys.argv[2]))
    try:
        start = link.start()
        _feed(start, link)
    except SweError as error:
        link.report(Failed(message=redactor.text(sentence(error)), traceback=""))
        return 1
    except BaseException as error:  # the boundary of the process: the trainer reports it
        told = redactor.text(traceback.format_exc())
        link.report(Failed(message=redactor.text(sentence(error)), traceback=told))
        return 1
    return 0


def _feed(start: Start, link: RolloutLink) -> None:
    settings = Settings(**start.settings)
    plugins = load_plugins(settings.run)
    for module in plugins.manager.get_plugins():
        logging.getLogger(str(module.__name__).partition(".")[0]).setLevel(logging.INFO)
    link.report(Beat())  # each part of the start may take minutes: a data set, a bundle, a loading server
    plan = plan_run(settings, plugins)
    config = plan.worker.config
    evaluated = (
        held_out(plan, config, lambda settings: selection(settings, plugins))
        if isinstance(config, TRLConfig)
        else []
    )
    plan = replace(plan, tasks=[*plan.tasks, *evaluated])
    link.report(Beat())
    journal = Journal(Path(start.journal))
    feeder = RolloutFeeder(
        start.options,
        journal,
        start.version,
        start.updates,
        link.commands(),
        server_urls(settings.run.engine_url or ""),
        link.report,
        lambda url: dead(url) is not None,
        [task.instance_id for task in evaluated],
    )

    def observe(requests: Sequence[RolloutRequest], notes: Sequence[str]) -> _Silent:
        link.report(Beat())
        for note in notes:
            logger.warning("%s", note)
        return _Silent()

    going = partial(execute, resume=True, lock=False, extensions=hub_extensions(settings.push))
    fed = run(going, plan, plugins, Path(start.directory), observe, feeder)
    if fed.stopped is not None:
        raise fed.stopped


if __name__ == "__main__":
    sys.exit(main())
