"""The server that is started for a training run: its flags and GPUs, why it ended, and that it ends."""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.errors import ConfigError, EngineUnavailable, SweError
from swe_testing.ports import held_port
from swe_testing.serving.start import missing, obstacle
from swe_testing.waiting import until
from swe_trainer_trl import launch
from swe_trainer_trl.config import ServerOptions, TRLConfig

if TYPE_CHECKING:  # imports torch, which takes seconds
    from swe_trainer_trl.server.vllm_server import VLLMServer

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

Gpus = tuple[tuple[str, ...], tuple[str, ...]]
CPU: Gpus = ((), ())
ONE: Gpus = (("0",), ("0",))
TWO: Gpus = (("1",), ("0",))


ARGUMENTS = {"dtype": "float32", "model_init_kwargs": None, "trust_remote_code": False, "max_staleness": 4}
"""What serving reads of TRL's."""


def flags(
    gpus: Gpus, config: TRLConfig | None = None, *, lora_rank: int | None = None, **changed: Any
) -> list[str]:
    from swe_trainer_trl.server.gpus import GPULayout
    from swe_trainer_trl.server.vllm_server import server_arguments

    args, layout = SimpleNamespace(**ARGUMENTS | changed), GPULayout(gpus[:1], gpus[1])
    config = config or TRLConfig()
    return server_arguments("org/model", args, config, gpus=layout, lora_rank=lora_rank, port=8123)


def value(of: list[str], flag: str) -> str | None:
    """The value that a parser takes: the last one."""
    return None if flag not in of else of[len(of) - 1 - of[::-1].index(flag) + 1]


HERE = {"--model": "org/model", "--served-model-name": "org/model", "--host": "127.0.0.1", "--port": "8123"}
UNSET = dict.fromkeys(("--max-model-len", "--trust-remote-code", "--tensor-parallel-size"))
HALF = {"dtype": "bfloat16"}
NAMED = {**HALF, "revision": "a"}


def serving(**server: Any) -> TRLConfig:
    return TRLConfig(server=ServerOptions(**server))


@pytest.mark.parametrize(
    ("gpus", "config", "changed", "expected"),
    [
        (TWO, None, {}, {**HERE, "--logprobs-mode": "processed_logprobs", "--dtype": "float32"} | UNSET),
        # weights by NCCL, by files or by an adapter, whose rank is one that vLLM serves
        (TWO, None, {}, {"--weight-transfer-config": '{"backend": "nccl"}'}),
        (TWO, TRLConfig(weight_sync="disk"), {}, {"--weight-transfer-config": None}),
        (ONE, None, {**HALF, "lora_rank": 9}, {"--max-lora-rank": "16", "--weight-transfer-config": None}),
        (
            *(ONE, None, {**HALF, "lora_rank": 257, "max_staleness": 2}),
            {"--max-lora-rank": "320", "--max-loras": "4", "--gpu-memory-utilization": "0.4"},
        ),
        (CPU, None, {"lora_rank": 8}, {"--dtype": "float32"}),
        (ONE, serving(dtype="bfloat16"), {"lora_rank": 8}, {"--dtype": "bfloat16"}),
        # the model as the trainer loads it, unless the user says more
        (TWO, None, {"model_init_kwargs": NAMED}, {"--dtype": "bfloat16", "--revision": "a"}),
        (TWO, serving(dtype="float16"), {"model_init_kwargs": HALF}, {"--dtype": "float16"}),
        (TWO, serving(args=("--dtype", "half")), {}, {"--dtype": "half"}),
        (TWO, serving(gpu_memory_utilization=0.7), {}, {"--gpu-memory-utilization": "0.7"}),
        ((("1", "2"), ("0",)), None, {}, {"--tensor-parallel-size": "2"}),
        (CPU, serving(max_model_len=99), {}, {"--max-num-batched-tokens": "99", "--max-model-len": "99"}),
    ],
)
def test_flags(gpus: Gpus, config: TRLConfig | None, changed: Any, expected: dict[str, str | None]) -> None:
    got = flags(gpus, config, **changed)
    assert {flag: value(got, flag) for flag in expected} == expected
    trusting = flags(gpus, config, **{"model_init_kwargs": {"trust_remote_code": True}, **HALF})
    assert "--trust-remote-code" in trusting
    assert ("--enable-lora" in got) == ("lora_rank" in changed)
    assert ("--enforce-eager" in got) == ("--no-enable-chunked-prefill" in got) == (gpus is CPU)


