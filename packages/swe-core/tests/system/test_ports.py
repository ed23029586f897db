"""Ports for servers that listen some time later."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from swe_core.system import ports


def can_be_listened_on(port: int) -> bool:
    with socket.create_server(("127.0.0.1", port)):
        return True


def test_port_is_outside_the_ephemeral_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = tmp_path / "range"
    given.write_text("12000\t60999\n")
    monkeypatch.setattr(ports, "_EPHEMERAL", given)
    found = [ports.free_port() for _ in range(20)]
    assert all(10_000 <= port < 12_000 for port in found)
    assert can_be_listened_on(found[0])


def test_taken_port_is_not_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "_outside", lambda: taken)
        assert ports.free_port() != taken


@pytest.mark.parametrize("given", ["1024 65535", "", None])
def test_port_of_ephemeral_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str | None) -> None:
    if given is not None:
        (tmp_path / "range").write_text(given)
    monkeypatch.setattr(ports, "_EPHEMERAL", tmp_path / "range")
    assert can_be_listened_on(ports.free_port())
