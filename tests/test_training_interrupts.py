"""Ctrl-C, twice, at several moments of a training's start: it ends at once, with everything that it started,
and without a traceback. What would end it in order hangs here."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from .test_training_input import NOWHERE, Command, copy, options
from .warm import Warm

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("local_sandbox")]

HANGING_IMPORT = """
import pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
class Hangs:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            while True:
                try:
                    pathlib.Path({marker!r}).touch()  # inside: the signal may come at once
                    time.sleep(1e6)
                except BaseException:
                    if not {swallows}:
                        raise
                    pathlib.Path({marker!r} + ".swallowed").touch()
sys.meta_path.insert(0, Hangs())
"""
HANGING_SERVER = """
import pathlib, signal, sys, time
import swe_core.system.server_guard as guard
signal.signal(signal.SIGINT, signal.default_int_handler)
guard.GRACE = 1e6
arguments = set(sys.orig_argv)
if "vllm.entrypoints.openai.api_server" in arguments and "swe_core.system.server_guard" not in arguments:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pathlib.Path({marker!r}).touch()
    time.sleep(1e6)
"""


@pytest.fixture
def command(tmp_path: Path, scratch: Path, warm: Warm) -> Iterator[Command]:
    found = Command(warm, tmp_path / "run", scratch, tmp_path / "stderr")
    yield found
    for process in found.started:
        if process.poll() is None:  # the test has failed
            process.kill()
            process.wait()


def interrupted_twice(
    command: Command, tmp_path: Path, plugin: str, *args: str, swallows: bool = False
) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "sitecustomize.py").write_text(plugin)
    marker = tmp_path / "marker"
    with command.importing(tmp_path / "path") as env:
        process = command.start(*args, env=env)
        command.until(marker.exists)
        process.send_signal(signal.SIGINT)
        if swallows:
            command.until((tmp_path / "marker.swallowed").exists)
        process.send_signal(signal.SIGINT)
        # The second may come after the end, where the system handles it: for a shell this is 130, too.
        assert command.end(process) in (130, -signal.SIGINT), command.said
    assert "interrupted" in command.said.splitlines()[-1]


@pytest.mark.parametrize(
    ("module", "swallows"),
    [
        ("swe_core.run.plan", False),
        ("torch", False),
        ("trl", True),
        ("swe_trainer_trl.trainer.train", False),
    ],
)
def test_interrupted_twice_during_an_import(
    command: Command, tmp_path: Path, tiny_model: Path, module: str, swallows: bool
) -> None:
    """Planning, torch, TRL."""
    plugin = HANGING_IMPORT.format(module=module, marker=str(tmp_path / "marker"), swallows=swallows)
    interrupted_twice(command, tmp_path, plugin, *options(NOWHERE, tiny_model), swallows=swallows)
    assert not command.out.exists()


def test_interrupted_twice_while_vllm_starts(command: Command, tmp_path: Path, tiny_model: Path) -> None:
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed")
    model = copy(tiny_model, tmp_path / "model")
    plugin = HANGING_SERVER.format(marker=str(tmp_path / "marker"))
    interrupted_twice(command, tmp_path, plugin, *options(None, model))
    assert (command.out / "train.sqlite").exists()  # so that it can be resumed
