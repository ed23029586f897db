"""Known providers: where their OpenAI-compatible APIs are, and in which variables their keys.

`--model anthropic/NAME` is enough for a provider of this table. The rows are of November 2026; tests
call none of these services.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass

from swe_core.errors import ConfigError
from swe_core.system.urls import base_url

BASE_URL_VARIABLE = "OPENAI_BASE_URL"
DEFAULT = "openai"
"""The provider of a model name without a slash."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A service with an OpenAI-compatible API.

    Args:
        url: Base URL of its chat completions.
        key: Environment variable with its key.
        needs_key: Whether it answers no request without a key.
        lists_models: Whether `GET /models` takes the key as chat completions do.
        stream_options: Whether it accepts the field `stream_options`; without it the usage comes anyway.
        limit: The only field for the maximum tokens of a reply that it accepts; None: it accepts both.
        takes: Fields of its replies, besides text and calls, that it takes back in later requests; None: all
            that it gives. It refuses others, or ignores them.
    """

    url: str
    key: str
    needs_key: bool = True
    lists_models: bool = True
    stream_options: bool = True
    limit: str | None = None
    takes: tuple[str, ...] | None = None


_GEMINI = Provider(
    "https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY", takes=("extra_content",)
)
_XAI = Provider("https://api.x.ai/v1", "XAI_API_KEY")

PROVIDERS: Mapping[str, Provider] = {
    DEFAULT: Provider("https://api.openai.com/v1", "OPENAI_API_KEY", limit="max_completion_tokens", takes=()),
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY", lists_models=False),
    "gemini": _GEMINI,
    "google": _GEMINI,
    "xai": _XAI,
    "grok": _XAI,
    "mistral": Provider(
        "https://api.mistral.ai/v1", "MISTRAL_API_KEY", stream_options=False, limit="max_tokens", takes=()
    ),
    "deepseek": Provider("https://api.deepseek.com", "DEEPSEEK_API_KEY", takes=("reasoning_content",)),
    "openrouter": Provider(
        "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", takes=("reasoning", "reasoning_details")
    ),
    "hf": Provider("https://router.huggingface.co/v1", "HF_TOKEN"),
    "together": Provider("https://api.together.ai/v1", "TOGETHER_API_KEY"),
    "fireworks": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY", takes=("reasoning",)),
    "cerebras": Provider("https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", takes=("reasoning",)),
    "ollama": Provider("http://127.0.0.1:11434/v1", "OLLAMA_API_KEY", needs_key=False),
}
"""First part of a model name → provider. Some have two names, because other tools use the second."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a model is.

    Args:
        url: Base URL.
        model: The model's name there.
        key: Environment variable with the key.
        by: What it was found by, such as "provider anthropic".
    """

    url: str
    model: str
    key: str
    by: str


def find_endpoint(model: str, environment: Mapping[str, str] = os.environ) -> Endpoint:
    """Return where `model` is, for a run that names no URL.

    `PROVIDER/NAME` is NAME at that provider. `OPENAI_BASE_URL` stands in for OpenAI's own URL, and gets the
    names of models as they are.

    Raises:
        ConfigError: The name begins with no known provider, or `OPENAI_BASE_URL` is no base URL.
    """
    start, slash, rest = model.partition("/")
    name = start if rest and start in PROVIDERS else None
    ours = PROVIDERS[DEFAULT]
    own = environment.get(BASE_URL_VARIABLE, "").strip()
    if own and name in (None, DEFAULT):
        return Endpoint(base_url(own), model, ours.key, f"environment variable {BASE_URL_VARIABLE}")
    if name is not None:
        return Endpoint(PROVIDERS[name].url, rest, PROVIDERS[name].key, f"provider {name}")
    if slash:
        raise ConfigError(_unknown(model, start))
    return Endpoint(ours.url, model, ours.key, f"provider {DEFAULT}")


def provider_at(url: str) -> Provider | None:
    """Return the known provider at a base URL without a trailing slash; None for any other server."""
    return next((provider for provider in PROVIDERS.values() if provider.url == url), None)


def _unknown(model: str, start: str) -> str:
    names = ", ".join(PROVIDERS)
    rest = model.removeprefix(f"{start}/")
    close = difflib.get_close_matches(start.lower(), list(PROVIDERS), n=1)
    if start in PROVIDERS:
        remedy = f"{start} is one, but no name of a model follows"
    elif start == "vllm":
        remedy = f"for a vLLM server, pass --engine vllm --engine-url URL --model {rest}"
    elif close:
        remedy = f"did you mean {f'{close[0]}/{rest}'!r}? There are {names}"
    else:
        remedy = f"put one first, such as hf/{model}, or pass --engine-url URL (there are {names})"
    return f"the model {model!r} is not PROVIDER/NAME with a known provider: {remedy}"
