"""What the policy's servers say of themselves, and whether they can serve one training together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import httpx

from swe_core.errors import ConfigError, EngineError, EngineUnavailable, sentence
from swe_trainer_trl.server.parallel import in_parallel

T = TypeVar("T")

_ASK = 120.0
"""Timeout of a request in seconds. The first answer about its start takes a busy server some."""
_PROBE = tuple(range(1, 33))
"""Ids of a prompt whose log-probabilities are compared. Every vocabulary has them."""
_EXACT, _ROUNDED = 1e-3, 0.2
"""Largest mean difference of the log-probabilities of two servers with the same weights, in float32 and in a
precision of 16 bits or fewer, where the order of additions matters."""


def models(url: str, key: str | None = None) -> dict[str, Any]:
    """Return name → card of the models and adapters that a server serves.

    Args:
        url: Base URL of the server, without `/v1`.
        key: Is sent as bearer token; None sends none.

    Raises:
        httpx.HTTPError | ValueError | KeyError | TypeError: The server gave no such list.
    """
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    reply = httpx.get(f"{url}/v1/models", headers=headers, timeout=_ASK, trust_env=False).raise_for_status()
    return {card["id"]: card for card in reply.json()["data"]}


def require_adapters(url: str) -> None:
    """Refuse a server without support for adapters: TRL would merge them and send all weights instead.

    Args:
        url: The server's base URL, without `/v1`.

    Raises:
        ConfigError: The server takes no adapters, or does not report whether it does.
    """
    if _configuration(url, lambda found: found["lora_config"]) is None:
        raise ConfigError(
            f"the server {url!r} takes no adapters: start it with --enable-lora, --max-lora-rank and "
            "--max-loras and with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in its environment, or leave out "
            "worker.trl.lora"
        )


def refuse_used(url: str, name: str) -> None:
    """Refuse a server that holds adapters of another training: vLLM accepts each adapter name only once.

    Args:
        url: The server's base URL, without `/v1`.
        name: Prefix of the adapters' names.

    Raises:
        ConfigError: The server holds such adapters, or does not report its adapters.
    """
    try:
        held = [served for served in models(url) if served.startswith(f"{name}-v")]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the server {url!r} does not say at /v1/models which adapters it holds ({sentence(error)}): "
            "check that it is vLLM, and wants no key"
        ) from None
    if held:
        raise ConfigError(
            f"the server {url!r} holds adapters of another training ({', '.join(held)}): restart it, or "
            "resume that training (--resume)"
        )


def refuse_unequal(urls: Sequence[str], model: str, key: str | None) -> None:
    """Refuse servers that were not started alike.

    Args:
        urls: Base URLs of the servers, without `/v1`.
        model: Name of the model on the servers.
        key: Is sent as bearer token; None sends none.

    Raises:
        ConfigError: They differ, or one does not report what it serves.
    """
    first, *others = in_parallel([partial(_identity, url, model, key) for url in urls])
    for url, other in zip(urls[1:], others, strict=True):
        for name, value in first.items():
            if other[name] != value:
                raise ConfigError(
                    f"the servers {urls[0]!r} and {url!r} serve one policy, but differ in their {name} "
                    f"({value!r} and {other[name]!r}): start both with the same command"
                )


def compare(urls: Sequence[str], model: str, key: str | None) -> None:
    """Refuse servers that answer differently although they were given the same weights.

    Args:
        urls: Base URLs of the servers, without `/v1`.
        model: Name of the model, or of the adapter, on the servers.
        key: Is sent as bearer token; None sends none.

    Raises:
        EngineError: The log-probabilities of the same ids differ, or a server gives none.
        EngineUnavailable: A server does not answer.
    """
    first, *others = in_parallel([partial(_logprobs, url, model, key) for url in urls])
    allowed = _EXACT if _configuration(urls[0], _dtype).endswith("float32") else _ROUNDED
    for url, other in zip(urls[1:], others, strict=True):
        apart = sum(abs(a - b) for a, b in zip(first, other, strict=True)) / len(first)
        if not apart <= allowed:  # also NaN
            raise EngineError(
                f"the servers {urls[0]!r} and {url!r} were given the same weights, but their "
                f"log-probabilities of the same ids differ by {apart:.2g} (at most {allowed:g} is usual): "
                "start both with the same command, and let both see the run directory"
            )


def _identity(url: str, model: str, key: str | None) -> dict[str, Any]:
    """Return what must be the same for all servers, under its name in words."""
    try:
        root = models(url, key)[model]["root"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"the server {url!r} does not say at /v1/models what it serves ({sentence(error)}): check that "
            "it is vLLM"
        ) from None

    def read(found: Any) -> dict[str, Any]:
        lora = found["lora_config"] or {}
        return {
            "model": root,
            "dtype": _dtype(found),
            "quantization": found["model_config"].get("quantization"),
            "--max-lora-rank": lora.get("max_lora_rank"),
            "--max-loras": lora.get("max_loras"),
        }

    return _configuration(url, read)


def _dtype(found: Any) -> str:
    return str(found["model_config"]["dtype"])


def _configuration(url: str, read: Callable[[Any], T]) -> T:
    """Return what `read` finds in vLLM's configuration of a server.

    Raises:
        ConfigError: The server does not report it.
        EngineUnavailable: The server does not answer.
    """
    try:
        reply = httpx.get(
            f"{url}/server_info", params={"config_format": "json"}, timeout=_ASK, trust_env=False
        ).raise_for_status()
        return read(reply.json()["vllm_config"])
    except httpx.TransportError as error:
        raise _silent(url, error) from None
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the server {url!r} does not say at /server_info how it was started ({sentence(error)}): "
            "start vLLM with VLLM_SERVER_DEV_MODE=1 in its environment"
        ) from None


def _logprobs(url: str, model: str, key: str | None) -> list[float]:
    """Return the natural log-probability of each id of the probe after its first."""
    body = {"model": model, "prompt": list(_PROBE), "max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        reply = httpx.post(
            f"{url}/v1/completions", json=body, headers=headers, timeout=_ASK, trust_env=False
        ).raise_for_status()
        entries = reply.json()["choices"][0]["prompt_logprobs"][1:]
        return [float(entry[str(token)]["logprob"]) for token, entry in zip(_PROBE[1:], entries, strict=True)]
    except httpx.TransportError as error:
        raise _silent(url, error) from None
    except (httpx.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
        raise EngineError(
            f"the server {url!r} gives no log-probabilities of a prompt ({sentence(error)}): check that it "
            "is vLLM"
        ) from None


def _silent(url: str, error: httpx.TransportError) -> EngineUnavailable:
    return EngineUnavailable(f"the server {url!r} does not answer ({type(error).__name__}): see its log")
