"""TRL's client of a server, for several servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from swe_core.errors import EngineUnavailable
from swe_testing.serving.start import missing

if TYPE_CHECKING:  # imports TRL, which takes seconds
    from swe_trainer_trl.trainer.replica_client import ReplicaClient

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

A, B, C = "http://a", "http://b", "http://c"
SIZES = {A: 2, B: 1, C: 4}
CONTEXTS = {A: 4096, B: 2048, C: 8192}


class World:
    """Servers in memory: which are dead, which adapters each has, and what each was asked."""

    def __init__(self) -> None:
        self.urls = [A, B, C]
        self.dead: set[str] = set()
        self.adapters: dict[str, set[str]] = {url: set() for url in SIZES}
        self.asked: dict[str, list[Any]] = {url: [] for url in SIZES}

    def client(self) -> ReplicaClient:
        from swe_trainer_trl.trainer.replica_client import ReplicaClient

        return ReplicaClient(lambda: self.urls, partial(Single, self), 0.01)


class Single:
    """TRL's client of one server."""

    def __init__(self, world: World, url: str) -> None:
        self.server_url = url
        self._world = world

    def _ask(self, *what: Any) -> None:
        if self.server_url in self._world.dead:
            raise ConnectionRefusedError("refused")
        self._world.asked[self.server_url].append(what[0] if len(what) == 1 else what)

    def get_world_size(self) -> int:
        self._ask("size")
        return SIZES[self.server_url]

    def get_max_model_len(self) -> int:
        self._ask("context")
        return CONTEXTS[self.server_url]

    def get_dtype(self) -> str:
        self._ask("dtype")
        return "torch.float32"

    def get_server_info(self) -> dict[str, Any]:
        self._ask("info")
        return {"lora_config": {"max_loras": 4}}

    def load_lora_adapter(self, lora_name: str, lora_path: str, timeout: int = 1800) -> None:
        self._ask("load", lora_name, lora_path)
        assert lora_name not in self._world.adapters[self.server_url]  # vLLM answers 400
        self._world.adapters[self.server_url].add(lora_name)

    def unload_lora_adapter(self, lora_name: str, timeout: int = 1800) -> None:
        self._ask("unload", lora_name)

    def init_weight_transfer_engine(self, init_info: dict[str, Any], timeout: int = 1800) -> None:
        self._ask("init", init_info, timeout)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **options: self._ask(name, *arguments, *options.values())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    import swe_trainer_trl.trainer.replica_client as module

    world = World()

    def models(url: str) -> set[str]:
        if url in world.dead:
            raise ConnectionRefusedError("refused")
        return world.adapters[url]

    monkeypatch.setattr(module, "models", models)
    monkeypatch.setattr(module, "dead", lambda url: "it is gone" if url in world.dead else None)
    monkeypatch.setattr(module, "_ready", lambda url: url not in world.dead)
    return world


def test_processes_of_all_servers_have_ranks_of_their_own(world: World) -> None:
    client = world.client()
    assert client.get_world_size() == 7
    info = {"master_address": "h", "master_port": 5, "rank_offset": 1, "world_size": 8, "packed": True}
    client.init_weight_transfer_engine(info, timeout=9)
    given = {url: asked[-1][1]["rank_offset"] for url, asked in world.asked.items()}
    assert given == {A: 1, B: 3, C: 4}
    for asked in world.asked.values():
        name, sent, timeout = asked[-1]
        assert (name, timeout, {**sent, "rank_offset": 1}) == ("init", 9, info)
    world.urls = [C, B]  # the group is formed anew without A
    assert client.get_world_size() == 5
    client.init_weight_transfer_engine({**info, "world_size": 6})
    assert [world.asked[url][-1][1]["rank_offset"] for url in (C, B)] == [1, 5]


@pytest.mark.parametrize("name", ["pause", "resume", "update_weights"])
def test_every_server_is_asked(world: World, name: str) -> None:
    given = ({"names": ["w"]},) if name == "update_weights" else ()
    getattr(world.client(), name)(*given, timeout=7)
    assert world.asked == {url: [(name, *given, 7)] for url in SIZES}


@pytest.mark.parametrize("name", ["pause", "start_weight_update", "finish_weight_update"])
def test_dead_server_fails_a_sync_that_is_not_complete(world: World, name: str) -> None:
    world.dead.add(B)
    with pytest.raises(ConnectionRefusedError):
        getattr(world.client(), name)()
    assert [len(world.asked[url]) for url in (A, B, C)] == [1, 0, 1]


def test_dead_server_does_not_undo_a_complete_sync(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.client()
    world.dead.add(B)
    client.resume()
    client.unload_lora_adapter("p-v1")
    assert world.asked == {A: ["resume", ("unload", "p-v1")], B: [], C: ["resume", ("unload", "p-v1")]}
    monkeypatch.setattr("swe_trainer_trl.trainer.replica_client.dead", lambda url: None)
    with pytest.raises(ConnectionRefusedError):  # of a server that lives
        client.resume()


def test_adapter_is_loaded_where_it_is_missing(world: World) -> None:
    client = world.client()
    world.dead.add(C)
    with pytest.raises(ConnectionRefusedError):
        client.load_lora_adapter("p-v2", "dir")
    world.dead.clear()
    client.load_lora_adapter("p-v2", "dir")  # the sync is repeated
    assert world.asked == {url: [("load", "p-v2", "dir")] for url in SIZES}


def test_what_is_asked_about_comes_from_those_that_answer(world: World) -> None:
    client = world.client()
    assert client.get_max_model_len() == 2048
    world.dead |= {A, B}
    assert client.get_max_model_len() == 8192
    assert client.get_dtype() == "torch.float32"
    assert client.get_server_info() == {"lora_config": {"max_loras": 4}}
    client.wait_for_server_ready(0.001)
    world.dead.add(C)
    with pytest.raises(EngineUnavailable, match=f"none of the servers {A}, {B}, {C} answers"):
        client.get_max_model_len()
    with pytest.raises(EngineUnavailable, match="is ready after 0 s: start them again, then resume"):
        client.wait_for_server_ready(0.001)


def test_trainers_of_the_block_have_it(world: World) -> None:
    from swe_trainer_trl.compat import trainer_module
    from swe_trainer_trl.trainer.replica_client import ReplicaClient, replica_client

    before = trainer_module.VLLMClient
    with replica_client(lambda: [A, B]):
        made = trainer_module.VLLMClient("http://a", 5.0)
    assert isinstance(made, ReplicaClient)
    assert made.server_url == "http://a, http://b"
    assert [(one.server_url, one.server_timeout) for one in made._clients()] == [(A, 5.0), (B, 5.0)]
    assert trainer_module.VLLMClient is before


def test_it_has_what_trl_calls() -> None:
    """So that a new version of TRL, which asks more, is noticed."""
    from swe_trainer_trl.compat import trainer_module
    from swe_trainer_trl.trainer.replica_client import ReplicaClient

    wanted = {name for name in vars(trainer_module.VLLMClient) if not name.startswith("_")}
    assert wanted <= set(vars(ReplicaClient))
