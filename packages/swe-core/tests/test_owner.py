"""Ownership of sandboxes: only what a dead process of this host left is abandoned."""

import subprocess
import sys

from swe_core.owner import current_owner, is_abandoned


def test_a_living_owner_is_not_abandoned() -> None:
    assert not is_abandoned(current_owner())


def test_a_dead_process_is_abandoned() -> None:
    script = "from swe_core.owner import current_owner; print(current_owner())"
    owner = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert is_abandoned(owner.strip())


def test_a_reused_pid_is_abandoned() -> None:
    host, boot, namespace, pid, started = current_owner().rsplit("/", 4)
    assert is_abandoned(f"{host}/{boot}/{namespace}/{pid}/{int(started) + 1}")


def test_an_earlier_boot_is_abandoned() -> None:
    host, _, rest = current_owner().split("/", 2)
    assert is_abandoned(f"{host}/another-boot/{rest}")


def test_another_pid_namespace_cannot_be_judged() -> None:
    host, boot, _, pid, started = current_owner().rsplit("/", 4)
    assert not is_abandoned(f"{host}/{boot}/1/{pid}/{int(started) + 1}")


def test_other_hosts_and_nonsense_are_left_alone() -> None:
    assert not is_abandoned("elsewhere/boot/1/1/1")
    assert not is_abandoned("nonsense")
