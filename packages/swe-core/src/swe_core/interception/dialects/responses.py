"""The dialect of OpenAI's Responses API: requests in; responses, event streams and errors out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
)
from swe_core.interception.dialects.chat import openai_error
from swe_core.interception.dialects.common import expect, is_hosted, kind_of, limit_of, load, refuse
from swe_core.interception.dialects.responses_items import History, Origin, functions_of
from swe_core.interception.dialects.responses_memory import NOT_FOUND, Item, Memory, kept_in, memory_of
from swe_core.interception.dialects.responses_reply import Asked, ResponsesReply

_NOT_GIVEN: dict[str, tuple[Any, str]] = {
    "background": (False, "a response is generated while the client waits"),
    "conversation": (None, "no conversations are kept"),
    "context_management": ([], "nothing is compacted"),
    "moderation": (None, "nothing is moderated"),
    "prompt": (None, "no prompts are kept"),
    "top_logprobs": (0, "responses carry no log-probabilities"),
}
"""Options that this endpoint does not have → their harmless value (as null is), and the reason."""
_MOST_ITEMS = 50_000
"""Items of a request together with those of the responses before it."""
_REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}
"""Fields of a request that its response repeats, and OpenAI's values where they are absent."""


class Responses(Dialect):
    """`POST /responses`, for OpenAI's SDKs, codex and other agents."""

    name = "responses"
    routes = (Route("/v1/responses"), Route("/v1/responses/input_tokens", "count"))

    def parse(self, raw: bytes | bytearray, target: Target) -> ParsedRequest:
        body = load(raw)
        expect(
            body,
            ("instructions", str, "a string"),
            ("previous_response_id", str, "a string"),
            ("stream", bool, "true or false"),
            ("store", bool, "true or false"),
            ("parallel_tool_calls", bool, "true or false"),
            ("tools", list, "a list"),
            ("include", list, "a list"),
            ("reasoning", dict, "an object"),
            ("text", dict, "an object"),
        )
        refuse(_NOT_GIVEN, body.get)
        include = body.get("include") or ()
        if "message.output_text.logprobs" in include:
            raise BadRequest(
                "'include' asks for log-probabilities, which responses do not carry; leave it out"
            )
        memory = memory_of(target)
        before = memory.history(body["previous_response_id"]) if body.get("previous_response_id") else []
        items = [*before, *_items(body.get("input"), memory)]
        if len(items) > _MOST_ITEMS:
            raise BadRequest(
                f"the conversation has more than {_MOST_ITEMS} items; begin another one, or send fewer"
            )
        history = History(items, memory, body.get("instructions"), first=len(before))
        if not history.messages:
            raise BadRequest("'input' has no message; send at least one")
        functions = functions_of(body.get("tools") or ()) | history.functions
        tools = [{"type": "function", "function": function} for function in functions.values()]
        limit = limit_of(body, "max_output_tokens")
        asked = Asked(
            {key: default if body.get(key) is None else body[key] for key, default in _REPEATED.items()},
            {function["name"]: origin for origin, function in functions.items()},
            sealed="reasoning.encrypted_content" in include,
            store=body.get("store") is not False,
            history=items,
            memory=memory,
        )
        chat = {
            "model": body.get("model"),
            "messages": history.messages,
            "tools": tools or None,
            **_choice(body, functions),
            "stream": bool(body.get("stream")),
            "max_tokens": limit,
            "temperature": body.get("temperature"),
            "top_p": body.get("top_p"),
            "reasoning_effort": (body.get("reasoning") or {}).get("effort"),
            "verbosity": (body.get("text") or {}).get("verbosity"),
            "response_format": _format((body.get("text") or {}).get("format")),
        }
        return ParsedRequest(
            body={key: value for key, value in chat.items() if value is not None},
            messages=history.messages,
            tools=tools or None,
            stream=chat["stream"],
            max_tokens=limit,
            extra=asked,
        )

    def kept(self, memory: Mapping[str, Any]) -> int:
        return kept_in(memory)

    def reply(self, asked: ParsedRequest, model: str) -> Reply:
        return ResponsesReply(asked.extra, model)

    def error(self, problem: Problem) -> bytes:
        error = openai_error(problem)
        if problem.code == NOT_FOUND:
            error["error"]["param"] = "previous_response_id"
        return orjson.dumps(error)

    def count(self, tokens: int) -> bytes:
        return orjson.dumps({"object": "response.input_tokens", "input_tokens": tokens})


