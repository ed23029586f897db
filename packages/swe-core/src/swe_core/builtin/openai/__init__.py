"""The engine `openai`: relays the agents' calls to any OpenAI-compatible provider."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from pydantic import Field, ModelWrapValidatorHandler, PrivateAttr, model_validator

from swe_core.api.checks import Check
from swe_core.api.component import Component, Config
from swe_core.api.engine import Engine
from swe_core.builtin.openai.providers import find_endpoint
from swe_core.plugins.hookspecs import hookimpl


class OpenAIConfig(Config):
    """`[engine.openai]`. The provider's key stays in the environment and is never a setting."""

    url: str | None = Field(
        default=None,
        description="base URL, without /chat/completions; unset: that of the provider in `model`, else "
        "OPENAI_BASE_URL, else OpenAI's",
    )
    model: str | None = Field(
        default=None, description="model name at the provider; PROVIDER/NAME where `url` is unset"
    )
    api_key_env: str = Field(
        default="OPENAI_API_KEY",
        description="environment variable with the key, which is the provider's own for a PROVIDER/NAME; "
        "without it no key is sent",
    )
    timeout: float = Field(default=600.0, gt=0, description="maximum seconds without a piece of the reply")
    max_retries: int = Field(
        default=5, ge=0, description="retries after 429, 5xx, broken connections and timeouts"
    )
    max_tokens: int | None = Field(
        default=None, ge=1, description="maximum tokens of a reply, however many the agent asks for"
    )
    params: dict[str, Any] = Field(
        default_factory=dict, description="fields to set in every request, such as temperature"
    )
    _filled_in: dict[str, str] = PrivateAttr(default_factory=dict)

    def filled_in(self) -> Mapping[str, str]:
        """See `Config.filled_in`."""
        return self._filled_in

    @model_validator(mode="wrap")
    @classmethod
    def _find_provider(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Look up a model without a URL: set the URL, the model's name there, and the key's variable."""
        asked = values if isinstance(values, dict) else {}
        model = asked.get("model")
        if not isinstance(model, str) or not model or asked.get("url"):
            return handler(values)
        found = find_endpoint(model)
        filled = {"url": found.url, "model": found.model}
        if "api_key_env" not in asked and found.key != cls.model_fields["api_key_env"].default:
            filled["api_key_env"] = found.key
        config = handler({**asked, **filled})
        config._filled_in = {name: found.by for name, value in filled.items() if value != asked.get(name)}
        return config


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
