"""Which server can run here, and how it is started and stopped."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import httpx
from pydantic import BaseModel, ConfigDict

from swe_core.system.ports import free_port
from swe_core.system.server_guard import GRACE

Kind = Literal["vllm", "transformers"]
CONTEXT = 32_768
"""Tokens that prompt and completion may have together."""
MODEL = "tiny-qwen3"
"""The name that the server knows its model by."""
FRUGAL: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # more only wait for each other on a small model
    "TORCH_COMPILE_DISABLE": "1",  # compiling what draws samples takes longer than all that tests sample
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # no process of its own for the worker, which imports all again
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables with which vLLM, or a trainer, starts soon and takes little of a CPU, for a tiny model."""

_MEMORY = 5 * 2**30
"""Bytes that vLLM wants free: it takes 3 GB, and the tests want some too."""
_START = {"vllm": 300.0, "transformers": 120.0}
"""Seconds until a server is given up, on a machine that has other work."""
_MODULES = {
    "vllm": "vllm.entrypoints.openai.api_server",
    "transformers": "swe_testing.serving.hf_server",
}
_INSTALLED = ("torch", "transformers", "trl")


class StartFailed(Exception):
    """A server that does not serve; the sentence quotes what it said last."""


class TokenServer(BaseModel):
    """A server that takes and gives token ids, as vLLM does.

    Args:
        url: Its base URL, without `/v1`.
        model: The name to ask for.
        directory: The model's files.
        kind: What serves.
        why: Why this and not the other, half a sentence.
        pid: The process to end it with, which leads its process group.
        seconds: From its start to its first reply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    model: str
    directory: Path
    kind: Kind
    why: str
    pid: int
    seconds: float


def missing() -> str | None:
    """What is not installed that a tiny model needs; None where it can be made."""
    absent = [name for name in _INSTALLED if find_spec(name) is None]
    return f"{', '.join(absent)} not installed (`make test` installs them)" if absent else None


def obstacle() -> str | None:
    """Why vLLM's CPU build cannot run here, half a sentence; None where it may."""
    if find_spec("vllm") is None:
        return "vllm is not installed"
    if "avx512f" not in _read("/proc/cpuinfo"):
        return "the processor has no AVX-512"
    available = [line.split()[1] for line in _read("/proc/meminfo").splitlines() if "MemAvailable" in line]
    if available and int(available[0]) * 1024 < _MEMORY:
        return f"less than {_MEMORY // 2**30} GiB of memory are free"
    return None


def start(
    directory: Path, home: Path, tests: int, forced: Kind | None = None, port: int | None = None
) -> TokenServer:
    """Serve the model in `directory`: by vLLM where it runs, else by the stand-in.

    Args:
        home: Where logs and scratch files go.
        tests: The process that the server must not outlive.
        forced: This server and no other.
        port: None is a free one.

    Raises:
        StartFailed: No server could be started, or not the forced one.
    """
    why = obstacle() if forced is None else "SWE_TEST_ENGINE says so"
    if forced is None and why is None:
        try:
            return _started("vllm", directory, home, tests, "this machine can run it", port)
        except StartFailed as error:
            why = str(error)
    if forced == "vllm" and (cannot := obstacle()) is not None:
        raise StartFailed(f"SWE_TEST_ENGINE is 'vllm', but {cannot}")
    return _started(forced or "transformers", directory, home, tests, str(why), port)


def stop(pid: int) -> None:
    """End the server that `pid` keeps, and wait for it."""
    with suppress(ProcessLookupError):
        with os.fdopen(os.pidfd_open(pid)) as keeper:
            os.kill(pid, signal.SIGTERM)
            select.select([keeper], [], [], GRACE + 5)


def last_words(server: TokenServer, home: Path) -> str | None:
    """What `server` said before it ended by itself; None where it runs."""
    try:
        keeper = os.pidfd_open(server.pid)
    except ProcessLookupError:
        return _said(home, server.kind)
    with os.fdopen(keeper):
        return _said(home, server.kind) if select.select([keeper], [], [], 0)[0] else None


def _started(kind: Kind, directory: Path, home: Path, tests: int, why: str, port: int | None) -> TokenServer:
    begun = time.monotonic()
    port = port or free_port()
    pid = _spawn(str(tests), *_command(kind, directory, port), log=home / f"{kind}.log")
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, pid, begun + _START[kind])
        warm = {"model": MODEL, "prompt": [1], "max_tokens": 2}
        httpx.post(f"{url}/v1/completions", json=warm, timeout=_START[kind]).raise_for_status()
    except (StartFailed, httpx.HTTPError) as error:
        stop(pid)
        raise StartFailed(f"{kind} did not start: {error}; it said {_said(home, kind)!r}") from error
    except BaseException:
        stop(pid)
        raise
    seconds = time.monotonic() - begun
    return TokenServer(
        url=url, model=MODEL, directory=directory, kind=kind, why=why, pid=pid, seconds=seconds
    )


def _spawn(*arguments: str, log: Path) -> int:
    """The pid of a keeper with these arguments, in a session of its own."""
    output = (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    silent = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "swe_core.system.server_guard", *arguments],
        {**os.environ, **_environment(log.parent)},
        file_actions=[silent, output, (os.POSIX_SPAWN_DUP2, 1, 2)],
        setsid=True,
    )


def _command(kind: Kind, directory: Path, port: int) -> list[str]:
    module = {
        "vllm": "vllm.entrypoints.openai.api_server",
        "transformers": "swe_testing.serving.hf_server",
    }[kind]
    command = [sys.executable, "-m", module, "--model", str(directory), "--served-model-name", MODEL]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(CONTEXT)]
    if kind == "vllm":
        command += ["--dtype", "float32", "--max-num-seqs", "16", "--enforce-eager"]
        command += ["--logprobs-mode", "processed_logprobs"]
        # vLLM on CPU dies of a request with a seed whose prompt it takes in parts: take all prompts whole.
        command += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(CONTEXT)]
    return command


def _environment(home: Path) -> Mapping[str, str]:
    return {**FRUGAL, "VLLM_SERVER_DEV_MODE": "1", "TMPDIR": str(home)}  # the mode has /pause and its like


def _wait(url: str, pid: int, deadline: float) -> None:
    """Until it is healthy, which no event says."""
    with os.fdopen(os.pidfd_open(pid)) as keeper:
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/health", timeout=5).is_success:
                    return
            if select.select([keeper], [], [], 0.2)[0]:
                raise StartFailed("it ended")
        raise StartFailed("it is not healthy in time")


def _said(home: Path, kind: Kind) -> str:
    """The last line of a server's log that names an error, or else the last one."""
    log = home / f"{kind}.log"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return ((errors or lines or [""])[-1])[:300]


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text()
    return ""
