"""The dialect of Google's Gemini API: requests in; replies, event streams and errors out.

The API reads field names in camel case and in snake case, and its SDKs send both in one request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import orjson

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
from swe_core.interception.dialects.common import kind_of, limit_of, load, refuse
from swe_core.interception.dialects.google_contents import messages_of
from swe_core.interception.dialects.google_fields import field_of, list_of, object_of, snake
from swe_core.interception.dialects.google_reply import ArrayReply, EventsReply, error_of

_NOT_GIVEN: dict[str, tuple[Any, str]] = {
    "responseLogprobs": (False, "replies carry no log-probabilities"),
    "logprobs": (0, "replies carry no log-probabilities"),
    "responseModalities": (["TEXT"], "replies are text"),
    "speechConfig": (None, "replies are text"),
    "imageConfig": (None, "replies are text"),
    "responseFormat": (None, "'responseMimeType' and 'responseSchema' replace it"),
}
"""Options that change the form of replies → their harmless value (as null is), and the reason."""
_OPTIONS = {
    "temperature": "temperature",
    "topP": "top_p",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "stopSequences": "stop",
}
"""Options → their names in a chat completion, which has no `topK`."""
_MODES = {"AUTO": "auto", "VALIDATED": "auto", "MODE_UNSPECIFIED": "auto", "NONE": "none", "ANY": "required"}
"""Modes of function calling → `tool_choice`. Nothing enforces what "VALIDATED" asks for."""
_HOSTED = frozenset(
    {
        *("google_search", "google_search_retrieval", "google_maps", "enterprise_web_search", "retrieval"),
        *("url_context", "code_execution", "file_search", "computer_use", "mcp_servers"),
        "parallel_ai_search",
    }
)
"""Tools that agents offer unasked and this endpoint does not run. The model does not see them."""
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
"""Keywords of a schema with 64-bit integers, which Google's JSON writes as strings."""
_INT64 = re.compile("[0-9]{1,19}")
_GOOGLE_ONLY = ("nullable", "propertyOrdering")
"""Keywords of a schema that a JSON schema does not have."""
_KEYWORDS: dict[str, str] = {
    key: word
    for word in (
        *("type", "properties", "items", "additionalProperties", "anyOf", "prefixItems", "$defs", "$ref"),
        *_COUNTS,
        *_GOOGLE_ONLY,
    )
    for key in (word, snake(word), word.removeprefix("$"))
}
"""Keywords of a schema that need a change, in all spellings → the JSON schema's spelling."""


class GenerateContent(Dialect):
    """`POST /v1beta/models/{model}:generateContent` and its siblings, for Google's SDKs and gemini-cli."""

    name = "google"
    routes = tuple(
        Route(f"/{version}/models/{{model:.+}}:{action}", "count" if stream is None else "generate", stream)
        for version in ("v1beta", "v1")
        for action, stream in (
            ("generateContent", False),
            ("streamGenerateContent", True),
            ("countTokens", None),
        )
    )
    key_header = "x-goog-api-key"
    keepalive = b"\n"  # the SDKs fail on comments; between the elements of a JSON array it is a space

    def key(self, headers: Mapping[str, str], query: Mapping[str, str]) -> str | None:
        return headers.get("x-goog-api-key") or query.get("key") or bearer(headers)

    def parse(self, raw: bytes | bytearray, target: Target) -> ParsedRequest:
        fields = load(raw)
        if target.route.kind == "count":  # the form that counts instructions and tools too
            fields = object_of(fields, "generateContentRequest") or fields
        if field_of(fields, "cachedContent"):
            raise BadRequest("'cachedContent' is not supported here: nothing is cached; send all contents")
        config = object_of(fields, "generationConfig")
        messages, tools = messages_of(fields), list(_tools(fields))
        most = limit_of(config, "maxOutputTokens", "max_output_tokens")
        stream = bool(target.route.stream)
        body: dict[str, Any] = {"model": target.params["model"], "messages": messages, "stream": stream}
        if tools:
            body["tools"] = tools
            if (choice := _tool_choice(fields)) is not None:
                body["tool_choice"] = choice
        if most is not None:
            body["max_tokens"] = most
        body |= _options(config)
        with_thoughts = bool(field_of(object_of(config, "thinkingConfig"), "includeThoughts"))
        in_events = target.query.get("alt") == "sse"
        return ParsedRequest(body, messages, tools or None, stream, most, extra=(in_events, with_thoughts))

    def reply(self, asked: ParsedRequest, model: str) -> Reply:
        in_events, with_thoughts = asked.extra
        return (EventsReply if in_events else ArrayReply)(model, with_thoughts)

    def error(self, problem: Problem) -> bytes:
        return orjson.dumps(error_of(problem))

    def count(self, tokens: int) -> bytes:
        return orjson.dumps({"totalTokens": tokens})


