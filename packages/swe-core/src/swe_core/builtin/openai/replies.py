"""The answers of a provider: completions, streams, and errors as one sentence each."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from swe_core.api.engine import Completion, Delta, Emit, Usage
from swe_core.builtin import bounds
from swe_core.builtin.bounds import OutOfBounds, check_calls, loads
from swe_core.builtin.http_engine import ErrorTranslator, Transient, is_html
from swe_core.builtin.openai.pieces import Pieces, is_object
from swe_core.errors import EngineError, EngineProtocolError, EngineUnavailable
from swe_core.system.json_size import MAX_VALUES, values

_REASONS = {
    name: reason
    for reason, names in {
        "stop": "stop stop_sequence end_turn end eos eos_token stop_token complete completed finished done",
        "length": "length max_tokens max_output_tokens max_completion_tokens max_length model_length "
        "token_limit incomplete model_context_window_exceeded",
        "tool_calls": "tool_calls tool_call tool_use function_call function_calls",
        "content_filter": "content_filter content_filtered refusal safety image_safety recitation language "
        "blocklist prohibited_content spii sensitive guardrail_intervened",
    }.items()
    for name in names.split()
}
"""Finish reasons of providers → OpenAI's."""
_BROKEN = re.compile(
    "error|fail|malformed|missing|unexpected|too_many|abort|cancel|time_?out|unavailable|overload|insufficient"
    "|interrupt|disconnect|exception|invalid|internal|rate_?limit|quota|preempt"
)
"""In a finish reason that no model has: the provider broke the reply off, or lost a call of the model."""
_MOST_TOKENS = 2**53
_PLAIN = frozenset(("role", "content", "refusal", "reasoning", "reasoning_content"))
"""Fields that are text, whose pieces become one."""
_USUAL = 24
"""Values of an event with one piece of a call."""
_LONG = 4096
"""Bytes of an event in which commas may be text."""
_MOST_VALUES = 4 * MAX_VALUES
_LONGEST = 1024
"""Characters of a model's name. Some dialects repeat it in each event."""


_CALL = frozenset({"id", "type", "function"})
_USUAL_REASONS = ("stop", "tool_calls", "length")
_OURS = (None, *_USUAL_REASONS)
"""Finish reasons of OpenAI's that need no reading."""
_FAILS = ("native_finish_reason", "error")
_ENDS = ("finish_reason", *_FAILS)


class _Models(BaseModel):
    class Model(BaseModel):
        id: str

    data: list[Model]


def parse_reply(
    content: bytes, headers: Mapping[str, str], url: str, refusals: ErrorTranslator
) -> Completion:
    """Return the completion in the `content` of a response with status 200.

    Raises:
        EngineProtocolError: The content is something else.
        Transient | EngineError: The content is an error, which some providers send with status 200.
        OutOfBounds: It has too many values or levels.
    """
    body = _json(content, headers, url)
    if (usual := _usual(body)) is not None:
        finish = body["choices"][0].get("finish_reason")
        return _completion(usual, finish, body.get("usage"), body.get("model"), refusals)
    _raise_error(body, refusals)
    try:
        choices = _choices(_object(body, "it"))
        if not choices:
            raise ValueError("choices is empty")
        choice = _object(choices[0], "a choice")
        message = _object(choice.get("message"), "message")
        _raise_broken(choice, refusals, begun=_says_something(message))
        check_calls(message.get("tool_calls"))
        pieces = Pieces()
        pieces.add(_numbered(message))
        pieces.rest()
    except ValueError as error:
        raise EngineProtocolError(
            f"the provider at {url!r} answered no chat completion ({error}): check that the URL is "
            "that of an OpenAI-compatible API"
        ) from None
    finish = choice.get("finish_reason")
    return _completion(pieces.message(), finish, body.get("usage"), body.get("model"), refusals)


def parse_models(content: bytes, headers: Mapping[str, str], url: str) -> list[str]:
    """Return the model names of a `GET /models` reply; empty where its shape is not OpenAI's.

    Raises:
        EngineProtocolError: It is not JSON.
    """
    try:
        return [model.id for model in _Models.model_validate(_json(content, headers, url)).data]
    except (ValidationError, OutOfBounds):
        return []


