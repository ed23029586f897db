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
    """`[engine.vllm]`. These settings control sampling; the agent's temperature and seed do not."""

    url: str | tuple[str, ...] = Field(
        default=(), description="base URLs of servers of one model: a list or comma-separated"
    )
    model: str | None = Field(default=None, description="model name on the servers")
    adapter: str | None = Field(
        default=None,
        min_length=1,
        description="LoRA adapter name; requests of policy version N use ADAPTER-vN",
    )
    tokenizer: str | None = Field(
        default=None,
        description="directory or Hub name; unset: the server's local model directory, else `model`",
    )
    renderer: str = Field(
        default="auto", description="`auto`, `template`, or a family of the package renderers"
    )
    chat_template: Path | None = Field(default=None, description="chat template file; unset: the tokenizer's")
    template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description="template options, such as enable_thinking"
    )
    tool_parser: str | None = Field(
        default=None,
        description="notation of tool calls, by vLLM's name of its parser; unset: the template's",
    )
    special_tokens: bool = Field(
        default=False,
        description="whether special tokens that are typed in messages become tokens, as in vLLM's chat API",
    )
    temperature: float = Field(default=1.0, ge=0, description="sampling temperature")
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus sampling threshold")
    top_k: int | None = Field(default=None, ge=1, description="number of candidate tokens; unset: all")
    min_p: float = Field(default=0.0, ge=0, le=1, description="minimum relative probability")
    max_tokens: int | None = Field(default=None, ge=1, description="maximum tokens of one reply")
    seed: int | None = Field(
        default=None,
        description="sampling seed, combined with rollout and call; unset samples faster",
    )
    max_missing_logprobs: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="maximum share of sampled tokens without log-probability",
    )
    stream_interval: int = Field(default=8, ge=1, description="tokens per stream chunk")
    timeout: float = Field(default=600.0, gt=0, description="maximum seconds without a token from a server")
    max_retries: int = Field(default=5, ge=0, description="consecutive retries without a new token")
    api_key_env: str = Field(
        default="VLLM_API_KEY", description="environment variable with the key; without it no key is sent"
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
