"""Wrong settings, and clusters that do not answer: one sentence each. No cluster is started."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from swe_core.errors import ConfigError
from swe_core.run.settings import validate
from swe_executor_ray.checks import look
from swe_executor_ray.config import RayConfig


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"workers": 0}, "no workers without a cluster: add --address auto, or give --workers 1 or more"),
        ({"workers": 2, "address": "auto"}, "--workers starts a cluster, and --address joins one: leave one"),
        ({"address": "ray://127.0.0.1:10001"}, "with ray:// the run would be outside the cluster: start it"),
        ({"slots": 0}, "slots: Input should be greater than or equal to 1"),
        ({"wheels": []}, "unknown setting 'wheels'; there are: workers, address, slots, env, runtime_env"),
    ],
)
def test_settings_that_do_not_fit(values: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        validate(RayConfig, values, "the executor 'ray'")


def test_variable_that_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SET", "value")
    monkeypatch.delenv("UNSET", raising=False)
    assert RayConfig(env=("SET",)).variables() == {"SET": "value"}
    with pytest.raises(ConfigError, match=r"executor\.ray\.env names the variable 'UNSET', which is unset"):
        RayConfig(env=("SET", "UNSET")).variables()


def run(tmp_path: Path, scratch: Path, *args: str, code: str = "") -> str:
    """Run the program, which refuses; what it says."""
    command = [
        *(sys.executable, "-c", f"{code}\nfrom swe_core.cli import main; main()", "run", "--plugins", "ray"),
        *("--executor", "ray", "--agent", "oracle", "--tasks", "demo", "--out", str(tmp_path / "run")),
        *("--set", "sandbox.local.unisolated=true", *args),
    ]
    env = {**os.environ, "TMPDIR": str(scratch), "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
    return done.stderr


@pytest.mark.slow
def test_without_ray(tmp_path: Path, scratch: Path) -> None:
    """What does not need it works, and the executor says what to install."""
    blocked = "import sys; sys.modules['ray'] = None"
    last = run(tmp_path, scratch, "--workers", "1", code=blocked).splitlines()[-1]
    assert last.startswith("swe-core: error: Ray cannot be imported: ")
    assert last.endswith("install it: pip install 'ray>=2.50,<3'")


def test_check_says_the_version() -> None:
    assert look().text.startswith("Ray 2.")


@pytest.mark.long
def test_addresses_where_no_cluster_answers(tmp_path: Path, scratch: Path) -> None:
    join = ("--workers", "0", "--address")
    said = run(tmp_path, scratch, *join, "nonsense")
    assert "cannot join the Ray cluster at 'nonsense': Invalid address" in said
    with socket.create_server(("127.0.0.1", 0)) as server:  # accepts, and never answers
        (sentence,) = run(tmp_path, scratch, *join, f"127.0.0.1:{server.getsockname()[1]}").splitlines()
    assert "no Ray cluster answers at '127.0.0.1:" in sentence
    assert "within 15 s: give the HOST:PORT that `ray start` has printed" in sentence