def _items(given: object, memory: Memory) -> Sequence[Item]:
    """Return the items of a request, with stored ones in place of references."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        raise BadRequest(f"'input' is {kind_of(given)}; send a string or a list of items")
    items = []
    named: set[str] = set()
    for index, item in enumerate(given):
        if not isinstance(item, dict):
            raise BadRequest(f"input[{index}] is {kind_of(item)}; send an object")
        if item.get("type") == "item_reference":
            found = memory.item(item.get("id"))
            if found is None:
                raise BadRequest(
                    f"input[{index}]: Item with id '{item.get('id')}' not found; send the item itself, or "
                    "store its response"
                )
            if found["id"] in named:  # as OpenAI does: a short request is not to repeat a long item often
                raise BadRequest(
                    f"input[{index}]: Duplicate item found with id {found['id']}. Remove duplicate items "
                    "from your input and try again."
                )
            named.add(found["id"])
            item = found
        items.append(item)
    return items


def _choice(body: Mapping[str, Any], functions: Mapping[Origin, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the request says about the choice of tools; without tools there is none."""
    choice = body.get("tool_choice")
    if isinstance(choice, dict) and is_hosted(choice.get("type")):
        choice = None
    elif isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        choice = _allowed(choice, functions)
    elif isinstance(choice, dict):
        wanted = Origin(str(choice.get("name")), is_custom=choice.get("type") == "custom")
        if choice.get("type") not in ("function", "custom") or wanted not in functions:
            raise BadRequest(f"'tool_choice' is {choice!r}; send auto, none, required, or one of the tools")
        choice = {"type": "function", "function": {"name": wanted.name}}
    elif choice not in (None, "auto", "none", "required"):
        raise BadRequest(f"'tool_choice' is {choice!r}; send auto, none, required, or one of the tools")
    if functions:
        return {"tool_choice": choice, "parallel_tool_calls": body.get("parallel_tool_calls")}
    if choice == "required" and not body.get("tools"):
        raise BadRequest("'tool_choice' is 'required' without a tool; send one")
    return {}


def _allowed(
    choice: Mapping[str, Any], functions: Mapping[Origin, Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return a choice of some tools in chat-completions form; None where it names no function."""
    named = choice.get("tools")
    if not isinstance(named, list) or not all(isinstance(tool, dict) for tool in named):
        raise BadRequest(f"'tool_choice.tools' is {kind_of(named)}; send a list of tools")
    wanted = [Origin(str(tool.get("name")), is_custom=tool.get("type") == "custom") for tool in named]
    tools = [
        {"type": "function", "function": {"name": functions[one]["name"]}}
        for one in wanted
        if one in functions
    ]
    allowed = {"mode": choice.get("mode") or "auto", "tools": tools}
    return {"type": "allowed_tools", "allowed_tools": allowed} if tools else None


def _format(given: object) -> dict[str, Any] | None:
    """Return the format of the text in chat-completions form."""
    if given is None:
        return None
    kind = given.get("type") if isinstance(given, dict) else None
    if not isinstance(given, dict) or kind not in ("text", "json_object", "json_schema"):
        raise BadRequest(
            f"'text.format' is {given!r}; send an object of type text, json_object or json_schema"
        )
    if kind == "json_schema":
        schema = {key: value for key, value in given.items() if key != "type"}
        return {"type": "json_schema", "json_schema": schema}
    return None if kind == "text" else {"type": kind}
