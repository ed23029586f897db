"""The CPU's attention against torch's own, and how it is put in place."""

import logging
from itertools import accumulate
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.errors import ConfigError
from swe_testing.serving.start import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def cpu():
    """The module, which imports TRL: that takes seconds."""
    from swe_trainer_trl.trainer import cpu_attention

    return cpu_attention


def bounds(lengths):
    import torch

    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def one_segment(query, key, value, scale, window):
    """By torch, with a mask written position by position, and each key's head repeated for its queries."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    shared = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(shared, dim=1) for tensor in (key, value))
    places = range(len(key) - len(query), len(key))  # of the queries among the keys
    mask = torch.tensor(
        [[j <= i and (window < 0 or j >= i - window) for j in range(len(key))] for i in places]
    )
    query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
    return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale).transpose(0, 1)


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 7)), min_size=1, max_size=5),
    heads=st.sampled_from([(1, 1), (4, 4), (4, 2), (6, 1)]),
    scale=st.sampled_from([None, 0.3]),
    window=st.sampled_from([-1, 0, 3, 100]),
    block=st.sampled_from([2, 256]),
    seed=st.integers(0, 2**31),
)
def test_attention_is_torchs_for_each_segment_with_its_gradients(
    cpu, lengths, heads, scale, window, block, seed
):  # fmt: skip
    import torch

    torch.manual_seed(seed)
    queries = [own for own, _ in lengths]
    keys = [own + before for own, before in lengths]
    shapes = [(sum(queries), heads[0], 8), (sum(keys), heads[1], 8), (sum(keys), heads[1], 8)]
    inputs = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]
    q, k, v = inputs
    parts = zip(q.split(queries), k.split(keys), v.split(keys), strict=True)
    expected = torch.cat([one_segment(*part, scale, window) for part in parts])
    weight = torch.randn_like(expected)
    with patch.object(cpu, "_BLOCK", block):
        got = cpu.attention(
            q, k, v, bounds(queries), bounds(keys), max(queries), max(keys),
            softmax_scale=scale, causal=True, window_size=(window, 0 if window >= 0 else -1),
        )  # fmt: skip
        mine = torch.autograd.grad((got * weight).sum(), inputs)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(mine, torch.autograd.grad((expected * weight).sum(), inputs))


def test_no_tensor_has_a_number_for_each_query_and_key(cpu):
    """A branch of a tree of rows, whose queries see keys of others: 32,000 ids of each would take 4 GB."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made = out if isinstance(out, tuple) else (out,)
            sizes.extend(one.numel() for one in made if isinstance(one, torch.Tensor))
            return out

    queries, keys = 600, 900
    inputs = [torch.randn(length, 2, 8, requires_grad=True) for length in (queries, keys, keys)]
    with Sizes():
        cpu.attention(*inputs, bounds([queries]), bounds([keys]), queries, keys).sum().backward()
    assert max(sizes) <= cpu._BLOCK * keys < queries * keys


@pytest.mark.parametrize("extra", [{"softcap": 30.0}, {"causal": False}])
def test_unsupported_options_are_refused(cpu, extra):
    import torch

    one = torch.zeros(1, 1, 8)
    with pytest.raises(ConfigError, match="train it on a GPU in 16 bits"):
        cpu.attention(one, one, one, bounds([1]), bounds([1]), 1, 1, **extra)


@pytest.fixture
def trl(cpu, monkeypatch):
    """Modules in the place of TRL's, and an `install` that was not called."""
    trainer, packing = SimpleNamespace(), SimpleNamespace()
    monkeypatch.setattr("swe_trainer_trl.compat.trainer_module", trainer)
    monkeypatch.setattr("swe_trainer_trl.compat.packing_module", packing)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    cpu.install.cache_clear()
    yield SimpleNamespace(trainer=trainer, packing=packing)
    cpu.install.cache_clear()


def test_install_replaces_the_kernel_and_what_asks_cuda(cpu, trl, caplog):
    trl.trainer.get_peak_flops_per_device = lambda *_: 1.0
    cpu.install()
    assert trl.packing._flash_attn().flash_attn_varlen_func is cpu.attention
    assert trl.trainer.get_peak_flops_per_device("accelerator", "float32") is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "for tests and laptops" in caplog.text


def test_install_once_is_enough(cpu, trl, caplog, monkeypatch):
    monkeypatch.setattr("swe_trainer_trl.compat.packing_module", None)
    trl.trainer.create_model_from_path = lambda path, **options: (path, options)
    cpu.install()
    made = trl.trainer.create_model_from_path
    cpu.install()
    assert trl.trainer.create_model_from_path is made
    assert len(caplog.records) == 1
    chosen = {"attn_implementation": "sdpa", "dtype": "float32"}
    assert made("m", attn_implementation="kernels-community/flash-attn3", dtype="float32") == ("m", chosen)
    # the oldest versions
    del trl.trainer.create_model_from_path
    cpu.install.cache_clear()
    trl.trainer.AutoModelForCausalLM = SimpleNamespace(from_pretrained=lambda path, **more: (path, more))
    cpu.install()
    made = trl.trainer.AutoModelForCausalLM.from_pretrained("m", attn_implementation="flash")
    assert made == ("m", {"attn_implementation": "sdpa"})
    assert not hasattr(trl.trainer, "get_peak_flops_per_device")


def test_with_cuda_install_does_nothing(cpu, trl, caplog, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    cpu.install()
    assert (vars(trl.trainer), vars(trl.packing), caplog.records) == ({}, {}, [])