def test_adapters_that_vllm_does_not_serve() -> None:
    with pytest.raises(ConfigError, match=r"513.*512"):
        flags(ONE, lora_rank=513, dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"16 bits only.*worker\.trl\.grpo\.dtype.*'bfloat16'"):
        flags(ONE, lora_rank=8)


def test_environment() -> None:
    from swe_trainer_trl.server.gpus import GPULayout
    from swe_trainer_trl.server.vllm_server import server_environment

    def environment(base: Mapping[str, str], gpus: Gpus, *, lora: bool) -> dict[str, str]:
        return server_environment(base, GPULayout(gpus[:1], gpus[1]), lora=lora)

    base = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0,1"}
    got = environment(base, TWO, lora=False)
    assert got == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1", "VLLM_SERVER_DEV_MODE": "1"}
    assert environment(base, ONE, lora=True)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert environment({}, CPU, lora=False)["VLLM_CPU_KVCACHE_SPACE"] == "4"
    own = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    assert environment(own, CPU, lora=False)["VLLM_CPU_KVCACHE_SPACE"] == "1"


ENGINE = """\
(APIServer pid=9) WARNING 11-21 17:44:02 [system_utils.py:249] Found ulimit, like `OSError: [Errno 24]`
(EngineCore pid=1) ERROR 11-21 17:44:22 [core.py:1433] EngineCore failed to start.
(EngineCore pid=1) ERROR 11-21 17:44:22 [core.py:1433] Traceback (most recent call last):
(EngineCore pid=1) ERROR 11-21 17:44:22 [core.py:1433]     raise ValueError(
(EngineCore pid=1) ERROR 11-21 17:44:22 [core.py:1433] {cause}
(EngineCore pid=1) Process EngineCore:
(EngineCore pid=1) Traceback (most recent call last):
(EngineCore pid=1) {cause}
(APIServer pid=9) Traceback (most recent call last):
(APIServer pid=9) RuntimeError: Engine core initialization failed. See root cause above. Failed: {{}}
sys:1: RuntimeWarning: coroutine 'x' was never awaited
"""


_CAUSE = "ValueError: No available memory for the cache blocks."
_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB."
_PYDANTIC = "pydantic_core.ValidationError: 1 validation error for X"
_FLAG = "api_server.py: error: unrecognized arguments: --x"
_COLOURED = "\x1b[0;36m(EngineCore pid=1)\x1b[0;0m ERROR 11-21 17:44:22 [core.py:1] OSError: no such model"


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (ENGINE.format(cause=_CAUSE), _CAUSE),  # and not what followed
        (f"{_MEMORY}\nTraceback:\nValueError: cancelled", _MEMORY),  # the cause of whatever else failed
        (f"{_PYDANTIC}\n  too long [type=x]\nend", f"{_PYDANTIC} too long [type=x]"),
        (_COLOURED, "OSError: no such model"),
        (_FLAG, _FLAG),
        ("one\n\ntwo\n\n", "two"),
        ("", "it logged nothing"),
    ],
)
def test_line_that_tells_why(log: str, said: str) -> None:
    from swe_trainer_trl.server.vllm_server import telling

    assert telling(log) == said


@given(st.text())
def test_any_log_gives_one_line(log: str) -> None:
    from swe_trainer_trl.server.vllm_server import telling

    got = telling(log)
    assert got
    assert "\n" not in got


SCRIPT = """
import http.server, os, signal, sys
status = [int(sys.argv[2])]
signal.signal(signal.SIGUSR1, lambda *_: status.append(503))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(status[-1])
        self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer.allow_reuse_port = True  # the test holds the port
server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
print("pid", os.getpid(), flush=True)
server.serve_forever()
"""


def stub(port: int, status: int = 200) -> list[str]:
    """A server that answers every question with `status`, and with 503 from SIGUSR1 on."""
    return [sys.executable, "-I", "-S", "-c", SCRIPT, str(port), str(status)]


