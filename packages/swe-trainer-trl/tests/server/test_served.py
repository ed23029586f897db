"""Whether servers can serve one training together."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from swe_core.errors import ConfigError, EngineError, EngineUnavailable
from swe_trainer_trl.server.served import _PROBE, compare, refuse_unequal

from ..answering import Asked, replying

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

    def reply(self, request: Asked) -> tuple[int, bytes]:
        locked = request.path.startswith("/v1/") and self.key is not None
        wrong = locked and request.headers.get("Authorization") != f"Bearer {self.key}"
        said = self.answer(request.path.split("?")[0], json.loads(request.body or b"{}"))
        return 401 if wrong else self.status, json.dumps(said).encode()

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/v1/models":
            return {"data": [{"id": "m", "root": self.root, "max_model_len": 2048}]}
        if path == "/server_info":
            model = {"dtype": self.dtype, "quantization": self.quantization}
            return {"vllm_config": {"lora_config": self.lora, "model_config": model}}
        self.asked.append(body)
        entries = [{str(id): {"logprob": -id / 10 + self.shift, "rank": 1}} for id in body["prompt"][1:]]
        return {"choices": [{"prompt_logprobs": [None, *entries]}]}


@contextmanager
def serving(*replicas: Replica) -> Iterator[list[str]]:
    """Their URLs, while they serve."""
    with ExitStack() as stack:
        yield [stack.enter_context(replying(replica.reply)).url for replica in replicas]


ADAPTERS = {"max_lora_rank": 8, "max_loras": 6}


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (Replica(), Replica(dtype="half"), r"their dtype \('torch.float32' and 'half'\): start both with"),
        (Replica(), Replica(lora=ADAPTERS), r"differ in their --max-lora-rank \(None and 8\): start both"),
        (Replica(lora=ADAPTERS), Replica(lora={**ADAPTERS, "max_loras": 1}), r"--max-loras \(6 and 1\)"),
        (Replica(), Replica(status=404), "does not say at /v1/models"),
    ],
)
def test_servers_that_differ_are_one_sentence(one: Replica, other: Replica, says: str) -> None:
    with serving(one, other) as urls:
        with pytest.raises(ConfigError, match=says):
            refuse_unequal(urls, "m", None)
        with pytest.raises(ConfigError, match="does not say at /v1/models"):
            refuse_unequal(urls[:1], "another model", None)


def test_key_is_sent() -> None:
    with serving(Replica(key="k"), Replica(key="k")) as urls:
        refuse_unequal(urls, "m", "k")
        compare(urls, "m", "k")
        with pytest.raises(ConfigError, match=r"does not say at /v1/models what it serves.*401"):
            refuse_unequal(urls, "m", None)
        with pytest.raises(EngineError, match=r"gives no log-probabilities of a prompt.*401"):
            compare(urls, "m", None)


def test_equal_weights_give_equal_answers() -> None:
    replicas = Replica(), Replica(shift=5e-4)
    with serving(*replicas) as urls:
        compare(urls, "trl-policy-v3", None)
        with pytest.raises(EngineUnavailable, match="does not answer"):
            compare([urls[0], NOWHERE], "m", None)
    replicas[0].asked.pop()
    for replica in replicas:
        (asked,) = replica.asked
        assert (asked["model"], asked["prompt"]) == ("trl-policy-v3", list(_PROBE))


@pytest.mark.parametrize(
    ("dtype", "shift", "refused"),
    [("torch.float32", 0.01, True), ("torch.bfloat16", 0.01, False), ("torch.float32", float("nan"), True)],
)
def test_other_weights_are_found(dtype: str, shift: float, refused: bool) -> None:
    with serving(Replica(dtype=dtype), Replica(dtype=dtype), Replica(dtype=dtype, shift=shift)) as urls:
        if not refused:
            compare(urls, "m", None)
            return
        said = f"the servers '{urls[0]}' and '{urls[2]}' were given the same weights, but .* differ by"
        with pytest.raises(EngineError, match=said):
            compare(urls, "m", None)
