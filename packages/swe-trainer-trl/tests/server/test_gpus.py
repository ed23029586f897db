"""The split of GPUs between replicas of vLLM and trainer processes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.errors import ConfigError
from swe_trainer_trl.config import ServerOptions

if TYPE_CHECKING:  # imports torch, which takes seconds
    from swe_trainer_trl.server.gpus import GPULayout

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

PAIR = {"gpus": "0,1,2", "demand": {"tensor_parallel": 2}}
Servers = tuple[tuple[str, ...], ...]
NCCL = r"NCCL.*worker\.trl\.lora.*worker\.trl\.weight_sync to 'disk'"
NOT_THERE = r"worker\.trl\.server\.gpus is .*, but must name GPUs that exist"


def split(
    visible: list[str],
    *,
    nccl: bool = False,
    processes: int | None = None,
    demand: dict[str, Any] | None = None,
    **server: Any,
) -> GPULayout:
    from swe_trainer_trl.server.gpus import Demand, layout

    needs = Demand(**(demand or {}))
    return layout(visible, ServerOptions(**server), nccl=nccl, processes=processes, demand=needs)


def names(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.mark.parametrize(("heads", "kv_heads", "fits"), [(32, 8, [1, 2, 4, 8, 16]), (40, 10, [1, 2, 5, 10])])
def test_heads_of_keys_and_values_are_divided_too(heads: int, kv_heads: int, fits: list[int]) -> None:
    """As vLLM asserts for Llama and Qwen3; 40 and 10 heads are those of Phi-4."""
    from swe_trainer_trl.server.gpus import divides

    assert [size for size in range(1, 17) if divides(size, heads, kv_heads)] == fits
    demand = {"tensor_parallel": 8, "heads": heads, "kv_heads": kv_heads}
    got = split(names(9), demand=demand)
    assert len(got.server) in fits
    said = f"is 3, but .* {heads} attention heads and {kv_heads} of keys and values"
    with pytest.raises(ConfigError, match=f"{said}, .* use one of {', '.join(map(str, fits))}$"):
        split(names(4), tensor_parallel=3, demand=demand)


@pytest.mark.parametrize(
    ("count", "demand", "servers", "trainers", "idle"),
    [
        (0, {}, ((),), (), ()),
        (1, {}, (("0",),), ("0",), ()),
        (4, {}, (("1",), ("2",), ("3",)), ("0",), ()),
        (8, {"trainers": 4, "tensor_parallel": 2}, (("4", "5"), ("6", "7")), ("0", "1", "2", "3"), ()),
        (3, {"trainers": 2, "tensor_parallel": 4}, (("1", "2"),), ("0",), ()),
    ],
)
def test_default_gives_the_trainer_what_it_needs_and_vllm_the_rest(
    count: int, demand: dict[str, Any], servers: Servers, trainers: tuple[str, ...], idle: tuple[str, ...]
) -> None:
    got = split(names(count), nccl=count > 1, demand=demand)
    assert (got.servers, got.trainers, tuple(got.idle)) == (servers, trainers, idle)
    assert all("GPUs are for vLLM, and its" in why for why in got.idle.values())


@pytest.mark.parametrize(
    ("visible", "settings", "servers", "trainers", "idle"),
    [
        (["GPU-a", "GPU-b", "GPU-c"], {"gpus": "GPU-a, GPU-c"}, (("GPU-a",), ("GPU-c",)), ("GPU-b",), ()),
        (names(3), {"gpus": "1,2", "tensor_parallel": 2}, (("1", "2"),), ("0",), ()),
        (names(6), {"gpus": "2,3;4,5"}, (("2", "3"), ("4", "5")), ("0",), ("1",)),
        (names(8), {"replicas": 2, "processes": 2}, (("2", "3"), ("4", "5")), ("0", "1"), ("6", "7")),
        (names(8), {"tensor_parallel": 2, "processes": 4}, (("4", "5"), ("6", "7")), names(4), ()),
        ([], {"replicas": 2}, ((), ()), (), ()),
        # on GPUs of replicas the trainer takes first what no replica uses
        *((names(3), {**PAIR, "processes": n}, (("0", "1"),), ("2", "0", "1")[:n], ()) for n in (1, 3)),
    ],
)
def test_settings_decide(
    visible: list[str], settings: dict[str, Any], servers: Servers, trainers: Any, idle: tuple[str, ...]
) -> None:
    got = split(visible, **settings)
    assert (got.servers, got.trainers, tuple(got.idle)) == (servers, tuple(trainers), idle)


@pytest.mark.parametrize(
    ("visible", "settings", "said"),
    [
        ([], {"nccl": True}, NCCL),
        (["0", "1"], {"nccl": True, "gpus": "1,0"}, NCCL),
        ([], {"gpus": "0"}, NOT_THERE),
        (["0", "1"], {"gpus": "1,1"}, NOT_THERE),
        (["0", "1"], {"gpus": "1;"}, NOT_THERE),
        (names(4), {"gpus": "1,2;3"}, "each replica must have the same number of GPUs"),
        (names(5), {"gpus": "1,2;3,4", "replicas": 1}, r"2 replicas of 2 GPUs, but .*replicas is 1"),
        (names(5), {"gpus": "1,2;3,4", "tensor_parallel": 4}, r"tensor_parallel is 4: leave that out"),
        (names(4), {"gpus": "1,2", "replicas": 3}, r"replicas is 3 .* takes 3 GPUs, but 2 are there"),
        (names(4), {"gpus": "1,2,3", "processes": 2}, r"processes is 2, but .*gpus leaves 1 GPU"),
        (names(2), {"processes": 2}, r"2 trainer processes .* take 3 GPUs, but there are 2: lower one"),
        (["0"], {"processes": 2}, r"processes is 2, but there is 1 GPU"),
        (["0"], {"tensor_parallel": 2}, r"tensor_parallel is 2, which takes 2 GPUs"),
        ([], {"tensor_parallel": 2}, r"tensor_parallel needs GPUs, and there are none"),
        (names(7), {"gpus": "1,2,3;4,5,6", "demand": {"heads": 32}}, "tensor_parallel is 3, but the model"),
    ],
)
def test_layouts_that_cannot_be(visible: list[str], settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        split(visible, **settings)


@given(
    count=st.integers(0, 17),
    nccl=st.booleans(),
    trainers=st.integers(1, 20),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    heads=st.sampled_from([None, 12, 14, 32]),
)
def test_every_default_layout_can_be_used_and_explains_idle_gpus(
    count: int, nccl: bool, trainers: int, tensor_parallel: int, heads: int | None
) -> None:
    demand = {"trainers": trainers, "tensor_parallel": tensor_parallel, "heads": heads}
    if nccl and count < 2:
        with pytest.raises(ConfigError):
            split(names(count), nccl=nccl, demand=demand)
        return
    got = split(names(count), nccl=nccl, demand=demand)
    serving = [name for replica in got.servers for name in replica]
    assert sorted({*serving, *got.trainers, *got.idle}, key=int) == names(count)
    assert len(serving) == len(set(serving))
    assert got.shared == (count == 1)
    assert bool(got.trainers) == bool(count)
    for replica in got.servers:
        assert len(replica) == len(got.server)
        assert not heads or not replica or heads % len(replica) == 0
    assert len(got.idle) < max(1, len(got.server))
    assert not set(got.idle) & {*serving, *got.trainers}


def test_servers_of_the_user_leave_all_gpus_to_the_trainer() -> None:
    from swe_trainer_trl.server.gpus import Demand, without_server

    got = without_server(names(4), None, Demand(trainers=2))
    assert (got.servers, got.server, got.trainers) == ((), (), ("0", "1"))
    assert tuple(got.idle) == ("2", "3")
    assert without_server([], None).trainers == ()
    assert len(without_server(names(4), 3).trainers) == 3
    with pytest.raises(ConfigError, match=r"worker\.trl\.processes is 5, but there are 4 GPUs"):
        without_server(names(4), 5)


@pytest.mark.parametrize(
    ("named", "count", "expected"),
    [(None, 2, ("0", "1")), ("3, 5", 2, ("3", "5")), ("0", 0, ()), ("0,-1,1", 1, ("0",))],
)
def test_which_gpus_are_visible(
    monkeypatch: pytest.MonkeyPatch, named: str | None, count: int, expected: tuple[str, ...]
) -> None:
    from swe_trainer_trl.server.gpus import visible_gpus

    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == expected
