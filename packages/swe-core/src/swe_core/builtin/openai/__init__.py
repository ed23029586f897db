"""The engine `openai`: relays the agents' calls to any OpenAI-compatible provider."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import Field

from swe_core.api.checks import Check
from swe_core.api.component import Component, Config
from swe_core.api.engine import Engine
from swe_core.plugins.hookspecs import hookimpl


class OpenAIConfig(Config):
    """`[engine.openai]`. The provider's key is never a setting: it stands in the environment only."""

    url: str | None = Field(default=None, description="base URL; /chat/completions is appended to it")
    model: str | None = Field(default=None, description="the provider's name of the model")
    api_key_env: str = Field(
        default="OPENAI_API_KEY", description="environment variable that holds the key; unset sends none"
    )
    timeout: float = Field(default=600.0, gt=0, description="seconds without a byte from the provider")
    max_retries: int = Field(default=5, ge=0, description="on 429, 5xx, broken connections and time-outs")
    params: dict[str, Any] = Field(
        default_factory=dict, description="body fields set in every request, such as temperature"
    )


def _create(config: OpenAIConfig) -> Engine:
    from swe_core.builtin.openai.engine import OpenAIEngine

    return OpenAIEngine(config)


@hookimpl
def swe_engines() -> Iterable[Component[Engine]]:
    return [Component("openai", _create, OpenAIConfig, "relays chat completions to an OpenAI-compatible URL")]


@hookimpl
def swe_checks() -> Iterable[Check]:
    from swe_core.builtin.http_engine import key_check

    return [key_check(OpenAIConfig.model_fields["api_key_env"].default)]
