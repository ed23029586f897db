"""Which of several servers a rollout asks."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from swe_core.builtin.vllm import servers as servers_module
from swe_core.builtin.vllm.servers import Server, Servers

URLS = ("a", "b", "c")


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(servers_module, "time", clock)
    return clock


def client(url: str) -> Any:
    return SimpleNamespace(url=url)


def three() -> Servers:
    return Servers([client(url) for url in URLS])


def joined(servers: Servers, rollout_id: str) -> Server:
    server = servers.join(rollout_id)
    assert server is not None
    return server


def test_id_decides_among_equally_loaded_servers(clock: Clock) -> None:
    """A server that is taken out moves only the rollouts that would ask it."""
    alone = [joined(three(), f"r{n}").client.url for n in range(300)]
    assert all(70 < count < 130 for count in Counter(alone).values())
    for number, before in enumerate(alone):
        servers = three()
        servers.take_out("b")
        after = joined(servers, f"r{number}").client.url
        assert after == before if before != "b" else after in ("a", "c")


def test_servers_have_equal_shares(clock: Clock) -> None:
    servers = three()
    several = [joined(servers, f"r{number}") for number in range(30)]
    assert Counter(server.client.url for server in several) == dict.fromkeys(URLS, 10)
    left = several[7]
    servers.leave(left)
    assert joined(servers, "another") is left


def test_failed_server_is_avoided_for_a_while(clock: Clock) -> None:
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
    clock.now += servers_module._AVOIDED + 1
    assert servers.join("t") is first


def test_server_that_is_taken_out_gets_no_rollouts_until_it_is_put_in(clock: Clock) -> None:
    servers = three()
    on_b = next(server for number in range(9) if (server := joined(servers, f"r{number}")).client.url == "b")
    servers.take_out("b")
    assert {joined(servers, f"s{number}").client.url for number in range(20)} == {"a", "c"}
    assert on_b.rollouts == 1
    servers.leave(on_b)
    servers.take_out("a")
    last = joined(servers, "t")
    assert servers.move("t", last, [last]) is None
    servers.take_out("c")
    assert servers.join("u") is None
    servers.put_in(client("b"))
    servers.put_in(client("b"))
    assert [server.rollouts for server in servers._servers] == [0]
    assert joined(servers, "u").client.url == "b"
