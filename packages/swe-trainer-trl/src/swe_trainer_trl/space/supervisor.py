"""The program in the container: serves HTTP, runs `swe-core run`, and pauses the Space after the run.

    python -m swe_trainer_trl.space.supervisor deployment.json

The supervisor listens before it starts anything, since the Hub gives up a Space that does not answer in time.
`/health` reports only that the supervisor runs. `/state` reports the state of the run if the key is given.
"""

from __future__ import annotations

import hmac
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
from aiohttp import web
from anyio.abc import ByteReceiveStream, Process

from swe_core.errors import ConfigError, SweError, UsageError, sentence
from swe_core.hub.client import TryLater
from swe_core.rollout.run_directory import RUN_FILE, RunDirectory
from swe_core.run.settings import Settings, load_settings
from swe_core.system.server_guard import GRACE
from swe_trainer_trl.hub.restore import restore
from swe_trainer_trl.space.manifest import KEY, KEY_HEADER, PORT, Manifest
from swe_trainer_trl.space.state import Phase, Said, State, phase_of

SPACE = "SPACE_ID"
"""Variable with the name of the Space; unset in a Job."""
RUN = "run"
"""Name of the run directory in the data directory."""

_LASTING = Path("/data")
"""Path of the persistent storage of a Space."""
_DRAIN = 5.0
"""Seconds to wait for the rest of the output after the end of the process."""
_STOP = GRACE + 20
"""Seconds within which a stopped run must end."""
_PAUSED = 120.0
"""Seconds to wait for the stop of a paused Space."""
_WAITS = (2.0, 4.0, 8.0, 16.0, 0.0)
"""Seconds to wait after each failed request to the Hub."""
_LONGEST = 1 << 20
"""Length in bytes after which an unfinished line is split."""


