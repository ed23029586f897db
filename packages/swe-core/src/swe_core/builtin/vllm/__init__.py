"""The engine `vllm`: token ids in, token ids out. It owns the prompts' ids, and keeps what was sampled."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pydantic import Field

from swe_core.api.checks import Check, Finding
from swe_core.api.component import Component, Config
from swe_core.api.engine import Engine
from swe_core.errors import ConfigError
from swe_core.plugins.hookspecs import hookimpl


class VLLMConfig(Config):
    """`[engine.vllm]`. How tokens are sampled is set here alone: a temperature or a seed that the agent asks
    for is not used, since it would bend the distribution that the policy is trained on."""

    url: str | tuple[str, ...] = Field(
        default=(), description="base URLs of vLLM servers of one model, also comma separated"
    )
    model: str | None = Field(default=None, description="the name under which the servers serve the model")
    adapter: str | None = Field(
        default=None,
        min_length=1,
        description="name of LoRA adapters: policy version N is asked for as ADAPTER-vN, 0 as `model`",
    )
    tokenizer: str | None = Field(
        default=None,
        description="a directory or a name on the Hub; unset is the directory that the server names, "
        "where it is one here, else `model`",
    )
    renderer: str = Field(
        default="auto", description="auto, template, or a family of the package renderers, such as qwen3"
    )
    chat_template: Path | None = Field(default=None, description="a template instead of the tokenizer's own")
    template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="options of the template, such as enable_thinking"
    )
    tool_parser: str | None = Field(default=None, description="how tool calls are read; unset: by the family")
    reasoning_parser: str | None = Field(
        default=None, description="how reasoning is read; unset: by the family"
    )
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=1, description="sample from so many tokens; unset: from all")
    min_p: float = Field(default=0.0, ge=0, le=1)
    max_tokens: int | None = Field(default=None, ge=1, description="tokens of one reply")
    seed: int | None = Field(
        default=None,
        description="of every draw, with the rollout and the call; unset sends none, and vLLM samples faster",
    )
    max_missing_logprobs: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="share of sampled tokens without a log-probability beyond which the run ends",
    )
    stream_interval: int = Field(
        default=8, ge=1, description="tokens that a server sends at once; 1 is each by itself"
    )
    timeout: float = Field(default=600.0, gt=0, description="seconds without a byte from a server")
    max_retries: int = Field(
        default=5, ge=0, description="in a row that bring no token: on 429, 5xx, aborts, broken connections"
    )
    api_key_env: str = Field(
        default="VLLM_API_KEY", description="environment variable that holds the key; unset sends none"
    )


def _missing() -> list[str]:
    return [name for name in ("renderers", "transformers") if importlib.util.find_spec(name) is None]


def _libraries() -> Finding:
    if missing := _missing():
        return Finding("missing", f"{' and '.join(missing)} are not here", "pip install 'swe-core[vllm]'.")
    return Finding("ok", "renderers and transformers are installed")


def _create(config: VLLMConfig) -> Engine:
    if missing := _missing():
        raise ConfigError(f"the engine 'vllm' needs the package {missing[0]!r}: pip install 'swe-core[vllm]'")
    from swe_core.builtin.vllm.engine import VLLMEngine

    return VLLMEngine(config)


@hookimpl
def swe_engines() -> Iterable[Component[Engine]]:
    return [Component("vllm", _create, VLLMConfig, "samples from vLLM servers by token ids, and keeps them")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    from swe_core.builtin.http_engine import key_check

    return [
        Check("libraries", "--engine vllm", _libraries),
        key_check(VLLMConfig.model_fields["api_key_env"].default),
    ]
