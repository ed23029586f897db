"""The dialect of OpenAI's chat completions: requests in; replies, event streams and errors out."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import orjson

from swe_core.api.deltas import whole
from swe_core.api.engine import Completion, Delta, Usage
from swe_core.api.messages import Message, dumps, sort_results, text_of
from swe_core.interception.dialects.base import (
    BadRequest,
    Dialect,
    ParsedRequest,
    Problem,
    Reply,
    Route,
    Target,
)
from swe_core.interception.dialects.common import event, expect, is_hosted, kind_of, limit_of, load, refuse

_ROLES = {"developer": "system", **{role: role for role in ("system", "user", "assistant", "tool")}}
_KINDS = {
    "invalid_request": "invalid_request_error",
    "authentication": "authentication_error",
    "rollout_over": "rollout_over",
    "engine": "engine_error",
    "tool": "tool_error",
    "server": "server_error",
}
_DONE = b"data: [DONE]\n\n"
_NOT_GIVEN: dict[str, tuple[Any, str]] = {
    "logprobs": (False, "replies carry no log-probabilities"),
    "top_logprobs": (0, "replies carry no log-probabilities"),
    "modalities": (["text"], "replies are text"),
    "audio": (None, "replies are text"),
    "moderation": (None, "nothing is moderated"),
}
"""Options that change the form of replies → their harmless value (as null is), and the reason."""


class ChatCompletions(Dialect):
    """`POST /chat/completions`, for OpenAI's SDKs and most agents."""

    name = "chat"
    routes = (Route("/v1/chat/completions"),)

    def parse(self, raw: bytes | bytearray, target: Target) -> ParsedRequest:
        body = load(raw)
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest(f"'messages' is {kind_of(messages)}; send a list of at least one message")
        expect(
            body,
            ("stream", bool, "true or false"),
            ("stream_options", dict, "an object"),
            ("tools", list, "a list"),
            ("parallel_tool_calls", bool, "true or false"),
            ("logit_bias", dict, "an object"),
        )
        for index, tool in enumerate(body.get("tools") or ()):
            if not isinstance(tool, dict):
                raise BadRequest(f"tools[{index}] is {kind_of(tool)}; send an object")
            if tool.get("type") == "custom":
                raise BadRequest(
                    f"tools[{index}] has the type 'custom', which is not supported here; send functions"
                )
        _leave_out(body)
        n = body.get("n")
        if n is True or n not in (None, 1):
            raise BadRequest(f"'n' is {n!r}; this endpoint gives one choice a request")
        refuse(_NOT_GIVEN, body.get)
        for old, new in (("functions", "tools"), ("function_call", "tool_choice")):
            if body.get(old):
                raise BadRequest(f"{old!r} is deprecated and not supported here; send {new!r}")
        canonical = [_canonical(index, message) for index, message in enumerate(messages)]
        sort_results(canonical, messages)
        return ParsedRequest(
            body=body,
            messages=canonical,
            tools=body.get("tools") or None,
            stream=bool(body.get("stream")),
            max_tokens=limit_of(body, "max_tokens", "max_completion_tokens"),
        )

    def reply(self, asked: ParsedRequest, model: str) -> Reply:
        return _ChatReply(bool((asked.body.get("stream_options") or {}).get("include_usage")), model)

    def error(self, problem: Problem) -> bytes:
        return orjson.dumps(openai_error(problem))


