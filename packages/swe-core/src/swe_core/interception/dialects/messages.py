"""The dialect of Anthropic's Messages API: requests in; messages, event streams and errors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from swe_core.api.messages import sort_results
from swe_core.interception.dialects.base import (
    BadRequest,
    Dialect,
    ParsedRequest,
    Problem,
    Reply,
    Route,
    Target,
    bearer,
)
from swe_core.interception.dialects.common import expect, is_hosted, kind_of, limit_of, load, refuse
from swe_core.interception.dialects.messages_blocks import Conversation, Told, system_text
from swe_core.interception.dialects.messages_reply import MessagesReply, Thoughts, error_of

_NOT_GIVEN: dict[str, tuple[Any, str]] = {
    "compaction": (None, "nothing is compacted"),
    "container": (None, "there are no containers"),
    "prefill": (None, "the model's own reply cannot be begun by the client"),
    "thread": (None, "no conversations are kept"),
}
"""Options that this endpoint does not have → their harmless value (as null is), and the reason."""
_OPTIONS = {
    "model": "model",
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "stop_sequences": "stop",
}
"""Options → their names in a chat completion, which has no `top_k`."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_HIDDEN = (None, "disabled")
"""Types of `thinking` without blocks of thinking."""


class Messages(Dialect):
    """`POST /v1/messages`, for Anthropic's SDKs and Claude Code."""

    name = "messages"
    routes = (Route("/v1/messages"), Route("/v1/messages/count_tokens", "count"))
    key_header = "x-api-key"
    keepalive = b'event: ping\ndata: {"type": "ping"}\n\n'

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        return headers.get("x-api-key") or bearer(headers)

    def parse(self, raw: bytes | bytearray, target: Target) -> ParsedRequest:
        fields = load(raw)
        given = fields.get("messages")
        if not isinstance(given, list) or not given:
            raise BadRequest(f"'messages' is {kind_of(given)}; send a list of at least one message")
        expect(
            fields,
            ("stream", bool, "true or false"),
            ("tools", list, "a list"),
            ("tool_choice", dict, "an object"),
            ("thinking", dict, "an object"),
            ("output_config", dict, "an object"),
            ("stop_sequences", list, "a list"),
        )
        refuse(_NOT_GIVEN, fields.get)
        tools, deferred = _tools(fields.get("tools") or ())
        told: Told = target.memory.setdefault("told", {})
        conversation = Conversation(deferred, told)
        messages = conversation.messages
        if system := system_text(fields.get("system")):
            messages.append({"role": "system", "content": system})
        for index, message in enumerate(given):
            conversation.add(index, message)
        conversation.end_turn()
        sort_results(messages)
        if not messages:
            raise BadRequest("'messages' has no text; send at least one message with text")
        if target.route.kind == "generate" and messages[-1]["role"] == "assistant":
            raise BadRequest(
                "this model does not support assistant message prefill; the conversation must end with a "
                "user message"
            )
        limit, stream = limit_of(fields, "max_tokens"), bool(fields.get("stream"))
        body = {"messages": messages, "stream": stream, **_options(fields)}
        if tools:
            hosted = [tool.get("name") for tool in fields["tools"] if is_hosted(tool.get("type"))]
            body |= {"tools": tools, **_choice(fields.get("tool_choice") or {}, hosted)}
        return ParsedRequest(body, messages, tools or None, stream, limit, extra=(_thoughts(fields), told))

    def reply(self, asked: ParsedRequest, model: str) -> Reply:
        thoughts, told = asked.extra
        return MessagesReply(model, thoughts, told)

    def error(self, problem: Problem) -> bytes:
        return orjson.dumps(error_of(problem))

    def count(self, tokens: int) -> bytes:
        return orjson.dumps({"input_tokens": tokens})


def _tools(given: Sequence[Any]) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return the tools in chat-completions form, and the functions that are shown later, by name."""
    tools: list[dict[str, Any]] = []
    deferred: dict[str, dict[str, Any]] = {}
    kinds = [str(tool.get("type")) for tool in given if isinstance(tool, dict)]
    searched = any(kind.startswith("tool_search") for kind in kinds)  # by the API, which nothing does here
    for index, tool in enumerate(given):
        at = f"tools.{index}"
        if not isinstance(tool, dict):
            raise BadRequest(f"{at} is {kind_of(tool)}; send an object")
        kind = tool.get("type")
        if is_hosted(kind):
            continue
        if kind not in (None, "custom"):
            raise BadRequest(
                f"{at}.type is {kind!r}: this endpoint runs no tools itself, and its model knows none of "
                "Anthropic's; send a tool with an 'input_schema'"
            )
        name, schema = tool.get("name"), tool.get("input_schema")
        if not isinstance(name, str):
            raise BadRequest(f"{at}.name is {kind_of(name)}; send a string")
        if not isinstance(schema, dict):
            raise BadRequest(f"{at}.input_schema is {kind_of(schema)}; send an object")
        described = {"description": tool["description"]} if tool.get("description") else {}
        function = {"name": name, **described, "parameters": schema}
        if tool.get("defer_loading") and not searched:
            deferred[name] = function
        else:
            tools.append({"type": "function", "function": function})
    return tools, deferred


def _choice(given: Mapping[str, Any], hosted: Sequence[object]) -> dict[str, Any]:
    """Return the choice of tools as a chat completion names it; none where it names a `hosted` one."""
    kind = given.get("type")
    choice: dict[str, Any] = {}
    if kind == "tool" and given.get("name") in hosted:
        pass
    elif kind == "tool":
        choice["tool_choice"] = {"type": "function", "function": {"name": given.get("name")}}
    elif kind is not None:
        wanted = _CHOICES.get(kind) if isinstance(kind, str) else None
        if wanted is None:
            raise BadRequest(f"tool_choice.type is {kind!r}; send one of {', '.join(_CHOICES)}, tool")
        choice["tool_choice"] = wanted
    if given.get("disable_parallel_tool_use") is True:
        choice["parallel_tool_calls"] = False
    return choice


def _options(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a generation as a chat completion names them."""
    options = {name: value for key, name in _OPTIONS.items() if (value := fields.get(key)) is not None}
    wanted = (fields.get("output_config") or {}).get("format") or fields.get("output_format")
    if wanted is not None:
        if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
            raise BadRequest(f"output_config.format is {wanted!r}; send an object of type json_schema")
        schema = {"name": "response", "schema": wanted.get("schema")}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


def _thoughts(fields: Mapping[str, Any]) -> Thoughts:
    """Return how a reply shows the model's reasoning."""
    thinking = fields.get("thinking") or {}
    if thinking.get("type") in _HIDDEN:
        return "hidden"
    return "signed" if thinking.get("display") == "omitted" else "shown"