def _tools(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the declared functions in chat-completions form."""
    for index, tool in enumerate(list_of(fields.get("tools"))):
        if not isinstance(tool, dict):
            raise BadRequest(f"tools[{index}] is {kind_of(tool)}; send an object")
        for key, value in tool.items():
            if value is None:
                continue
            if snake(key) in _HOSTED:
                continue
            if key not in ("functionDeclarations", "function_declarations"):
                raise BadRequest(
                    f"tools[{index}].{key} is not supported here: this endpoint runs no tools itself; "
                    "send 'functionDeclarations' only"
                )
            for number, declared in enumerate(list_of(value)):
                yield _tool(f"tools[{index}].{key}[{number}]", declared)


def _tool(at: str, declared: Any) -> dict[str, Any]:
    if not isinstance(declared, dict):
        raise BadRequest(f"{at} is {kind_of(declared)}; send an object")
    name = declared.get("name")
    if not isinstance(name, str):
        raise BadRequest(f"{at}.name is {kind_of(name)}; send a string")
    function: dict[str, Any] = {"name": name}
    if description := declared.get("description"):
        function["description"] = description
    parameters = field_of(declared, "parametersJsonSchema")
    if parameters is None:
        parameters = _json_schema(declared.get("parameters") or {"type": "object", "properties": {}})
    function["parameters"] = parameters
    return {"type": "function", "function": function}


def _json_schema(schema: Any) -> Any:
    """Return a schema of Google's form, a subset of OpenAPI's, as a JSON schema."""
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for word, value in schema.items():
        key = _KEYWORDS.get(word)
        if key is None:
            found[word] = value
        elif key == "type" and isinstance(value, str):
            found[key] = [value.lower(), "null"] if schema.get("nullable") is True else value.lower()
        elif key in ("properties", "$defs") and isinstance(value, dict):
            found[key] = {name: _json_schema(one) for name, one in value.items()}
        elif key in ("items", "additionalProperties"):
            found[key] = _json_schema(value)
        elif key in ("anyOf", "prefixItems") and isinstance(value, list):
            found[key] = [_json_schema(one) for one in value]
        elif key == "$ref" and isinstance(value, str):
            found[key] = value.replace("#/defs/", "#/$defs/")
        elif key in _COUNTS and isinstance(value, str) and _INT64.fullmatch(value):
            found[key] = int(value)
        elif key not in _GOOGLE_ONLY:
            found[key] = value
    return found


def _tool_choice(fields: dict[str, Any]) -> Any:
    """Return the request's mode of function calling as a `tool_choice`; None where it sets none."""
    config = object_of(object_of(fields, "toolConfig"), "functionCallingConfig")
    if not config:
        return None
    mode = str(config.get("mode") or "AUTO")
    choice = _MODES.get(mode)
    if choice is None:
        raise BadRequest(f"functionCallingConfig.mode is {mode!r}; send one of {', '.join(_MODES)}")
    names = list_of(field_of(config, "allowedFunctionNames"))
    if not names or choice == "none":
        return choice
    allowed = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": allowed}}


def _options(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a generation as a chat completion names them."""
    count = field_of(config, "candidateCount")
    if count is True or count not in (None, 0, 1):
        raise BadRequest(f"'candidateCount' is {count!r}; this endpoint gives one candidate a request")
    refuse(_NOT_GIVEN, partial(field_of, config))
    options = {name: value for key, name in _OPTIONS.items() if (value := field_of(config, key)) is not None}
    if (wanted := _response_format(config)) is not None:
        options["response_format"] = wanted
    return options


def _response_format(config: dict[str, Any]) -> dict[str, Any] | None:
    mime = field_of(config, "responseMimeType")
    if mime not in (None, "", "text/plain", "application/json"):
        raise BadRequest(f"'responseMimeType' is {mime!r}; send text/plain or application/json")
    schema = field_of(config, "responseJsonSchema") or _json_schema(field_of(config, "responseSchema"))
    if schema:
        return {"type": "json_schema", "json_schema": {"name": "response", "schema": schema}}
    return {"type": "json_object"} if mime == "application/json" else None