@contextmanager
def served(command: list[str], log: Path, port: int, timeout: float = 120) -> Iterator[VLLMServer]:
    """The server that this command is, not started yet."""
    from swe_trainer_trl.server.vllm_server import VLLMServer

    server = VLLMServer(f"http://127.0.0.1:{port}", "m", log, command, os.environ, timeout)
    try:
        yield server
    finally:
        server.close()


def started_as(log: Path) -> int:
    """The pid that a stub writes into its log once it can be asked."""
    anyio.run(until, lambda: log.read_text().endswith("\n"))
    return int(log.read_text().split()[-1])


def gone(pid: int) -> bool:
    """Whether process `pid` ends soon."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor) as process:
        return bool(select.select([process], [], [], 120)[0])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


def test_server_lasts_as_long_as_its_block(log: Path) -> None:
    log.write_text("of an earlier run\nValueError: long ago\n")
    port = held_port()
    with served(stub(port), log, port) as server:
        assert server.died() is None
        server.start()
        assert server.died() is None
        pid = int(log.read_text().split()[-1])
        assert os.getpgid(pid) == server._guard.pid != os.getpgrp()
    assert gone(pid)
    assert "long ago" in log.read_text()
    said = server.died()
    assert said is not None
    assert "'m' ended" in said
    assert "long ago" not in said


MEET = """
import os, sys, time
mine, other, *command = sys.argv[1:]
open(mine, "w")
while not os.path.exists(other):
    time.sleep(0.01)
os.execv(sys.executable, command)
"""


def test_several_servers_start_at_the_same_time(tmp_path: Path) -> None:
    """Neither would ever be healthy, did the second wait for the first."""
    from swe_trainer_trl.server.vllm_server import started

    marks, ports = [str(tmp_path / "1"), str(tmp_path / "2")], [held_port(), held_port()]
    logs = [tmp_path / "1.log", tmp_path / "2.log"]
    commands = [
        [sys.executable, "-c", MEET, *order, *stub(port)]
        for order, port in zip((marks, marks[::-1]), ports, strict=True)
    ]
    with ExitStack() as stack:
        each = zip(commands, logs, ports, strict=True)
        servers = [stack.enter_context(served(*one)) for one in each]
        with started(servers):
            assert all(httpx.get(f"{one.url}/health", trust_env=False).is_success for one in servers)
            pids = [started_as(log) for log in logs]
        assert all(map(gone, pids))


def test_server_that_does_not_start_ends_the_start_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is the one that is named, although the others fail too before it is."""
    from swe_trainer_trl.server.vllm_server import started

    both, calls = threading.Barrier(2), itertools.count()

    port, logs = held_port(), [tmp_path / "1.log", tmp_path / "2.log"]
    broken = [sys.executable, "-c", "raise SystemExit('OSError: out of memory')"]
    with served(stub(port, 503), logs[0], port, timeout=1e6) as slow, served(broken, logs[1], 9) as other:
        monkeypatch.setattr(other, "close", lambda: next(calls) < 2 and both.wait())
        with pytest.raises(EngineUnavailable, match=r"OSError: out of memory; its log is .*2\.log"):
            with started([slow, other]):
                pytest.fail("one did not start")
        assert slow.died() is not None


def test_server_that_is_never_healthy(log: Path) -> None:
    port = held_port()
    with served(stub(port, 503), log, port, timeout=0.4) as server:
        with pytest.raises(EngineUnavailable, match=r"worker\.trl\.server\.start_timeout"):
            server.start()
        assert server.died() is not None


