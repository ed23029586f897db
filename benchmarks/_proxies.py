"""The proxies that `interception` compares: each a process of its own, started, asked and measured alike."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from swe_core.errors import SweError
from swe_core.system.ports import free_port

HERE = Path(__file__).parent
_START_SECONDS = 120.0
_LITELLM_KEY = "sk-of-no-worth"
_LIBC = ctypes.CDLL(None, use_errno=True)


def processor_clock(pid: int) -> int:
    """The clock of a process's processor time, for `time.clock_gettime`.

    Raises:
        SweError: There is no such process.
    """
    clock = ctypes.c_int()
    if _LIBC.clock_getcpuclockid(pid, ctypes.byref(clock)) != 0:
        raise SweError(f"the process {pid} has no processor clock")
    return clock.value


class Measured:
    """A running process, and what it has used so far."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._process = process
        self._errors = errors
        self._clock = processor_clock(process.pid)

    def cpu(self) -> float:
        """Processor time of all its threads since it started, user and system, seconds."""
        return time.clock_gettime(self._clock)

    def memory(self) -> float:
        """What it holds of the machine's memory, MB."""
        return self._status("VmRSS")

    def peak(self) -> float:
        """The most that it ever held of the machine's memory, MB."""
        return self._status("VmHWM")

    def _status(self, name: str) -> float:
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        (found,) = [line for line in lines if line.startswith(name)]
        return int(found.split()[1]) / 1024

    def say(self, line: str) -> None:
        """Write one line to its standard input."""
        stdin = self._process.stdin
        if stdin is not None:
            stdin.write(line + "\n")
            stdin.flush()

    def read(self) -> str:
        """The next line of its standard output.

        Raises:
            SweError: It has ended; the message has its last words.
        """
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise SweError(f"it ended: {self.last_words()}")
        return line

    def ended(self) -> bool:
        """Whether it runs no more."""
        return self._process.poll() is not None

    def last_words(self) -> str:
        """The last line that it wrote to standard error."""
        self._errors.seek(0)
        return (self._errors.read().strip().splitlines() or ["it said nothing"])[-1]


@contextmanager
def process(
    command: Sequence[str], cores: Collection[int], env: Mapping[str, str] | None = None, talks: bool = True
) -> Iterator[Measured]:
    """`command`, running on `cores` only until the context is left.

    Args:
        talks: Whether its standard output is read; else it goes where its errors go.
    """
    with tempfile.TemporaryFile("w+") as errors:
        started = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if talks else errors,
            stderr=errors,
            text=True,
            env={**os.environ, **(env or {})},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        try:
            yield Measured(started, errors)
        finally:
            started.kill()
            started.communicate()


class Proxy:
    """A proxy that runs, ready to answer."""

    def __init__(self, measured: Measured) -> None:
        self.measured = measured

    def open(self, count: int) -> list[tuple[str, str]]:
        """Register `count` new rollouts and unregister those before; the base URL and key of each."""
        self.measured.say(str(count))
        return [(url, key) for url, key in json.loads(self.measured.read())]


class LiteLLM(Proxy):
    """Knows no rollouts: one endpoint for all."""

    def __init__(self, measured: Measured, url: str) -> None:
        super().__init__(measured)
        self._url = url

    def open(self, count: int) -> list[tuple[str, str]]:
        return [(f"{self._url}/v1", _LITELLM_KEY)] * count


@contextmanager
def swe_core(
    engine: str, upstream: str, tokenizer: Path, folder: Path, cores: Collection[int]
) -> Iterator[Proxy]:
    """Our server with one of its engines."""
    script = str(HERE / "_proxy_swe_core.py")
    with process([sys.executable, script, engine, upstream, str(tokenizer), str(folder)], cores) as measured:
        yield Proxy(measured)


@contextmanager
def verifiers(
    python: Path, mode: str, upstream: str, tokenizer: Path, cores: Collection[int]
) -> Iterator[Proxy]:
    """verifiers' server with one of its clients, "relay" or "train"."""
    script = str(HERE / "_proxy_verifiers.py")
    with process([str(python), script, mode, upstream, str(tokenizer)], cores) as measured:
        yield Proxy(measured)


@contextmanager
def openenv(python: Path, upstream: str, cores: Collection[int]) -> Iterator[Proxy]:
    """OpenEnv's capture server."""
    script = str(HERE / "_proxy_openenv.py")
    with process([str(python), script, upstream], cores) as measured:
        yield Proxy(measured)


@contextmanager
def litellm(python: Path, upstream: str, folder: Path, cores: Collection[int]) -> Iterator[Proxy]:
    """litellm's proxy.

    Raises:
        SweError: It does not get ready.
    """
    model = {"model": "openai/policy", "api_base": f"{upstream}/v1", "api_key": "none"}
    config = folder / "litellm.yaml"  # JSON is YAML
    config.write_text(
        json.dumps(
            {
                "model_list": [{"model_name": "policy", "litellm_params": model}],
                "general_settings": {"master_key": _LITELLM_KEY},
            }
        )
    )
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        str(python.with_name("litellm")),
        "--config",
        str(config),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    with process(command, cores, env, talks=False) as measured:
        _wait_for(f"{url}/health/liveliness", measured)
        yield LiteLLM(measured, url)


def _wait_for(url: str, measured: Measured) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and not measured.ended():
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
        else:
            return
    raise SweError(f"it did not get ready: {measured.last_words()}")