class StreamedReply:
    """One streamed reply: forwards its pieces as they arrive, and collects them.

    Attributes:
        emitted: Whether a piece was forwarded; from then on the call cannot be repeated.
        told: How many pieces said something.

    Args:
        most: Pieces that may say something.
    """

    def __init__(self, url: str, emit: Emit | None, refusals: ErrorTranslator, most: int) -> None:
        self.emitted = False
        self.told = 0
        self._most = most
        self._values = 0
        self._url = url
        self._emit = emit
        self._refusals = refusals
        self._pieces = Pieces()
        self._choice: object = None
        self._finish: object = None
        self._usage: object = None
        self._model: object = None
        self._done = False

    async def add(self, data: bytes) -> bool:
        """Add the data of one event. Returns whether it was the last.

        Raises:
            EngineProtocolError: It is no chunk of a chat completion.
            Transient | EngineError: It is an error of the provider.
            OutOfBounds: It has too many values or levels.
        """
        data = data.strip()
        if not data:  # keeps the connection alive
            return False
        if data == b"[DONE]":
            self._done = True
            return True
        try:
            if body := _loads(data):
                await self._take(_object(body, "it"), data)
        except orjson.JSONDecodeError:
            lines = data.split(b"\n")
            if len(lines) == 1:
                raise self._no_chunk("invalid JSON") from None
            for line in lines:  # no blank lines between events
                if await self.add(line):
                    return True
        except OutOfBounds:
            raise
        except ValueError as error:
            raise self._no_chunk(str(error)) from None
        except (Transient, EngineError) as error:
            raise self._broken(error) from None
        return False

    async def completion(self, cut: Sequence[bytes] = ()) -> Completion:
        """Return the whole reply, after the last event.

        Args:
            cut: The data of events whose end did not come.

        Raises:
            Transient | EngineError: The stream ended before the reply did, or the reply is broken.
        """
        for data in cut:
            with suppress(EngineProtocolError):
                await self.add(data)
        if not self._done and self._finish is None:
            raise self._broken(Transient(f"the stream of the provider at {self._url!r} ended early"))
        rest = self._pieces.rest()
        if self._emit is not None and rest:
            self.emitted = True
            await self._emit(rest)
        try:
            return _completion(self._pieces.message(), self._finish, self._usage, self._model, self._refusals)
        except Transient as error:
            raise self._broken(error) from None

    async def _take(self, body: dict[str, Any], data: bytes) -> None:
        """Take an event, whose text is `data`."""
        if body.get("error") or "choices" not in body:
            _raise_error(body, self._refusals, begun=self.told > 0)
        for given in _choices(body):
            choice = _object(given, "a choice")
            index = choice.get("index")
            if self._choice is None:
                self._choice = index
            elif index is not None and index != self._choice:
                continue
            if any(map(choice.get, _ENDS)):
                _raise_broken(choice, self._refusals, begun=self.told > 0)
                self._finish = choice.get("finish_reason") or self._finish
            delta = choice.get("delta")
            if delta is None and not self.told:  # a whole reply, which may also repeat the pieces
                delta = _numbered(_object(choice.get("message") or {}, "message"))
            if delta:
                news = self._pieces.add(_object(delta, "delta"))
                tells = _says_something(news)
                self.told += tells or _says_something(delta)
                self._bound(delta, data)
                if tells and self._emit is not None:
                    self.emitted = True
                    await self._emit(news)
        self._usage = body.get("usage") or self._usage
        self._model = body.get("model") or self._model

    def _bound(self, delta: Delta, data: bytes) -> None:
        """Check the size of the reply after a delta, whose event has the text `data`.

        Raises:
            OutOfBounds: The reply has too many pieces, values or calls.
        """
        if self.told > self._most:
            raise OutOfBounds(f"more than {self._most} pieces")
        if delta.keys() <= _PLAIN:
            return
        if len(data) > _LONG:  # no shorter event has a long name, or very many calls
            check_calls(delta.get("tool_calls"))
            found = values(data)
        else:
            found = data.count(b"{") + data.count(b"[") + data.count(b",")
        if found > _USUAL:
            self._values += found - _USUAL
            if self._values > _MOST_VALUES:
                raise OutOfBounds(f"more than {_MOST_VALUES} values")
        if self._pieces.calls > bounds.CALLS:
            raise OutOfBounds(f"more than {bounds.CALLS} tool calls")

    def _no_chunk(self, why: str) -> EngineProtocolError:
        return EngineProtocolError(f"the provider at {self._url!r} streamed no chat completion ({why})")

    def _broken(self, error: Exception) -> Exception:
        if self.emitted and isinstance(error, Transient):
            return EngineUnavailable(f"{error}, in the middle of a reply")
        return error


def _json(content: bytes, headers: Mapping[str, str], url: str) -> Any:
    try:
        return _loads(content)
    except orjson.JSONDecodeError:
        what = "an HTML page" if is_html(headers, content) else "something that is not JSON"
        raise EngineProtocolError(
            f"the provider at {url!r} answered {what}: check that the URL is the API's base, most often "
            "ending in /v1"
        ) from None


def _loads(raw: bytes) -> Any:
    """Return the value of a provider's JSON, also of what only lax writers take for it: NaN and numbers
    beyond floats are null, and halves of surrogate pairs and bytes that are no UTF-8 a mark.

    Raises:
        orjson.JSONDecodeError: It is none.
        OutOfBounds: It has too many values or levels.
    """
    try:
        return loads(raw)
    except orjson.JSONDecodeError as error:
        problem = error
    if values(raw) > MAX_VALUES:
        raise OutOfBounds(f"more than {MAX_VALUES} values")
    try:
        value = _LAX.decode(raw.decode(errors="replace").strip())
        text = json.dumps(value, ensure_ascii=False).encode(errors="replace")
    except (ValueError, RecursionError):
        raise problem from None
    return loads(text)