def test_hanging_dead_server_is_reported_with_its_log(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_END", 0.0)
    port = held_port()
    with served(stub(port), log, port) as server:
        server.start()
        os.kill(started_as(log), signal.SIGUSR1)
        said = r"^the vLLM server of 'm' ended: .* its log is .*; resume with --resume$"
        with pytest.raises(SweError, match=said), launch._errors_explained([server]):
            raise EngineUnavailable("no answer")


def test_another_server_on_the_port_is_not_ours(log: Path, tmp_path: Path) -> None:
    """What answers there is healthy, and has another model."""
    port = held_port()
    with served(stub(port), tmp_path / "other.log", port) as other:
        other.start()
        with served(stub(port), log, port) as server:
            with pytest.raises(EngineUnavailable, match="another process serves at"):
                server.start()


PARENT = """
import os, signal, sys, time
from pathlib import Path
sys.modules["torch"] = type(os)("torch")  # no GPU is asked for, and its import takes seconds
from swe_trainer_trl.server.vllm_server import VLLMServer
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
server = VLLMServer(sys.argv[2], "m", Path(sys.argv[1]), sys.argv[3:], os.environ, 120)
try:
    server.start()
    print("started", flush=True)
    time.sleep(600)
finally:
    server.close()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_server_ends_with_its_owner(log: Path, how: signal.Signals) -> None:
    port = held_port()
    command = [sys.executable, "-c", PARENT, str(log), f"http://127.0.0.1:{port}", *stub(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        pid = started_as(log)
        parent.send_signal(how)
        parent.wait(120)
    assert gone(pid)


def _enter(model: str, config: TRLConfig, log: Path) -> None:
    """Start a server that cannot start."""
    from swe_trainer_trl.server.gpus import GPULayout
    from swe_trainer_trl.server.vllm_server import vllm_servers

    args, layout = SimpleNamespace(**ARGUMENTS), GPULayout(CPU[:1], CPU[1])
    with vllm_servers(model, args, config, gpus=layout, lora_rank=None, logs=[log]):
        pytest.fail("it started")


@pytest.mark.parametrize(
    ("there", "said"), [(None, "vLLM is not installed"), ("", "' is not a model directory")]
)
def test_server_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Path, there: str | None, said: str
) -> None:
    monkeypatch.setattr("swe_trainer_trl.server.vllm_server.importlib.util.find_spec", lambda name: there)
    for model in (tmp_path / "missing", tmp_path):
        with pytest.raises(ConfigError, match=said):
            _enter(str(model), TRLConfig(), log)
    assert not log.exists()


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Real vLLM, quiet and small."""
    cannot = missing() or obstacle()
    if cannot is not None:
        pytest.skip(cannot)
    for setting in ("HF_HUB_OFFLINE", "VLLM_NO_USAGE_STATS", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.setenv(setting, "1")


SERVE = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.server.gpus import GPULayout
from swe_trainer_trl.server.vllm_server import vllm_servers
model, log = sys.argv[1:]
args = SimpleNamespace(dtype="float32", model_init_kwargs=None, trust_remote_code=False, max_staleness=4)
config = TRLConfig.model_validate({"weight_sync": "disk", "server": {"max_model_len": 2048}})
gpus = GPULayout(((),), ())
with vllm_servers(model, args, config, gpus=gpus, lora_rank=None, logs=[Path(log)]) as (server,):
    print(server.url, flush=True)
    time.sleep(3600)
"""


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.usefixtures("vllm")
def test_vllm_serves_the_policy_and_ends_with_us(tiny_model: Path, log: Path) -> None:
    command = [sys.executable, "-c", SERVE, str(tiny_model), str(log)]
    body = {"model": str(tiny_model), "prompt": [5, 6, 7], "max_tokens": 1, "logprobs": 5}
    likely = []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as trainer:
        try:
            assert trainer.stdout is not None
            url = trainer.stdout.readline().decode().strip()
            with httpx.Client(base_url=url, trust_env=False, timeout=120) as client:
                assert client.get("/health").status_code == 200
                card = client.get("/v1/models").json()["data"][0]
                assert (card["id"], card["max_model_len"]) == (str(tiny_model), 2048)
                assert client.post("/pause", params={"mode": "keep"}).status_code == 200  # dev mode is on
                assert client.post("/resume").status_code == 200
                for temperature in (0.5, 2.0):
                    reply = client.post("/v1/completions", json={**body, "temperature": temperature}).json()
                    likely.append(max(reply["choices"][0]["logprobs"]["top_logprobs"][0].values()))
        finally:
            trainer.kill()
    cold, hot = likely  # raw log-probabilities would be the same at both temperatures
    assert cold > hot + 0.1
    for _ in range(1200):
        try:
            httpx.get(f"{url}/health", trust_env=False, timeout=5)
        except httpx.TransportError:
            return
        time.sleep(0.2)
    pytest.fail("it serves on")
