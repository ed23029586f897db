"""What the launcher asks of a server before anything is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swe_core.builtin.swe import SweGraderConfig
from swe_core.builtin.vllm import VLLMConfig
from swe_core.errors import ConfigError, SweError
from swe_core.plugins.manager import PluginSet
from swe_core.run.launcher import Launch
from swe_core.run.plan import grader_of
from swe_core.run.settings import RunOptions, Settings
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.launch import TRLLauncher, _errors_explained, _key
from swe_trainer_trl.server.served import refuse_used, require_adapters

from .answering import answering


def saying(body: object, status: int = 200) -> AbstractContextManager[tuple[str, Any]]:
    return answering(json.dumps(body).encode(), status)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (200, {"vllm_config": {"lora_config": None}}, "takes no adapters: start it with --enable-lora"),
        (200, {"vllm_config": "text"}, "does not say"),
        (404, {}, "VLLM_SERVER_DEV_MODE=1"),
    ],
)
def test_server_without_is_refused_in_a_sentence(status: int, body: object, says: str) -> None:
    with saying(body, status) as (url, _), pytest.raises(ConfigError, match=says):
        require_adapters(url)
    with saying({"vllm_config": {"lora_config": {"max_lora_rank": 8}}}) as (url, _):
        require_adapters(url)


def test_server_that_holds_adapters_of_another_training_is_refused() -> None:
    served = [{"id": "my-model"}, {"id": "my-adapter"}, {"id": "trl-policy"}]
    with saying({"data": served}) as (url, _):
        refuse_used(url, "trl-policy")
    held = [*served, {"id": "trl-policy-v4"}, {"id": "trl-policy-v5"}]
    with saying({"data": held}) as (url, _), pytest.raises(ConfigError, match="-v4, trl-policy-v5"):
        refuse_used(url, "trl-policy")
    with saying({}, 401) as (url, _), pytest.raises(ConfigError, match="does not say"):
        refuse_used(url, "trl-policy")


TINY = {
    **{"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    **{"vocab_size": 1500, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16},
}
ORDER = """
import os, sys
from pathlib import Path

class Watch:
    seen = set()
    def find_spec(self, name, path=None, target=None):
        if name in ("trl", "vllm", "triton"):
            self.seen.add((name, os.environ.get("CUDA_VISIBLE_DEVICES")))
        if name == "trl":  # its import takes seconds, and no more is to be seen
            raise ImportError("seen")
        return None

sys.meta_path.insert(0, Watch())
from swe_trainer_trl.server import gpus
gpus.visible_gpus = lambda: ("4", "7")
from swe_core.run.settings import Settings
from swe_core.errors import ConfigError
from swe_core.run.launcher import Launch
from swe_trainer_trl.config import TRLConfig
from swe_trainer_trl.launch import TRLLauncher

settings = Settings(run={"engine": "vllm", "model": sys.argv[1]})
try:
    TRLLauncher(TRLConfig(server={"gpus": "4"})).launch(Launch(settings, Path(sys.argv[1], "run"), False))
except ConfigError as error:
    print(error)
print(sorted(Watch.seen, key=str), os.environ.get("CUDA_VISIBLE_DEVICES"))
"""


@pytest.mark.slow
def test_trainers_gpu_is_chosen_before_trl_is_imported(tmp_path: Path) -> None:
    """Its import initialises CUDA, which then does not read CUDA_VISIBLE_DEVICES again."""
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    done = subprocess.run(
        [sys.executable, "-c", ORDER, str(tmp_path)], capture_output=True, text=True, env=environment
    )
    refusal, seen = done.stdout.splitlines()[-2:]
    assert "cannot be imported (seen)" in refusal, done.stdout + done.stderr
    assert "('trl', '7')" in seen
    assert "('trl', None)" not in seen
    assert "'4'" not in seen
    assert seen.endswith(" None")


class Ended:
    """A server, and why it ended if it did."""

    url = "http://127.0.0.1:9"

    def __init__(self, why: str | None) -> None:
        self.why = why

    def died(self, within: float = 0.0) -> str | None:
        return self.why


def test_death_of_one_of_several_servers_explains_no_error() -> None:
    ended, running = Ended("vLLM ended: out of memory"), Ended(None)
    bug = "training failed: RuntimeError: a bug"
    said = "vLLM ended: out of memory; resume with --resume"
    for servers, says in (([ended, running], bug), ([running, ended], bug), ([ended] * 2, said), ([], bug)):
        # The servers are stand-ins that have `died` alone.
        with pytest.raises(SweError, match=f"^{says}$"), _errors_explained(servers):  # type: ignore[arg-type]  # stand-ins
            raise RuntimeError("a bug")


def test_key_comes_from_the_variable_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine: Any = SimpleNamespace(config=VLLMConfig(api_key_env="MY_KEY"))
    assert _key(engine) is None
    monkeypatch.setenv("MY_KEY", " secret ")
    assert _key(engine) == "secret"
    assert _key(SimpleNamespace(config=object())) is None  # type: ignore[arg-type]  # no engine of ours


def test_run_in_one_of_several_processes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    settings = Settings.model_validate({"run": {"engine": "vllm", "model": "m"}})
    with pytest.raises(ConfigError, match="one of 2 processes"):
        TRLLauncher(TRLConfig()).launch(Launch(settings, tmp_path, False))


def test_training_does_not_pay_suspicious_patches() -> None:
    settings = Settings(run=RunOptions(worker="trl"))
    grader = grader_of(settings, PluginSet(["trl"]))
    assert isinstance(grader.config, SweGraderConfig)
    assert grader.config.suspicious == "unresolved"