def _number(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


_LAX = json.JSONDecoder(parse_float=_number, parse_constant=lambda _: None, strict=False)


def _usual(body: Any) -> dict[str, Any] | None:
    """Return the message of a whole reply that is as OpenAI writes it, as most are; None of another one."""
    choices = body.get("choices") if isinstance(body, dict) and not body.get("error") else None
    choice = choices[0] if isinstance(choices, list) and choices else None
    if (
        not isinstance(choice, dict)
        or choice.get("finish_reason") not in _OURS
        or any(map(choice.get, _FAILS))
    ):
        return None
    message = choice.get("message")
    if not isinstance(message, dict):
        return None
    said: dict[str, Any] = {"role": "assistant", "content": None}
    for key, value in message.items():
        if value is None:
            continue
        if key == "tool_calls" and _are_usual(value):
            if value:
                said[key] = value
        elif key in _PLAIN and isinstance(value, str):
            said[key] = value
        else:
            return None
    return said


def _are_usual(calls: object) -> bool:
    if not isinstance(calls, list) or len(calls) > bounds.CALLS or not all(map(_is_usual, calls)):
        return False
    return len(calls) < 2 or len({call["id"] for call in calls}) == len(calls)


def _is_usual(call: object) -> bool:
    if not isinstance(call, dict) or call.keys() != _CALL or not isinstance(call["function"], dict):
        return False
    function = call["function"]
    texts = (call["id"], function.get("name"), function.get("arguments"))
    if len(function) != len(texts) - 1 or not all(isinstance(text, str) and text for text in texts):
        return False
    return max(map(len, texts[:2])) <= bounds.NAME and is_object(function["arguments"])


def _numbered(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a whole message as a delta: the place of a call in the list tells it apart."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return dict(message)
    numbered = [{**call, "index": at} if isinstance(call, Mapping) else call for at, call in enumerate(calls)]
    return {**message, "tool_calls": numbered}


def _raise_error(body: object, refusals: ErrorTranslator, *, begun: bool = False) -> None:
    """Raise the error that a body is or has; `begun`: whether the reply has."""
    if isinstance(body, Mapping):
        if body.get("error"):
            raise refusals.in_reply(body, begun=begun)
        if "choices" not in body and any(body.get(key) for key in ("message", "detail")):
            raise refusals.in_reply({"error": body}, begun=begun)


def _raise_broken(choice: Mapping[str, Any], refusals: ErrorTranslator, *, begun: bool) -> None:
    """Raise the error that a choice has, or that only its finish reason names."""
    if error := choice.get("error"):
        _raise_error({"error": error}, refusals, begun=begun)
    for reason in (choice.get("finish_reason"), choice.get("native_finish_reason")):
        if reason not in _OURS and _BROKEN.search(str(reason).lower()):
            raise refusals.in_reply({"error": f"the reply ended with the finish reason {reason!r}"})


def _completion(
    message: dict[str, Any], finish: object, usage: object, model: object, refusals: ErrorTranslator
) -> Completion:
    reason = finish if finish in _USUAL_REASONS else _REASONS.get(re.sub(r"[\s-]", "_", str(finish).lower()))
    if reason == "tool_calls" and not message.get("tool_calls"):  # they were lost
        reason = None
    if reason is None and not any(message.get(key) for key in ("content", "refusal", "tool_calls")):
        raise refusals.in_reply({"error": f"an empty reply ended with the finish reason {finish!r}"})
    if reason in (None, "stop"):  # agents cannot do without, and look for their calls
        reason = "tool_calls" if message.get("tool_calls") else "stop"
    counts = usage if isinstance(usage, dict) else {}
    return Completion(
        message=message,
        finish_reason=reason,
        usage=Usage(
            prompt_tokens=_count(counts.get("prompt_tokens")),
            completion_tokens=_count(counts.get("completion_tokens")),
        ),
        model=model if isinstance(model, str) and len(model) <= _LONGEST else "",
    )


def _count(given: object) -> int:
    """Return a number of tokens; 0 where it is unknown or nonsense."""
    return int(given) if isinstance(given, (int, float)) and 0 <= given <= _MOST_TOKENS else 0


def _choices(body: Mapping[str, Any]) -> list[Any]:
    choices = body.get("choices") or []
    if not isinstance(choices, list):
        raise ValueError(f"choices is {type(choices).__name__}, not a list")
    return choices


def _object(value: Any, name: str) -> dict[str, Any]:
    """Return `value`, which is an object.

    Raises:
        ValueError: It is something else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {type(value).__name__}, not an object")
    return value


def _says_something(delta: Delta) -> bool:
    return any(value for key, value in delta.items() if key != "role")
