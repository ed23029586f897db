"""compat: which TRL is taken, and which is refused in one sentence."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

_SAMPLE = """
from dataclasses import dataclass, field
from typing import Any

@dataclass(slots=True)
class RolloutSample:
    prompt: Any
    completion: Any
    input_ids: Any
    completion_mask: Any
    old_log_probs: Any
    advantage: float
    model_version: int
    group_id: int
    metrics: dict
    enqueued_at: float | None = None
    images: list = field(default_factory=list)
"""
_TRAINER = """
from typing import Protocol
from .async_rollout_worker import RolloutSample

class RolloutWorkerProtocol(Protocol): ...
class WeightTransferProtocol(Protocol): ...

class AsyncGRPOTrainer:
    def __init__(self, model, args=None, rollout_worker=None, weight_transfer=None): ...
"""
_PACKAGE = """
from .async_grpo_config import AsyncGRPOConfig
from .async_grpo_trainer import AsyncGRPOTrainer
"""
_OLD = "experimental/async_grpo"
_WORKER = "trainer/async_rollout_worker"
_KERNEL = {
    "__init__.py": "",
    "experimental/__init__.py": """
import warnings
warnings.warn("You are importing from 'trl.experimental'. APIs here are unstable.", stacklevel=2)
""",
    f"{_OLD}/__init__.py": "raise ImportError('no kernel')",
}
_NEW_LAYOUT = {
    "__init__.py": _PACKAGE.replace("from .", "from .trainer."),
    "trainer/__init__.py": "",
    "trainer/async_grpo_config.py": "class AsyncGRPOConfig: ...",
    "trainer/async_grpo_trainer.py": f"from .async_grpo_packing import TreeRow\n{_TRAINER}".replace(
        "args=None", "args=None, peft_config=None"
    ),
    f"{_WORKER}.py": _SAMPLE,
    "trainer/async_grpo_packing.py": "class TreeRow: ...",
    "experimental/__init__.py": "",
    f"{_OLD}/__init__.py": """
import warnings
warnings.warn("trl.experimental.async_grpo has moved", FutureWarning, stacklevel=2)
from trl import AsyncGRPOConfig, AsyncGRPOTrainer
""",
}
_CUDA = "class cuda:\n    is_available = staticmethod(lambda: True)\n"
_MISSING = """
import importlib.metadata
def version(name): raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.version = version
"""
_REFUSED = """
from swe_core.errors import ConfigError
try:
    import swe_trainer_trl.compat
except ConfigError as error:
    print(error)
"""


_ASK = """
import json
import numpy as np
from swe_trainer_trl import compat

ids = np.arange(3)
sample = compat.make_sample(
    prompt=[], completion=[], input_ids=ids, completion_mask=ids, old_log_probs=ids.astype(np.float32),
    advantage=0.5, model_version=2, group_id=7, metrics={"reward": 1.0}, enqueued_at=3.0,
)
said = {
    "version": compat.TRL_VERSION,
    "trainer": compat.trainer_module.__name__,
    "packing": compat.packing_module and compat.packing_module.__name__,
    "lora": compat.LORA,
    "config": compat.AsyncGRPOConfig.__module__,
    "sample": type(sample).__module__,
    "protocols": [compat.RolloutWorkerProtocol.__name__, compat.WeightTransferProtocol.__name__],
    "values": [sample.advantage, sample.model_version, sample.group_id, sample.metrics],
    "enqueued_at": getattr(sample, "enqueued_at", "no such field"),
}
print(json.dumps(said))
"""


def make_trl(root: Path, version: str, files: Mapping[str, str]) -> Path:
    """A package `trl` of these files."""
    for name, text in files.items():
        file = root / "trl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    metadata = root / f"trl-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: trl\nVersion: {version}\n")
    return root


def python(code: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run with `path` first, and with every warning an error."""
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def refusal(path: Path | None, code: str = "") -> str:
    """The one sentence of the ConfigError that importing `compat` raises."""
    ended = python(code + _REFUSED, path)
    assert ended.returncode == 0, ended.stderr
    (sentence,) = ended.stdout.splitlines()
    return sentence


def test_layout_as_it_is_announced(tmp_path):
    ended = python(_ASK, make_trl(tmp_path, "1.18.0.dev0", _NEW_LAYOUT))
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "version": "1.18.0.dev0",
        "trainer": "trl.trainer.async_grpo_trainer",
        "packing": "trl.trainer.async_grpo_packing",
        "lora": True,
        "config": "trl.trainer.async_grpo_config",
        "sample": "trl.trainer.async_rollout_worker",
        "protocols": ["RolloutWorkerProtocol", "WeightTransferProtocol"],
        "values": [0.5, 2, 7, {"reward": 1.0}],
        "enqueued_at": 3.0,
    }


_ROUTED = _SAMPLE.replace("    metrics: dict\n", "    metrics: dict\n    routing: Any\n")
_EMPTY = "class AsyncGRPOTrainer: ..."


@pytest.mark.parametrize(
    ("version", "files", "said"),
    [
        (None, {}, "the worker 'trl' needs TRL, which is not installed"),
        ("1.9.2", {"__init__.py": "raise TypeError('imported')"}, "TRL 1.9.2 is too old: .* 1.10 or newer"),
        ("1.15.0", _KERNEL, "TRL 1.15.0 does not run without CUDA, because it needs Triton"),
        ("1.15.0", {**_KERNEL, "../torch/__init__.py": _CUDA}, r"cannot be imported \(no kernel\)"),
        ("2.0.0", {**_NEW_LAYOUT, "trainer/async_grpo_trainer.py": _EMPTY}, "no attribute 'RolloutSample'"),
        ("1.19.0", {**_NEW_LAYOUT, f"{_WORKER}.py": _ROUTED}, "samples .* need routing, which"),
    ],
)
def test_refusals(tmp_path, version, files, said):
    """In one sentence, which names the command that installs a version that works."""
    if version == "1.15.0":
        files = {"../torch/__init__.py": _CUDA.replace("True", "False"), **files}
    path = make_trl(tmp_path, version, files) if version else None
    sentence = refusal(path, "" if version else _MISSING)
    assert re.search(said, sentence)
    assert sentence.endswith("pip install 'trl==1.16.0'")


def test_nothing_else_imports_torch_or_trl():
    modules = [f"swe_trainer_trl.{name}" for name in ("config", "plugin", "trainer.disk_weight_transfer")]
    heavy = {"torch", "trl", "transformers", "safetensors"}
    ended = python(f"import sys, {', '.join(modules)}; print({heavy} & sys.modules.keys())")
    assert ended.stdout == "set()\n", ended.stderr
