"""Which of several servers a rollout asks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import cast

import pytest

from swe_core.builtin.vllm import servers as servers_module
from swe_core.builtin.vllm.client import Client
from swe_core.builtin.vllm.servers import Server, Servers

URLS = ("a", "b", "c")


def three() -> Servers:
    return Servers([cast(Client, SimpleNamespace(url=url)) for url in URLS])


def joined(servers: Servers, rollout_id: str) -> Server:
    server = servers.join(rollout_id)
    assert server is not None
    return server


def test_id_decides_among_equally_loaded_servers() -> None:
    """A server that is taken out moves only the rollouts that would ask it."""
    alone = [joined(three(), f"r{n}").client.url for n in range(300)]
    assert all(70 < count < 130 for count in Counter(alone).values())
    for number, before in enumerate(alone):
        servers = three()
        servers.take_out("b")
        after = joined(servers, f"r{number}").client.url
        assert after == before if before != "b" else after in ("a", "c")


def test_servers_have_equal_shares() -> None:
    servers = three()
    several = [joined(servers, f"r{number}") for number in range(30)]
    assert Counter(server.client.url for server in several) == dict.fromkeys(URLS, 10)
    left = several[7]
    servers.leave(left)
    assert joined(servers, "another") is left


def test_failed_server_is_avoided_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(servers_module, "time", clock)
    servers = three()
    first = joined(servers, "r")
    other = servers.move("r", first, [first])
    assert other is not None
    assert (first.rollouts, other.rollouts) == (0, 1)
    assert first not in [servers.join(f"r{number}") for number in range(5)]
    last = servers.move("r", other, [first, other]) or pytest.fail("there was another")
    assert servers.move("r", last, [first, other, last]) is None
    assert last.rollouts > 0
    assert servers.join("s") in (first, other, last), "failed ones, where no other is left"
    clock.monotonic = lambda: 1001.0 + servers_module._AVOIDED
    assert servers.join("t") is first