class _ChatReply(Reply):
    def __init__(self, with_usage: bool, model: str) -> None:
        self._id = f"chatcmpl-{uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._with_usage = with_usage
        self._begun = False

    def body(self, completion: Completion) -> bytes:
        choice = {
            "index": 0,
            "message": completion.message,
            "logprobs": None,
            "finish_reason": completion.finish_reason,
        }
        return orjson.dumps(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._created,
                "model": completion.model or self._model,
                "choices": [choice],
                "usage": _usage(completion.usage),
            }
        )

    def delta(self, delta: Delta) -> bytes:
        if not self._begun:  # the first one names the role
            self._begun = True
            delta = {"role": "assistant", **delta}
        return self._chunk([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}])

    def end(self, completion: Completion) -> bytes:
        events = [] if self._begun else [self.delta(whole(completion.message))]
        last = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": completion.finish_reason}
        events.append(self._chunk([last]))
        if self._with_usage:
            events.append(self._chunk([], usage=_usage(completion.usage)))
        return b"".join([*events, _DONE])

    def failed(self, problem: Problem) -> bytes:
        return event(openai_error(problem))

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return event(
            {
                "id": self._id,
                "object": "chat.completion.chunk",
                "created": self._created,
                "model": self._model,
                "choices": choices,
                **more,
            }
        )


def _leave_out(body: dict[str, Any]) -> None:
    """Leave out the tools that nothing here runs, and what the request says about them."""
    tools, choice = body.get("tools") or (), body.get("tool_choice")
    shown = [tool for tool in tools if not is_hosted(tool.get("type"))]
    body.pop("web_search_options", None)
    if isinstance(choice, dict):
        allowed = choice.get("allowed_tools")
        named = allowed.get("tools") if isinstance(allowed, dict) else [choice]
        if isinstance(named, list):
            kept = [tool for tool in named if not (isinstance(tool, dict) and is_hosted(tool.get("type")))]
            if named and not kept:
                del body["tool_choice"]
            elif isinstance(allowed, dict):
                body["tool_choice"] = {**choice, "allowed_tools": {**allowed, "tools": kept}}
    if len(shown) < len(tools):
        body["tools"] = shown
        for key in ("tools", "tool_choice", "parallel_tool_calls") if not shown else ():
            body.pop(key, None)


def _canonical(index: int, message: object) -> Message:
    """Return messages[index] in canonical form."""
    if not isinstance(message, dict):
        raise BadRequest(f"messages[{index}] is {kind_of(message)}; send an object with a 'role'")
    given = message.get("role")
    if not isinstance(given, str):
        raise BadRequest(f"messages[{index}].role is {kind_of(given)}; send a string")
    role = _ROLES.get(given)
    if role is None:
        raise BadRequest(f"messages[{index}].role is {given!r}; send one of {', '.join(_ROLES)}")
    try:
        canonical: Message = {"role": role, "content": text_of(message.get("content"), role)}
    except ValueError as error:
        raise BadRequest(f"messages[{index}]: {error}") from None
    if role == "tool":
        call_id = message.get("tool_call_id")
        if isinstance(call_id, str | int):  # as `_calls` reads it
            canonical["tool_call_id"] = str(call_id)
    elif role == "assistant":
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        if reasoning and isinstance(reasoning, str):
            canonical["reasoning_content"] = reasoning
        if message.get("function_call"):
            raise BadRequest(
                f"messages[{index}].function_call is deprecated and not supported here; send 'tool_calls'"
            )
        calls = message.get("tool_calls")
        if calls:
            canonical["tool_calls"] = _calls(index, calls)
    return canonical


def _calls(index: int, calls: object) -> list[dict[str, Any]]:
    """Return tool calls in canonical form. Clients send back what models wrote, so odd calls are valid."""
    if not isinstance(calls, list):
        raise BadRequest(f"messages[{index}].tool_calls is {kind_of(calls)}; send a list")
    found = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise BadRequest(f"messages[{index}].tool_calls holds a call without a 'function' object")
        arguments = function.get("arguments")
        found.append(
            {
                "id": str(call.get("id") or ""),
                "type": "function",
                "function": {
                    "name": str(function.get("name") or ""),
                    "arguments": arguments if isinstance(arguments, str) else dumps(arguments or {}),
                },
            }
        )
    return found


def openai_error(problem: Problem) -> dict[str, Any]:
    """Return an error in the shape of OpenAI's APIs."""
    kind = _KINDS[problem.kind]
    return {"error": {"message": problem.message, "type": kind, "param": None, "code": problem.code}}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