class Supervisor:
    """Runs the command of a deployment to its end, and serves its state over HTTP.

    Args:
        manifest: The content of `deployment.json`.
        data: Directory of the run directory. A run that exists there is resumed.
        environment: Environment of the run, with the key to `/state`, which the run itself does not get.
    """

    def __init__(self, manifest: Manifest, data: Path, environment: Mapping[str, str]) -> None:
        self._manifest = manifest
        self._run = data / RUN
        self._environment = environment
        self._key = environment.get(KEY, "")
        self._said = Said([environment[name] for name in manifest.secrets if environment.get(name)])
        self._ended: Phase | None = None
        self._code: int | None = None
        self._stop = anyio.Event()
        self.resumed = (self._run / RUN_FILE).is_file()

    def state(self) -> State:
        """Return the current state of the run."""
        phase, step = phase_of(self._run)
        return State(
            phase=self._ended or phase,
            step=step,
            resumed=self.resumed,
            exit_code=self._code,
            lines=self._said.lines,
        )

    def command(self) -> list[str]:
        """Return the arguments of `swe-core`, which start the run or resume that of an earlier container."""
        if self.resumed:
            return ["run", "--resume", str(self._run)]
        sets = [argument for text in self._manifest.sets for argument in ("--set", text)]
        return ["run", "--config", self._manifest.config, *sets, "--out", str(self._run)]

    async def run(self, port: int = PORT) -> int:
        """Serve HTTP on `port`, run the command, and pause the Space.

        Returns:
            The exit code of the run; 0 if a signal stopped it, since it can be resumed.
        """
        async with self._served(port), anyio.create_task_group() as tasks:
            tasks.start_soon(self._heed_signals)
            code = self._code = await self._go()
            if self._stop.is_set():
                self._ended, code = "stopped", 0
            else:
                self._ended = "done" if code == 0 else "failed"
                self._say(f"the run has ended with exit code {code}")
                await self._pause()
            tasks.cancel_scope.cancel()
        return code

    async def _go(self) -> int:
        try:
            return await self._train() if await self._restored() else 1
        except SweError as error:
            self._say(f"swe-core: error: {sentence(error)}")
            return 2 if isinstance(error, UsageError) else 1

    async def _train(self) -> int:
        self._run.parent.mkdir(parents=True, exist_ok=True)
        arguments = self.command()
        self._say(f"swe-core {' '.join(arguments)}")
        environment = {name: value for name, value in self._environment.items() if name != KEY}
        process = await anyio.open_process(
            [str(Path(sys.executable).with_name("swe-core")), *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,  # the supervisor alone passes on signals to its group, once
        )
        async with process, anyio.create_task_group() as tasks:
            tasks.start_soon(self._end, process)
            heard = anyio.Event()
            tasks.start_soon(self._hear, process.stdout, heard)
            code = await process.wait()
            with anyio.move_on_after(_DRAIN):  # a child of the process may hold the pipe open
                await heard.wait()
            tasks.cancel_scope.cancel()
        return code if code >= 0 else 128 - code

    async def _restored(self) -> bool:
        """Fetch the run from the Hub if it pushes checkpoints and the disk has no run.

        Returns:
            Whether the Hub answered. Otherwise the run must not start: if the Hub has a checkpoint, a new run
            would be refused or replace it.
        """
        settings = load_settings(Path(self._manifest.config), self._manifest.sets)
        if self.resumed or settings.push.to is None:
            return True
        for wait in _WAITS:
            try:
                step = await anyio.to_thread.run_sync(restore, settings.push.to, self._run)
            except TryLater as error:
                self._say(f"swe-core: error: {sentence(error)}")
                await anyio.sleep(wait)
            else:
                if step is not None:
                    self._require_same(settings)
                    self._say(f"restored step {step} from {settings.push.to!r}")
                    self.resumed = True
                return True
        return False

    def _require_same(self, settings: Settings) -> None:
        """Refuse to resume another run that pushes to the same name.

        Raises:
            ConfigError: The restored run has other settings.
        """
        recorded, wanted = RunDirectory.open(self._run).info.settings, settings.model_dump(mode="json")
        if settings.run.tasks is None:  # the run has recorded the name of the source that it found
            wanted["run"]["tasks"] = recorded["run"]["tasks"]
        if recorded != wanted:
            shutil.rmtree(self._run)
            raise ConfigError(
                f"{settings.push.to!r} has the checkpoints of a training with other settings: give push.to "
                "another name, or deploy the settings of that one"
            )

    async def _end(self, process: Process) -> None:
        """Pass the stop signal on, and kill the process before the Space kills the container."""
        await self._stop.wait()
        process.terminate()
        await anyio.sleep(_STOP)
        process.kill()

    async def _heed_signals(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                self._stop.set()

    async def _hear(self, stream: ByteReceiveStream | None, heard: anyio.Event) -> None:
        if stream is not None:
            async for line in _lines(stream):
                self._say(line)
        heard.set()

    def _say(self, text: str) -> None:
        shown = self._said.add(text)
        if shown is not None:
            sys.stdout.write(f"{shown}\n")
            sys.stdout.flush()

    async def _pause(self) -> None:
        """Pause this Space, so that it costs nothing, and wait for the stop signal.

        If the pause fails, the supervisor ends nevertheless.
        """
        space = self._environment.get(SPACE)
        if not space:
            return
        for wait in _WAITS:
            try:
                await anyio.to_thread.run_sync(_pause_space, space, abandon_on_cancel=True)
            except Exception as error:  # the boundary to a library on httpx or httpx2
                self._say(f"the Space {space!r} cannot be paused: {sentence(error)}")
                await anyio.sleep(wait)
            else:
                self._say(f"the Space {space!r} is paused")
                with anyio.move_on_after(_PAUSED):
                    await self._stop.wait()
                return

    @asynccontextmanager
    async def _served(self, port: int) -> AsyncIterator[None]:
        app = web.Application()
        app.add_routes(
            [web.get("/", _here), web.get("/health", _health), web.get("/state", self._answer_state)]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "0.0.0.0", port).start()
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    async def _answer_state(self, request: web.Request) -> web.Response:
        given = request.headers.get(KEY_HEADER, "").encode()
        if not self._key or not hmac.compare_digest(given, self._key.encode()):
            return web.json_response({"error": f"the header {KEY_HEADER} holds no valid key"}, status=403)
        return web.Response(body=self.state().model_dump_json().encode(), content_type="application/json")


async def _here(_request: web.Request) -> web.Response:
    return web.Response(text="swe-core is running. /health is open, /state requires the key.\n")


async def _health(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


async def _lines(stream: ByteReceiveStream) -> AsyncIterator[str]:
    """Yield the lines of a stream when they are complete. A line that is too long is split."""
    rest = b""
    async for data in stream:
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        if len(rest) > _LONGEST:
            yield rest.decode(errors="replace")
            rest = b""
    if rest:
        yield rest.decode(errors="replace")


def _pause_space(space: str) -> None:
    from huggingface_hub import HfApi

    HfApi().pause_space(space)


def data_directory(environment: Mapping[str, str], lasting: Path = _LASTING) -> Path:
    """Return the directory of the run directory, on persistent storage if available."""
    if lasting.is_dir() and os.access(lasting, os.W_OK):
        return lasting
    return Path(environment.get("HOME", "/tmp")) / "data"


def main(arguments: Sequence[str]) -> int:
    """Run the supervisor with the path of `deployment.json`. Return the exit code."""
    manifest = Manifest.model_validate_json(Path(arguments[0]).read_bytes())
    environment = dict(os.environ)
    return anyio.run(Supervisor(manifest, data_directory(environment), environment).run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
