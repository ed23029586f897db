"""The arithmetic of memory, beside what torch and the published models say."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if find_spec("transformers") is None or find_spec("torch") is None:
    pytest.skip("torch and transformers are not installed", allow_module_level=True)

from swe_trainer_trl.planning.cards import GIB
from swe_trainer_trl.planning.memory import (
    ServerNeeds,
    TrainerNeeds,
    activations,
    adapter_slots,
    cached_token,
    optimizer_bytes,
    server_memory,
    trainer_memory,
)
from swe_trainer_trl.planning.model_size import ModelSize, model_size

from .models import qwen3

if TYPE_CHECKING:
    import torch

WHOLE = TrainerNeeds(
    weights=4, compute=2, optimizer="adamw_torch_fused", optimizer_args=None, checkpointing=True, row=8192,
    references=0, processes=1, sharded=False, cpu=False,
)  # fmt: skip
SERVED = ServerNeeds(weights=2, context=40_960, adapters=0, tensor_parallel=1, memory=72 * GIB, card=80 * GIB)


def size_of(directory: Path, name: str, lora: dict[str, Any] | None = None, **changed: Any) -> ModelSize:
    from transformers import AutoConfig

    return model_size(AutoConfig.from_pretrained(qwen3(directory, name, **changed)), lora)


@pytest.mark.parametrize(("name", "parameters"), [("Qwen3-0.6B", 596_049_920), ("Qwen3-8B", 8_190_735_360)])
def test_parameters_of_published_models(tmp_path: Path, name: str, parameters: int) -> None:
    size = size_of(tmp_path, name)
    assert size.parameters == size.trained == parameters
    assert size.layers * size.layer < parameters
    assert size.head == size.vocabulary * size.hidden
    assert size.dtype == "bfloat16"
    assert not size.adapter


def test_adapter_is_counted_by_peft(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    size = size_of(tmp_path, "Qwen3-8B", {"r": 32})
    # r × (in + out) of the seven linear layers of each block
    linear = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 12_288)
    assert size.trained == 32 * 36 * linear
    assert size.adapter
    assert size.parameters == 8_190_735_360
    assert size_of(tmp_path, "Qwen3-8B", {"r": 32, "target_modules": ["q_proj"]}).trained == 32 * 36 * 8192
    assert size_of(tmp_path, "Qwen3-8B", {"nonsense": 1}).trained == 0  # `lora_config` refuses that
    # it trains in float32 on frozen halves
    parts = trainer_memory(size, replace(WHOLE, weights=2))
    assert parts["weights"] == 2 * size.parameters + 4 * size.trained
    assert (parts["gradients"], parts["optimizer"]) == (4 * size.trained, 8 * size.trained)
    assert parts["copies"] == 0


def test_whole_model_takes_sixteen_bytes_a_parameter(tmp_path: Path) -> None:
    size = size_of(tmp_path, "Qwen3-8B")
    parts = trainer_memory(size, WHOLE)
    state = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert state == 16 * size.parameters
    assert parts["copies"] == 2 * size.parameters  # autocast's
    assert parts["reference"] == 0
    assert trainer_memory(size, replace(WHOLE, references=1))["reference"] == (
        2 * size.layers * size.layer + 4 * (size.parameters - size.layers * size.layer)
    )


def test_sharding_divides_what_ddp_repeats(tmp_path: Path) -> None:
    size = size_of(tmp_path, "Qwen3-1.7B")
    alone, several = WHOLE, replace(WHOLE, processes=4)
    for part in ("weights", "gradients", "optimizer"):
        whole = trainer_memory(size, alone)[part]
        assert trainer_memory(size, replace(several, sharded=True))[part] == whole // 4
        assert trainer_memory(size, several)[part] == whole
    assert trainer_memory(size, several)["copies"] == (2 + 4) * size.parameters  # and DDP's buckets


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        *(("adamw_torch", {}), ("adagrad", {}), ("adafactor", {})),
        *(("sgd", {"momentum": 0.9}), ("rmsprop", {"momentum": 0.9, "centered": True})),
    ],
)
def test_states_of_optimizers_are_those_that_they_keep(name: str, arguments: dict[str, Any]) -> None:
    """One step of the real optimizer, whose tensors are counted."""
    import torch
    from transformers.optimization import Adafactor

    weights = [torch.nn.Parameter(torch.ones(64, 48)), torch.nn.Parameter(torch.ones(100))]
    made: dict[str, Any] = {
        "adamw_torch": torch.optim.AdamW,
        "adagrad": torch.optim.Adagrad,
        "sgd": torch.optim.SGD,
        "rmsprop": torch.optim.RMSprop,
        "adafactor": lambda these, **_: Adafactor(these, lr=1e-3, scale_parameter=False, relative_step=False),
    }
    optimizer = made[name](weights, **arguments)
    for one in weights:
        one.grad = torch.ones_like(one)
    optimizer.step()
    kept = sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if torch.is_tensor(value) and value.dim() > 0
    )
    trained = sum(one.numel() for one in weights)
    size = replace(TINY, trained=trained, factored=64 + 48 + 100)
    given = ", ".join(f"{key}={value}" for key, value in arguments.items())
    assert optimizer_bytes(size, name, given or None, 4) == kept


TINY = ModelSize(
    parameters=1, trained=1, factored=1, adapter=False, layer=1, head=1, layers=2, hidden=256,
    intermediate=768, heads=8, kv_heads=2, head_dim=32, vocabulary=1000, context=1024, cached=256,
    dtype="float32",
)  # fmt: skip


@pytest.mark.parametrize(("dtype", "hidden"), [("float32", 256), ("bfloat16", 1024)])
def test_activations_of_a_layer_cover_what_autograd_keeps(dtype: str, hidden: int) -> None:
    """Measured on the device `meta`, with an attention that keeps what a flash kernel keeps."""
    import torch

    width = torch.finfo(getattr(torch, dtype)).bits // 8
    kept = (_kept(dtype, hidden, 2000) - _kept(dtype, hidden, 1000)) / 1000
    size = replace(
        TINY, layers=1, hidden=hidden, intermediate=3 * hidden, heads=hidden // 32, kv_heads=hidden // 128
    )
    needs = replace(WHOLE, weights=width, compute=width, checkpointing=False, row=2_000_000)
    token = activations(size, needs) / needs.row - hidden * (width + 4)
    assert kept <= token <= 1.6 * kept


def _kept(dtype: str, hidden: int, tokens: int) -> int:
    """Return the bytes that autograd keeps of one layer of a Qwen3 for its backward pass."""
    import torch
    from transformers import AttentionInterface, Qwen3Config, Qwen3ForCausalLM

    class Flash(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *queries_keys_values: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(*queries_keys_values, out := torch.empty_like(queries_keys_values[0]))
            return out

    def attention(_module: Any, query: Any, key: Any, value: Any, _mask: Any, **_: Any) -> tuple[Any, None]:
        query, key, value = (one.transpose(1, 2)[0] for one in (query, key, value))
        every = torch.arange(len(key), device=key.device)  # as TRL's tree attention gathers them
        return Flash.apply(query, key.index_select(0, every), value.index_select(0, every))[None], None

    AttentionInterface.register("kept", attention)
    config = Qwen3Config(
        vocab_size=1000, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=1,
        num_attention_heads=hidden // 32, num_key_value_heads=hidden // 128, head_dim=32,
    )  # fmt: skip
    stored: dict[int, Any] = {}
    with torch.device("meta"):
        model = Qwen3ForCausalLM(config).to(getattr(torch, dtype))
        model.config._attn_implementation = "kept"
        inputs = torch.empty(1, tokens, hidden, dtype=model.dtype, requires_grad=True)
        rotary = model.model.rotary_emb(inputs, torch.arange(tokens)[None])

        def keep(one: torch.Tensor) -> torch.Tensor:
            stored[one.untyped_storage()._cdata] = one.untyped_storage()
            return one

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            model.model.layers[0](inputs, position_embeddings=rotary, attention_mask=None)
        weights = {one.untyped_storage()._cdata for one in model.parameters()}
    return sum(storage.nbytes() for key, storage in stored.items() if key not in weights)


def test_checkpointing_saves_activations_and_rows_cost_in_proportion(tmp_path: Path) -> None:
    size = size_of(tmp_path, "Qwen3-1.7B")
    short, long = (activations(size, replace(WHOLE, row=row)) for row in (8192, 16_384))
    head_and_tile = 4 * size.head + 4096 * 32_768 * 2
    assert long - head_and_tile == 2 * (short - head_and_tile)
    assert activations(size, replace(WHOLE, checkpointing=False)) > 3 * short


def test_kv_cache_of_a_token(tmp_path: Path) -> None:
    size = size_of(tmp_path, "Qwen3-8B")
    assert cached_token(size, SERVED) == 2 * 36 * 8 * 128 * 2 == 147_456
    assert cached_token(size, replace(SERVED, tensor_parallel=8)) == 147_456 // 8
    assert cached_token(size, replace(SERVED, tensor_parallel=16)) == 147_456 // 8  # eight key heads
    assert cached_token(size, replace(SERVED, weights=4)) == 2 * 147_456


def test_server_fills_its_share_of_a_gpu(tmp_path: Path) -> None:
    size = size_of(tmp_path, "Qwen3-8B")
    parts = server_memory(size, SERVED)
    assert parts["weights"] == 2 * size.parameters
    assert sum(parts.values()) == SERVED.memory
    half = server_memory(size, replace(SERVED, tensor_parallel=2))
    assert half["weights"] == size.parameters
    assert half["cache"] > parts["cache"]
    assert server_memory(size, replace(SERVED, memory=GIB))["cache"] == 0
    on_cpu = server_memory(size, replace(SERVED, tensor_parallel=0, memory=4 * GIB))
    assert on_cpu["cache"] == 4 * GIB
    assert adapter_slots(replace(size, trained=100), 9, 16, 4) == 100 * 16 * 4 // 9


@pytest.mark.slow
def test_size_is_found_without_asking_cuda(tmp_path: Path) -> None:
    """A question to CUDA would fix the GPUs of this process, before the layout is decided."""
    model = qwen3(tmp_path, "Qwen3-0.6B")
    script = Path(__file__).with_name("without_cuda.py")
    done = subprocess.run([sys.executable, str(script), str(model)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["596049920", "asked:"]
