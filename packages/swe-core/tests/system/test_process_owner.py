"""Owners of sandboxes: only those of dead processes on this host are orphaned."""

import subprocess
import sys
from pathlib import Path

import pytest

from swe_core.system import process_owner
from swe_core.system.process_owner import current_owner, is_orphaned, process_state


def test_dead_process_is_orphaned() -> None:
    script = "from swe_core.system.process_owner import current_owner; print(current_owner())"
    dead = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert is_orphaned(dead.strip())


def test_process_state_has_every_value() -> None:
    assert not any(map(is_orphaned, (current_owner(), "elsewhere/boot/1/1/1", "nonsense")))
    host, boot, namespace, pid, started = current_owner().rsplit("/", 4)
    assert process_state(current_owner()) == "alive"
    for owner, state in (
        (f"{host}/{boot}/{namespace}/{pid}/{int(started) + 1}", "gone"),
        (f"{host}/another-boot/{namespace}/{pid}/{started}", "gone"),
        (f"{host}/{boot}/1/{pid}/{int(started) + 1}", "unknown"),
        (f"elsewhere/{boot}/{namespace}/{pid}/{started}", "unknown"),
    ):
        assert process_state(owner) == state


def test_machine_with_the_same_name_is_another_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("0" * 32 + "\n")
    other = current_owner().replace(process_owner._boot_id(), "its-own-boot")
    monkeypatch.setattr(process_owner, "_MACHINE_ID", tmp_path / "machine-id")
    assert process_state(other) == "unknown", "it may be alive there"
    assert "0" * 8 not in current_owner(), "the id itself is confidential"


def test_process_state_works_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_owner, "_PROC", tmp_path / "none")
    assert process_state(current_owner()) == "alive"
    host, boot, namespace, _, started = current_owner().rsplit("/", 4)
    with subprocess.Popen(["true"]) as process:
        pass
    assert process_state(f"{host}/{boot}/{namespace}/{process.pid}/{started}") == "gone"
    assert process_state(f"{host}/{boot}/{namespace}/1/{started}") == "alive", "of whichever user"
