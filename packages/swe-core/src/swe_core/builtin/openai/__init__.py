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
    """`[engine.openai]`. The provider's key stays in the environment and is never a setting."""

    url: str | None = Field(default=None, description="base URL, without /chat/completions")
    model: str | None = Field(default=None, description="model name at the provider")
    api_key_env: str = Field(
        default="OPENAI_API_KEY", description="environment variable with the key; without it no key is sent"
    )
    timeout: float = Field(
        default=600.0, gt=0, description="maximum seconds without a byte from the provider"
    )
    max_retries: int = Field(
        default=5, ge=0, description="retries after 429, 5xx, broken connections and timeouts"
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="maximum tokens of a reply, however many the agent asks for"
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="fields to set in every request, such as temperature"
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
