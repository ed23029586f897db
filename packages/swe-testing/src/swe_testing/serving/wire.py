"""The bodies of vLLM's `/v1/completions`: what is asked, and how it is answered, streamed or whole."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field


class StreamOptions(BaseModel):
    """Whether a stream ends with an event that carries the usage."""

    include_usage: bool = False


class StructuredOutputs(BaseModel):
    """What a reply is forced to be: here one certain text, and no other constraint."""

    model_config = ConfigDict(extra="forbid")

    choice: list[str] = Field(min_length=1, max_length=1)


class CompletionRequest(BaseModel):
    """The body of `/v1/completions`, with vLLM's defaults; keys that are not listed are ignored."""

    model: str
    prompt: list[int] = Field(min_length=1)
    max_tokens: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1)
    min_p: float = Field(default=0.0, ge=0, le=1)
    seed: int | None = None
    stop_token_ids: list[int] = []
    stop: list[str] = Field(default=[], max_length=0, description="refused: only ids end a reply here")
    ignore_eos: bool = False
    logprobs: int | None = Field(default=None, ge=0, description="how many of the most likely, besides")
    return_tokens_as_token_ids: bool = False
    return_token_ids: bool = False
    structured_outputs: StructuredOutputs | None = None
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()


class Reload(BaseModel):
    """Whose weights `reload_weights` takes."""

    model_config = ConfigDict(extra="forbid")

    weights_path: Path


class RemoteCall(BaseModel):
    """The body of `/collective_rpc`, of the one method that there is here."""

    method: Literal["reload_weights"]
    kwargs: Reload


class Refusal(Exception):
    """A request that vLLM answers with an error; `status` is its HTTP status."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.kind = kind

    def response(self) -> web.Response:
        """The answer, in vLLM's form."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return web.json_response({"error": error}, status=self.status)


class Token(NamedTuple):
    """One sampled token; the last one of a reply says why it ended. An aborted reply ends with no token."""

    id: int | None
    logprobs: Mapping[int, float] = {}
    """Natural log-probabilities, of the sampled id and of the most likely ones."""
    finish_reason: str | None = None
    stop_reason: int | None = None


class Reply:
    """The replies to one request: its tokens so far, as events or as one body."""

    def __init__(self, identity: str, model: str, request: CompletionRequest, tokenizer: Any) -> None:
        self._head = {
            "id": identity,
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._request = request
        self._tokenizer = tokenizer
        self._tokens: list[Token] = []
        self._text = ""

    def add(self, token: Token) -> dict[str, Any]:
        """Take in one more token; the event that says so."""
        self._tokens.append(token)
        shown = self._tokens if token.finish_reason != "stop" else self._tokens[:-1]
        text = self._tokenizer.decode(self._ids(shown), skip_special_tokens=True)
        new = ""
        if token.finish_reason is not None or not text.endswith("\ufffd"):  # half a character waits
            new, self._text = text[len(self._text) :], text
        choice = self._choice([token], new)
        if self._request.return_token_ids and len(self._tokens) > 1:
            del choice["prompt_token_ids"]
        return {**self._head, "choices": [choice]}

    def last(self) -> dict[str, Any]:
        """The event after all tokens."""
        return {**self._head, "choices": [], "usage": self._usage()}

    def whole(self) -> dict[str, Any]:
        """All of it as one body."""
        return {**self._head, "choices": [self._choice(self._tokens, self._text)], "usage": self._usage()}

    def _choice(self, tokens: list[Token], text: str) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": 0,
            "text": text,
            "logprobs": None,
            "finish_reason": tokens[-1].finish_reason,
            "stop_reason": tokens[-1].stop_reason,
        }
        if self._request.return_token_ids:
            choice |= {"token_ids": self._ids(tokens), "prompt_token_ids": self._request.prompt}
        if self._request.logprobs is not None:
            sampled = [(token.id, token.logprobs) for token in tokens if token.id is not None]
            names = [self._name(one) for one, _ in sampled]
            values = [logprobs[one] for one, logprobs in sampled]
            tops = [{self._name(one): value for one, value in top.items()} for _, top in sampled]
            offsets = list(itertools.accumulate((len(name) for name in names[:-1]), initial=0))
            choice["logprobs"] = {
                "tokens": names,
                "token_logprobs": values,
                "top_logprobs": tops,
                "text_offset": offsets[: len(names)],
            }
        return choice

    def _usage(self) -> dict[str, int]:
        prompt, completion = len(self._request.prompt), len(self._ids(self._tokens))
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }

    def _name(self, one: int) -> str:
        if self._request.return_tokens_as_token_ids:
            return f"token_id:{one}"
        return str(self._tokenizer.decode([one]))

    def _ids(self, tokens: list[Token]) -> list[int]:
        return [token.id for token in tokens if token.id is not None]


def event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"
