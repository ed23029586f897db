"""The answers of a vLLM server to `/v1/completions` and `/v1/models`, parsed strictly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
import orjson
from pydantic import BaseModel, Field, ValidationError

from swe_core.builtin import bounds
from swe_core.builtin.http_engine import ErrorTranslator
from swe_core.errors import EngineProtocolError

_NOISE = 1e-6
"""How far above 0 rounding puts a log-probability."""
_EACH = 256
"""Bytes of an id with its text, its log-probability, and the same once more among the most probable."""
_NEVER = -9999.0
"""What vLLM writes for the logarithm of 0, which no sampled id has: it is unknown."""
_PROMPT = b'"prompt_token_ids":['
_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_Logprob = Annotated[float, msgspec.Meta(le=_NOISE)]


@dataclass(slots=True)
class Chunk:
    """Some or all ids of a reply.

    Args:
        ids: The sampled ids.
        logprobs: Log-probability of each id; NaN if the server gave none.
        finish: Why the reply ended; None before its end.
        version: The oldest policy version that may have sampled them.
    """

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: str | None = None
    version: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for.

    Args:
        prompt: The ids of the prompt as JSON text.
        ids: How many may be sampled.
        vocabulary: How many ids there are.
    """

    prompt: bytes
    ids: int
    vocabulary: int = 2**31

    @property
    def event(self) -> int:
        """Return the most bytes of an event. It may have all ids, and repeats the prompt."""
        return bounds.ERROR + 2 * len(self.prompt) + _EACH * self.ids

    @property
    def stream(self) -> int:
        """Return the most bytes of a stream with an event for each id."""
        return self.event + bounds.WIRE * self.ids


class Card(BaseModel):
    """A served model.

    Args:
        id: Its name.
        root: Where it lies: a directory of the server's machine, or a name on the Hub.
        max_model_len: Tokens of its context, prompt and completion together.
    """

    id: str
    root: str | None = None
    max_model_len: int | None = Field(default=None, ge=1)


class _Cards(BaseModel):
    data: list[Card]


class _Logprobs(msgspec.Struct):
    token_logprobs: list[_Logprob | None] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    token_ids: list[_Id] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    finish_reason: str | None = None


class _Reply(msgspec.Struct):
    choices: list[_Choice] | None = None
    error: object = None


_decode = msgspec.json.Decoder(_Reply).decode


class Replies:
    """Reads one server's replies.

    Args:
        refusals: The server's errors as sentences.
    """

    def __init__(self, refusals: ErrorTranslator) -> None:
        self._refusals = refusals
        self._where = refusals.where

    def cards(self, raw: bytes) -> list[Card]:
        """Return the served models.

        Raises:
            EngineProtocolError: It is no list of models.
        """
        try:
            return _Cards.model_validate_json(raw).data
        except ValidationError:
            raise EngineProtocolError(
                f"{self._where} lists no models at /v1/models: check that the URL is that of a vLLM server"
            ) from None

    def add(self, chunk: Chunk, raw: bytes, asked: Asked, *, first: bool = False) -> bool:
        """Add one reply, or one event of a streamed one, to `chunk`; False for an event without a choice.

        Args:
            first: Whether the reply should repeat the prompt's ids.

        Raises:
            EngineProtocolError: It is something else, lacks the ids, or answers another prompt.
            Transient | EngineError: It is an error of the server.
        """
        repeated = False
        if first:
            raw, repeated = _without_prompt(raw, asked.prompt)
        try:
            reply = _decode(raw)
        except msgspec.ValidationError as error:
            raise self._wrong(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._wrong("invalid JSON") from None
        if reply.error:
            raise self._refusals.in_reply({"error": reply.error}, begun=not first)
        if reply.choices is None:
            raise self._wrong("no choices")
        if not reply.choices:
            return False
        choice = reply.choices[0]
        if choice.index != 0:
            raise self._wrong(f"a choice with the index {choice.index}, and one was asked for")
        if chunk.finish is not None:
            raise self._wrong("more of a reply that had ended")
        if first and not repeated:
            self._compare(choice.prompt_token_ids, asked.prompt)
        if choice.token_ids is None:
            raise EngineProtocolError(
                f"{self._where} returns no token ids: it must be vLLM 0.10.2 or newer, which gives them "
                "where a request sets return_token_ids"
            )
        logprobs = self._logprobs(choice.logprobs, len(choice.token_ids))
        chunk.ids += choice.token_ids
        chunk.logprobs += logprobs
        chunk.finish = choice.finish_reason
        return True

    def check(self, ids: Sequence[int], asked: Asked, before: int = 0) -> None:
        """Check the ids of a reply.

        Args:
            before: How many came before them.

        Raises:
            EngineProtocolError: They are more than were asked for, or not the model's.
        """
        if before + len(ids) > asked.ids:
            raise EngineProtocolError(f"{self._where} sampled more ids than the {asked.ids} it was asked for")
        if ids and max(ids) >= asked.vocabulary:
            raise EngineProtocolError(
                f"{self._where} sampled the id {max(ids)}, and the tokenizer's model has {asked.vocabulary} "
                "ids: set engine.vllm.tokenizer to that of the served model"
            )

    def _compare(self, prompt: Sequence[int] | None, sent: bytes) -> None:
        """Check that a reply repeats the prompt that was sent, if it repeats one."""
        if prompt is not None and prompt != orjson.loads(b"[%b]" % sent):
            raise EngineProtocolError(
                f"{self._where} sampled from other prompt ids than it was sent: check that no proxy or "
                "plugin in front of it changes prompts"
            )

    def _logprobs(self, logprobs: _Logprobs | None, count: int) -> list[float]:
        given = logprobs.token_logprobs if logprobs is not None else None
        if given is None:
            return [math.nan] * count
        if len(given) != count:
            raise self._wrong(f"{len(given)} logprobs for {count} token ids")
        return [math.nan if value is None or value <= _NEVER else value for value in given]

    def _wrong(self, why: str) -> EngineProtocolError:
        return EngineProtocolError(
            f"{self._where} answered no completion ({why}): check that the URL is that of a vLLM server"
        )


def _without_prompt(raw: bytes, sent: bytes) -> tuple[bytes, bool]:
    """Return the reply without the prompt's ids, and whether they stood there as they were sent. Comparing
    the text saves reading every id of a long prompt at every turn."""
    start = raw.find(_PROMPT) + len(_PROMPT)
    end = start + len(sent)
    if start < len(_PROMPT) or not raw.startswith(sent, start) or raw[end : end + 1] != b"]":
        return raw, False
    return raw[:start] + raw[end:], True
