"""Start and stop vLLM's CPU build for tests."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import httpx
from pydantic import BaseModel, ConfigDict

from swe_core.system.ports import free_port
from swe_core.system.server_guard import GRACE

CONTEXT = 32_768
"""Tokens that prompt and completion may have together."""
MODEL = "tiny-qwen3"
"""Name of the served model."""
FRUGAL: Mapping[str, str] = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",  # more threads wait for each other on a small model
    "TORCH_COMPILE_DISABLE": "1",  # compilation takes longer than all sampling of the tests
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # a worker process would import everything again
    "VLLM_NO_USAGE_STATS": "1",
}
"""Environment that lets vLLM or a trainer start fast and use little CPU, for a tiny model."""

_MEMORY = 5 * 2**30
"""Bytes of free memory that vLLM needs: it takes 3 GB, and the tests take some too."""
_START = 300.0
"""Seconds until a server that does not start is given up, on a machine that has other work."""
_LOG = "vllm.log"
_ENDPOINTS = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""What adds /pause, /resume and /collective_rpc, and with `--enable-lora` /v1/load_lora_adapter."""
_INSTALLED = ("torch", "transformers", "trl")


class StartFailed(Exception):
    """The server did not start; the message quotes its log."""


class TokenServer(BaseModel):
    """A running vLLM server.

    Args:
        url: Its base URL, without `/v1`.
        model: Name of the served model.
        directory: The model's files.
        pid: Process that ends the server when it ends; it leads the server's process group.
        seconds: From the start to the first reply.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    model: str
    directory: Path
    pid: int
    seconds: float


def missing() -> str | None:
    """Return which packages that a tiny model needs are not installed; None where all are."""
    absent = [name for name in _INSTALLED if find_spec(name) is None]
    return f"{', '.join(absent)} not installed (`make test` installs them)" if absent else None


def obstacle() -> str | None:
    """Return why vLLM's CPU build cannot run here, half a sentence; None where it can."""
    if find_spec("vllm") is None:
        return "vllm is not installed"
    if "avx2" not in _read("/proc/cpuinfo"):
        return "the processor has no AVX2"
    available = [line.split()[1] for line in _read("/proc/meminfo").splitlines() if "MemAvailable" in line]
    if available and int(available[0]) * 1024 < _MEMORY:
        return f"less than {_MEMORY // 2**30} GiB of memory are free"
    return None


def start(
    directory: Path, home: Path, tests: int, port: int | None = None, more: Sequence[str] = ()
) -> TokenServer:
    """Serve the model in `directory` with vLLM.

    Args:
        home: Directory of the log and of scratch files.
        tests: Pid of the test process. The server ends when this process ends.
        port: None takes a free port.
        more: Further arguments of vLLM.

    Raises:
        StartFailed: The server exited, or did not become healthy in time.
    """
    begun = time.monotonic()
    port = port or free_port()
    pid = _spawn(str(tests), *_command(directory, port), *more, home=home)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, pid, begun + _START)
        warm = {"model": MODEL, "prompt": [1], "max_tokens": 2}
        httpx.post(f"{url}/v1/completions", json=warm, timeout=_START).raise_for_status()
    except (StartFailed, httpx.HTTPError) as error:
        stop(pid)
        raise StartFailed(f"vLLM did not start: {error}; its log says {_error_in_log(home)!r}") from error
    except BaseException:  # also cancellation: clean up, then raise
        stop(pid)
        raise
    seconds = time.monotonic() - begun
    return TokenServer(url=url, model=MODEL, directory=directory, pid=pid, seconds=seconds)


def stop(pid: int) -> None:
    """End the server of the guard process `pid`, and wait for it."""
    with suppress(ProcessLookupError):
        with os.fdopen(os.pidfd_open(pid)) as guard:
            os.kill(pid, signal.SIGTERM)
            select.select([guard], [], [], GRACE + 5)


def exit_message(server: TokenServer, home: Path) -> str | None:
    """Return the last error in the log of a server that has exited; None while it runs."""
    try:
        guard = os.pidfd_open(server.pid)
    except ProcessLookupError:
        return _error_in_log(home)
    with os.fdopen(guard):
        return _error_in_log(home) if select.select([guard], [], [], 0)[0] else None


def _spawn(*arguments: str, home: Path) -> int:
    """Start a guard process with these arguments in a session of its own, and return its pid."""
    output = (os.POSIX_SPAWN_OPEN, 1, str(home / _LOG), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    silent = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "swe_core.system.server_guard", *arguments],
        {**os.environ, **FRUGAL, **_ENDPOINTS, "TMPDIR": str(home)},
        file_actions=[silent, output, (os.POSIX_SPAWN_DUP2, 1, 2)],
        setsid=True,
    )


def _command(directory: Path, port: int) -> list[str]:
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(directory)]
    command += ["--served-model-name", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-num-seqs", "16", "--enforce-eager"]
    command += ["--logprobs-mode", "processed_logprobs", "--max-model-len", str(CONTEXT)]
    # vLLM on CPU crashes on a seeded request whose prompt is chunked.
    return [*command, "--no-enable-chunked-prefill", "--max-num-batched-tokens", str(CONTEXT)]


def _wait(url: str, pid: int, deadline: float) -> None:
    """Poll until the server is healthy."""
    with os.fdopen(os.pidfd_open(pid)) as guard:
        while time.monotonic() < deadline:
            with suppress(httpx.TransportError):
                if httpx.get(f"{url}/health", timeout=5).is_success:
                    return
            if select.select([guard], [], [], 0.2)[0]:
                raise StartFailed("it exited")
        raise StartFailed("it is not healthy in time")


def _error_in_log(home: Path) -> str:
    """Return the last line of the log that names an error, or else its last line."""
    lines = [line for line in (home / _LOG).read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line]
    return ((errors or lines or [""])[-1])[:300]


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text()
    return ""
