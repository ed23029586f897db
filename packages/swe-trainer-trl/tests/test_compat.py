"""compat: which TRL is taken, and which is refused in one sentence."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

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
_OLD_LAYOUT = {
    "__init__.py": "",
    "experimental/__init__.py": """
import warnings
warnings.warn("You are importing from 'trl.experimental'. APIs here are unstable.", stacklevel=2)
""",
    f"{_OLD}/__init__.py": _PACKAGE,
    f"{_OLD}/async_grpo_config.py": "class AsyncGRPOConfig: ...",
    f"{_OLD}/async_grpo_trainer.py": _TRAINER,
    f"{_OLD}/async_rollout_worker.py": _SAMPLE,
}
_NEW_LAYOUT = {
    "__init__.py": _PACKAGE.replace("from .", "from .trainer."),
    "trainer/__init__.py": "",
    "trainer/async_grpo_config.py": "class AsyncGRPOConfig: ...",
    "trainer/async_grpo_trainer.py": f"from .async_grpo_packing import TreeRow\n{_TRAINER}".replace(
        "args=None", "args=None, peft_config=None"
    ),
    "trainer/async_rollout_worker.py": _SAMPLE,
    "trainer/async_grpo_packing.py": "class TreeRow: ...",
    "experimental/__init__.py": "",
    f"{_OLD}/__init__.py": """
import warnings
warnings.warn("trl.experimental.async_grpo has moved", FutureWarning, stacklevel=2)
from trl import AsyncGRPOConfig, AsyncGRPOTrainer
""",
}
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
    ended = python(
        dedent(f"""
        {code}
        from swe_core.errors import ConfigError
        try:
            import swe_trainer_trl.compat
        except ConfigError as error:
            print(error)
        """),
        path,
    )
    assert ended.returncode == 0, ended.stderr
    (sentence,) = ended.stdout.splitlines()
    return sentence


_FIRST = {**_OLD_LAYOUT, f"{_OLD}/async_rollout_worker.py": _SAMPLE.replace("    enqueued_at", "    #")}


@pytest.mark.parametrize(
    ("version", "files", "folder", "lora", "enqueued_at"),
    [
        ("1.10.3", _FIRST, "trl.experimental.async_grpo", False, "no such field"),
        ("1.18.0.dev0", _NEW_LAYOUT, "trl.trainer", True, 3.0),  # as it is announced
    ],
)
def test_layouts(tmp_path, version, files, folder, lora, enqueued_at):
    ended = python(_ASK, make_trl(tmp_path, version, files))
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "version": version,
        "trainer": f"{folder}.async_grpo_trainer",
        "packing": f"{folder}.async_grpo_packing" if lora else None,
        "lora": lora,
        "config": f"{folder}.async_grpo_config",
        "sample": f"{folder}.async_rollout_worker",
        "protocols": ["RolloutWorkerProtocol", "WeightTransferProtocol"],
        "values": [0.5, 2, 7, {"reward": 1.0}],
        "enqueued_at": enqueued_at,
    }


def test_missing_trl_names_the_command_that_installs_it():
    code = """
        import importlib.metadata
        def version(name): raise importlib.metadata.PackageNotFoundError(name)
        importlib.metadata.version = version
        """
    assert refusal(None, code) == (
        "the worker 'trl' needs TRL, which is not installed: pip install 'trl==1.16.0'"
    )


@pytest.mark.parametrize("version", ["1.9.2"])
def test_old_trl_is_refused_before_it_is_imported(tmp_path, version):
    make_trl(tmp_path, version, {"__init__.py": "raise RuntimeError('imported')"})
    assert refusal(tmp_path) == (
        f"TRL {version} is too old: the worker 'trl' needs 1.10 or newer: pip install 'trl==1.16.0'"
    )


@pytest.mark.parametrize(
    ("available", "words"),
    [(False, "does not run without CUDA, because it needs Triton"), (True, "cannot be imported (no kernel)")],
)
def test_trl_1_15_is_refused_without_cuda(tmp_path, available, words):
    make_trl(tmp_path, "1.15.0", {**_OLD_LAYOUT, f"{_OLD}/__init__.py": "raise ImportError('no kernel')"})
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text(f"class cuda:\n    is_available = staticmethod(lambda: {available})\n")
    said = refusal(tmp_path)
    assert said.startswith(f"TRL 1.15.0 {words}")
    assert said.endswith("pip install 'trl==1.16.0'")


def test_trl_that_cannot_be_imported_says_why(tmp_path):
    files = {**_OLD_LAYOUT, f"{_OLD}/async_grpo_trainer.py": "import not_there"}
    assert refusal(make_trl(tmp_path, "1.14.0", files)) == (
        "TRL 1.14.0 cannot be imported (No module named 'not_there'): pip install 'trl==1.16.0'"
    )


def test_unknown_layout_is_refused(tmp_path):
    files = {**_NEW_LAYOUT, "trainer/async_grpo_trainer.py": "class AsyncGRPOTrainer: ..."}
    assert refusal(make_trl(tmp_path, "2.0.0", files)) == (
        "TRL 2.0.0 is not laid out as any version that the worker 'trl' knows (module "
        "'trl.trainer.async_grpo_trainer' has no attribute 'RolloutSample'): pip install 'trl==1.16.0'"
    )


def test_samples_with_unknown_needs_are_refused(tmp_path):
    sample = _SAMPLE.replace("    metrics: dict\n", "    metrics: dict\n    routing: Any\n")
    files = {**_NEW_LAYOUT, "trainer/async_rollout_worker.py": sample}
    assert refusal(make_trl(tmp_path, "1.19.0", files)) == (
        "the samples of TRL 1.19.0 need routing, which the worker 'trl' does not know: "
        "pip install 'trl==1.16.0'"
    )


def test_nothing_else_imports_torch_or_trl():
    ended = python(
        dedent("""
        import sys
        import swe_trainer_trl.config, swe_trainer_trl.plugin, swe_trainer_trl.trainer.disk_weight_transfer
        print({"torch", "trl", "transformers", "safetensors"} & sys.modules.keys())
        """)
    )
    assert ended.stdout == "set()\n", ended.stderr


@pytest.mark.slow  # test_trl_versions.py imports it too, as everything that trains does
@pytest.mark.skipif(find_spec("trl") is None, reason="trl is not installed")
def test_installed_trl_is_taken_without_a_warning():
    code = """
        import sys, warnings
        import trl, torch, transformers  # what they warn of is theirs
        warnings.simplefilter("error", UserWarning)
        from swe_trainer_trl import compat
        print(compat.AsyncGRPOTrainer.__name__)
        """
    ended = python(dedent(code))
    assert ended.stdout == "AsyncGRPOTrainer\n", ended.stderr
