"""The size of a model from its configuration. No weights are loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

_BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With this variable torch asks NVML whether there is CUDA, which does not initialise CUDA."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of parameters and dimensions.

    Args:
        parameters: All parameters; tied ones count once.
        trained: Parameters that are trained: those of the adapter, if there is one.
        factored: Numbers that Adafactor keeps of the trained parameters.
        adapter: Whether an adapter is trained.
        layer: Parameters of the largest decoder layer.
        head: Parameters of the output head, tied or not.
        layers, hidden, intermediate, heads, kv_heads, head_dim, vocabulary: Dimensions of the text model.
        context: Longest context in tokens, as the configuration has it.
        cached: Numbers in the KV cache for each token.
        dtype: Type of the stored weights, such as `bfloat16`.
    """

    parameters: int
    trained: int
    factored: int
    adapter: bool
    layer: int
    head: int
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    cached: int
    dtype: str


def model_size(
    config: PreTrainedConfig, lora: Mapping[str, Any] | None, *, trust_remote_code: bool = False
) -> ModelSize:
    """Return the size of a model, which is built on torch's device `meta`.

    Args:
        config: The model's configuration.
        lora: `[worker.trl.lora]`; None if all weights are trained. An adapter that PEFT refuses counts as
            empty.
        trust_remote_code: Whether the model's own code may run.

    Raises:
        Exception: Whatever a model's code raises for such a configuration.
    """
    with torch.device("meta"):
        model = _built(config, trust_remote_code)
        text = config.get_text_config()
        stacks = [one for one in model.modules() if isinstance(one, nn.ModuleList)]
        stack = max(stacks, key=len, default=nn.ModuleList())
        parameters = _count(model.parameters())
        layer = max((_count(one.parameters()) for one in stack), default=0)
        head = _count(model.get_output_embeddings().parameters())
        trained = _adapter(model, lora) if lora is not None else _trained(model)
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    layers = text.num_hidden_layers
    return ModelSize(
        parameters=parameters,
        trained=_count(trained),
        factored=sum(sum(one.shape) if one.dim() > 1 else one.numel() for one in trained),
        adapter=lora is not None,
        layer=layer,
        head=head,
        layers=layers,
        hidden=text.hidden_size,
        intermediate=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=text.vocab_size,
        context=text.max_position_embeddings,
        cached=2 * layers * kv_heads * head_dim,
        dtype=str(config.dtype or "float32").removeprefix("torch."),
    )


@contextmanager
def without_cuda() -> Iterator[None]:
    """Let libraries ask NVML for CUDA, so that CUDA_VISIBLE_DEVICES may still change after the block."""
    before = os.environ.get(_BY_NVML)
    os.environ[_BY_NVML] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_BY_NVML]
        else:
            os.environ[_BY_NVML] = before


def _built(config: PreTrainedConfig, trust_remote_code: bool) -> PreTrainedModel:
    """Build the class that TRL would load: that of the configuration, or else a causal language model."""
    import transformers

    named = getattr(transformers, (config.architectures or [""])[0], None)
    if named is not None:
        return named(config)
    return transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)


def _trained(model: PreTrainedModel) -> list[nn.Parameter]:
    """Return what TRL trains: everything, but of a vision-language model its text model and head alone."""
    text = model.config.get_text_config()
    if text is model.config:
        return list(model.parameters())
    language = next((one for one in model.modules() if getattr(one, "config", None) is text), model)
    both = [*language.parameters(), *model.get_output_embeddings().parameters()]
    return list({id(one): one for one in both}.values())


def _adapter(model: PreTrainedModel, lora: Mapping[str, Any]) -> list[nn.Parameter]:
    """Return the parameters of an adapter that is put into `model`."""
    try:
        from peft import LoraConfig, inject_adapter_in_model

        wanted = LoraConfig(task_type="CAUSAL_LM", **{"target_modules": "all-linear"} | dict(lora))
        inject_adapter_in_model(wanted, model, low_cpu_mem_usage=True)
    except (ImportError, TypeError, ValueError):  # `lora_config` says what is wrong, in its own words
        return []
    return [one for one in model.parameters() if one.requires_grad]


def _count(parameters: Any) -> int:
    return sum(one.numel() for one in parameters)
