"""Ownership of sandboxes: only what a dead process of this host left is abandoned."""

import subprocess
import sys
from pathlib import Path

import pytest

from swe_core.system import process_owner
from swe_core.system.process_owner import current_owner, is_orphaned, process_state


def test_a_living_owner_is_not_abandoned() -> None:
    assert not is_orphaned(current_owner())


def test_a_dead_process_is_abandoned() -> None:
    script = "from swe_core.system.process_owner import current_owner; print(current_owner())"
    dead = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert is_orphaned(dead.strip())


def test_a_reused_pid_is_abandoned() -> None:
    host, boot, namespace, pid, started = current_owner().rsplit("/", 4)
    assert is_orphaned(f"{host}/{boot}/{namespace}/{pid}/{int(started) + 1}")


def test_an_earlier_boot_is_abandoned() -> None:
    host, _, rest = current_owner().split("/", 2)
    assert is_orphaned(f"{host}/another-boot/{rest}")


def test_another_pid_namespace_cannot_be_judged() -> None:
    host, boot, _, pid, started = current_owner().rsplit("/", 4)
    assert not is_orphaned(f"{host}/{boot}/1/{pid}/{int(started) + 1}")


def test_other_hosts_and_nonsense_are_left_alone() -> None:
    assert not is_orphaned("elsewhere/boot/1/1/1")
    assert not is_orphaned("nonsense")


def test_the_states() -> None:
    host, boot, namespace, pid, started = current_owner().rsplit("/", 4)
    assert process_state(current_owner()) == "alive"
    assert process_state(f"{host}/{boot}/{namespace}/{pid}/{int(started) + 1}") == "gone"
    assert process_state(f"{host}/{boot}/1/{pid}/{started}") == "unknown"
    assert process_state(f"elsewhere/{boot}/{namespace}/{pid}/{started}") == "unknown"


def test_a_machine_of_the_same_name_is_another_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("0" * 32 + "\n")
    other = current_owner().replace(process_owner._boot_id(), "its-own-boot")
    monkeypatch.setattr(process_owner, "_MACHINE_ID", tmp_path / "machine-id")
    assert process_state(other) == "unknown", "it may be alive there"
    assert "0" * 8 not in current_owner(), "the id itself is confidential"


def test_where_there_is_no_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Living runs were called dead there."""
    monkeypatch.setattr(process_owner, "_PROC", tmp_path / "none")
    assert process_state(current_owner()) == "alive"
    host, boot, namespace, _, started = current_owner().rsplit("/", 4)
    with subprocess.Popen(["true"]) as process:
        pass
    assert process_state(f"{host}/{boot}/{namespace}/{process.pid}/{started}") == "gone"
    assert process_state(f"{host}/{boot}/{namespace}/1/{started}") == "alive", "of whichever user"
