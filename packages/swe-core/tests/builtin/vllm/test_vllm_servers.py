"""Which of several servers a rollout asks."""

from __future__ import annotations

from typing import Any

import pytest

from swe_core.builtin.vllm import servers as servers_module
from swe_core.builtin.vllm.servers import Servers


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(servers_module, "time", clock)
    return clock


def three() -> Servers:
    clients: Any = ["a", "b", "c"]
    return Servers(clients)


def test_new_rollout_joins_least_loaded_server(clock: Clock) -> None:
    servers = three()
    joined = [servers.join() for _ in range(6)]
    assert [server.client for server in joined] == ["a", "b", "c", "a", "b", "c"]
    servers.leave(joined[1])
    assert servers.join() is joined[1]


def test_failed_server_is_avoided_for_a_while(clock: Clock) -> None:
    servers = three()
    first = servers.join()
    other = servers.move(first, [first])
    assert other is not None
    assert (first.rollouts, other.rollouts) == (0, 1)
    assert first not in [servers.join() for _ in range(5)]
    clock.now += servers_module._AVOIDED + 1
    assert servers.join() is first


def test_failed_servers_are_used_when_no_other_is_left(clock: Clock) -> None:
    servers = three()
    server, failed = servers.join(), []
    for _ in range(2):
        failed.append(server)
        server = servers.move(server, failed) or pytest.fail("there was another")
    assert servers.move(server, [*failed, server]) is None
    assert server.rollouts == 1
    assert servers.join() in [*failed, server]
