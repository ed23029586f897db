"""Which attention a trainer on CUDA gets, and that torch's is called as FlashAttention is. On a CPU: what the
kernels compute is a check of `make test-gpu`."""

import logging
from types import SimpleNamespace

import pytest

from swe_core.errors import ConfigError
from swe_testing.serving.start import missing

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


@pytest.fixture(scope="module")
def cuda():
    """The module, which imports TRL: that takes seconds."""
    from swe_trainer_trl.trainer import cuda_attention

    return cuda_attention


@pytest.fixture
def packing(cuda, monkeypatch):
    """A module in the place of TRL's, on a machine that seems to have CUDA; no kernel can be loaded."""

    def load():
        raise ModuleNotFoundError("No module named 'kernels'", name="kernels")

    packing = SimpleNamespace(_flash_attn=load)
    monkeypatch.setattr("swe_trainer_trl.compat.packing_module", packing)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    cuda.install.cache_clear()
    yield packing
    cuda.install.cache_clear()


def rows(dtype, keys=2):
    """Query, key and value of two segments, the second of which sees four tokens before its own."""
    import torch

    draw = torch.Generator().manual_seed(3)
    made = [torch.randn((n, heads, 8), generator=draw) for n, heads in ((5, 4), (9, keys), (9, keys))]
    ends = [torch.tensor(ends, dtype=torch.int32) for ends in ([0, 2, 5], [0, 2, 9])]
    return [*(one.to(dtype) for one in made), *ends, 3, 7]


def varlen(cuda, calls):
    """Something like torch's `varlen_attn`: no more than its arguments, and computed on the CPU."""

    def varlen_attn(q, k, v, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):
        calls.append((window_size, enable_gqa))
        assert window_size[1] == 0  # (-1, -1) would see all keys
        return cuda.attention(q, k, v, cu_q, cu_k, max_q, max_k, softmax_scale=scale, window_size=window_size)

    return varlen_attn


def test_without_the_kernel_torchs_attention_is_used_with_one_warning(cuda, packing, monkeypatch, caplog):
    import torch

    calls = []
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", varlen(cuda, calls))
    cuda.install()
    cuda.install()
    given = rows(torch.bfloat16)
    for _ in range(2):
        got = packing._flash_attn().flash_attn_varlen_func(
            *given, softmax_scale=0.3, causal=True, window_size=(-1, -1)
        )
    torch.testing.assert_close(got, cuda.attention(*given, softmax_scale=0.3))
    assert calls == [((-1, 0), True)] * 2
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "No module named 'kernels'" in record.getMessage()


@pytest.mark.parametrize("old", [False, True])
def test_torchs_attention_gets_window_and_refuses_caps(cuda, packing, monkeypatch, old):
    """Torch 2.11 has no word for shared key heads, and computes them, as `make test-gpu` has shown."""
    import torch

    def varlen_211(q, k, v, cu_q, cu_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)):
        return cuda.attention(q, k, v, cu_q, cu_k, max_q, max_k, softmax_scale=scale, window_size=window_size)

    calls = []
    function = varlen_211 if old else varlen(cuda, calls)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", function)
    given = rows(torch.bfloat16, keys=2 if old else 4)
    got = cuda.torch_attention()(*given, window_size=(2, 0))
    torch.testing.assert_close(got, cuda.attention(*given, window_size=(2, 0)))
    assert calls == ([] if old else [((2, 0), False)])
    with pytest.raises(ConfigError, match="install the package kernels"):
        cuda.torch_attention()(*given, softcap=30.0)


def test_torchs_own_function_takes_what_is_passed(cuda):
    """The names are those of the torch that is installed; on a CPU it has no kernel behind them."""
    import torch

    with pytest.raises(NotImplementedError, match="_flash_attention_forward"):
        cuda.torch_attention()(*rows(torch.bfloat16))


def test_before_its_varlen_knew_windows_torch_computes_segment_by_segment(cuda, monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda query, key, value: None)
    assert cuda.torch_attention() is cuda.by_segments


def test_a_kernel_that_loads_is_used_for_16_bits(cuda, packing, caplog, monkeypatch):
    """32 bits never ask for it, and without CUDA nothing changes."""
    import torch

    asked = []

    def load():
        return SimpleNamespace(flash_attn_varlen_func=lambda *a, **k: asked.append((a, k)))

    packing._flash_attn = load
    with monkeypatch.context() as patched:
        patched.setattr("torch.cuda.is_available", lambda: False)
        cuda.install()
    assert packing._flash_attn is load
    cuda.install.cache_clear()
    cuda.install()
    given, long = rows(torch.float16), rows(torch.float32)
    packing._flash_attn().flash_attn_varlen_func(*given, causal=True)
    got = packing._flash_attn().flash_attn_varlen_func(*long, causal=True)
    torch.testing.assert_close(got, cuda.attention(*long))
    assert asked == [(tuple(given), {"causal": True})]
    assert caplog.records == []
