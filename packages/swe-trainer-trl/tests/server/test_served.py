"""Whether servers can serve one training together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from swe_core.errors import ConfigError, EngineError, EngineUnavailable
from swe_trainer_trl.server.served import _PROBE, compare, refuse_unequal

NOWHERE = "http://127.0.0.1:9"


@dataclass
class Replica:
    """What a server says, and what it was asked."""

    root: str = "org/model"
    dtype: str = "torch.float32"
    lora: dict[str, Any] | None = None
    quantization: str | None = None
    shift: float = 0.0
    key: str | None = None
    status: int = 200
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "m", "root": self.root, "max_model_len": 2048}]}
        if path == "/server_info":
            model = {"dtype": self.dtype, "quantization": self.quantization}
            return {"vllm_config": {"lora_config": self.lora, "model_config": model}}
        self.asked.append(body)
        entries = [
            {str(token): {"logprob": -token / 10 + self.shift, "rank": 1}} for token in body["prompt"][1:]
        ]
        return {"choices": [{"prompt_logprobs": [None, *entries]}]}


@contextmanager
def serving(*replicas: Replica) -> Iterator[list[str]]:
    """Their URLs, while they serve."""
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), handler(replica)) for replica in replicas]
    threads = [Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    finally:
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()


def handler(replica: Replica) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
            locked = path.startswith("/v1/") and replica.key is not None
            wrong = locked and self.headers.get("Authorization") != f"Bearer {replica.key}"
            said = json.dumps(replica.answer(path, body)).encode()
            self.send_response(401 if wrong else replica.status)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


def test_servers_that_were_started_alike_are_taken() -> None:
    with serving(Replica(), Replica(), Replica()) as urls:
        refuse_unequal(urls, "m", None)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (Replica(dtype="torch.bfloat16"), r"differ in their dtype \('torch.float32' and 'torch.bfloat16'\)"),
        (
            Replica(lora={"max_lora_rank": 8, "max_loras": 6}),
            r"differ in their --max-lora-rank \(None and 8\)",
        ),
    ],
)
def test_servers_that_differ_are_one_sentence(other: Replica, says: str) -> None:
    with serving(Replica(), other) as urls:
        with pytest.raises(ConfigError, match=f"{says}: start both with the same command$"):
            refuse_unequal(urls, "m", None)


def test_too_few_adapters_on_one_server() -> None:
    both = (
        Replica(lora={"max_lora_rank": 8, "max_loras": 6}),
        Replica(lora={"max_lora_rank": 8, "max_loras": 1}),
    )
    with serving(*both) as urls, pytest.raises(ConfigError, match=r"--max-loras \(6 and 1\)"):
        refuse_unequal(urls, "m", None)


def test_key_is_sent() -> None:
    with serving(Replica(key="k"), Replica(key="k")) as urls:
        refuse_unequal(urls, "m", "k")
        compare(urls, "m", "k")
        with pytest.raises(ConfigError, match=r"does not say at /v1/models what it serves.*401"):
            refuse_unequal(urls, "m", None)
        with pytest.raises(EngineError, match=r"gives no log-probabilities of a prompt.*401"):
            compare(urls, "m", None)


def test_server_that_says_nothing_is_a_sentence() -> None:
    with serving(Replica(), Replica(status=404)) as urls:
        with pytest.raises(ConfigError, match=f"the server '{urls[1]}' does not say at /v1/models"):
            refuse_unequal(urls, "m", None)
        with pytest.raises(ConfigError, match="does not say at /v1/models"):
            refuse_unequal(urls[:1], "another model", None)


def test_equal_weights_give_equal_answers() -> None:
    replicas = Replica(), Replica(shift=5e-4)
    with serving(*replicas) as urls:
        compare(urls, "trl-policy-v3", None)
    for replica in replicas:
        (asked,) = replica.asked
        assert (asked["model"], asked["prompt"]) == ("trl-policy-v3", list(_PROBE))


@pytest.mark.parametrize(
    ("dtype", "shift", "refused"),
    [
        ("torch.float32", 0.01, True),
        ("torch.bfloat16", 0.01, False),
        ("torch.bfloat16", 1.0, True),
        ("torch.float32", float("nan"), True),
    ],
)
def test_other_weights_are_found(dtype: str, shift: float, refused: bool) -> None:
    with serving(Replica(dtype=dtype), Replica(dtype=dtype), Replica(dtype=dtype, shift=shift)) as urls:
        if not refused:
            compare(urls, "m", None)
            return
        said = f"the servers '{urls[0]}' and '{urls[2]}' were given the same weights, but .* differ by"
        with pytest.raises(EngineError, match=said):
            compare(urls, "m", None)


def test_server_that_dies_meanwhile_is_unavailable() -> None:
    with serving(Replica()) as (url,), pytest.raises(EngineUnavailable, match="does not answer"):
        compare([url, NOWHERE], "m", None)
