"""Agents of each dialect for `interception`: bodies of chat completions in, messages of chat completions out.

Only the proxy's processor time is counted, so what is done here costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPResponse
from typing import Any

import orjson

_DATA = b"data: "


@dataclass(frozen=True)
class Sent:
    """A request: path below the rollout's root, and body."""

    path: str
    body: bytes


class Chat:
    """Chat completions."""

    key = ("Authorization", "Bearer ")

    def request(self, body: dict[str, Any]) -> Sent:
        """The request of a chat-completions body."""
        return Sent("/v1/chat/completions", orjson.dumps(body))

    def whole(self, reply: dict[str, Any]) -> tuple[dict[str, Any], int]:
        """The message of a whole reply, and the tokens of its prompt."""
        return reply["choices"][0]["message"], reply["usage"]["prompt_tokens"]

    def streamed(self, events: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], int]:
        """The same of a stream's events."""
        text, calls, tokens = "", dict[int, dict[str, Any]](), 0
        for event in events:
            tokens = (event.get("usage") or {}).get("prompt_tokens", tokens)
            for choice in event["choices"]:
                text += choice["delta"].get("content") or ""
                for part in choice["delta"].get("tool_calls") or ():
                    known = calls.setdefault(part["index"], call("", "", ""))
                    known["id"] = part.get("id") or known["id"]
                    for key, more in (part.get("function") or {}).items():
                        known["function"][key] += more or ""
        return message(text, calls.values()), tokens


class Responses:
    """OpenAI's Responses."""

    key = ("Authorization", "Bearer ")

    def request(self, body: dict[str, Any]) -> Sent:
        items: list[dict[str, Any]] = []
        for one in body["messages"]:
            if one["role"] == "tool":
                output = {"call_id": one["tool_call_id"], "output": one["content"]}
                items.append({"type": "function_call_output", **output})
                continue
            kind = "output_text" if one["role"] == "assistant" else "input_text"
            if one["content"]:
                content = [{"type": kind, "text": one["content"]}]
                items.append({"type": "message", "role": one["role"], "content": content})
            for made in one.get("tool_calls") or ():
                items.append({"type": "function_call", "call_id": made["id"], **made["function"]})
        tools = [{"type": "function", **tool["function"]} for tool in body["tools"]]
        asked = {
            "model": body["model"],
            "input": items,
            "tools": tools,
            "max_output_tokens": body["max_tokens"],
        }
        return Sent(
            "/v1/responses", orjson.dumps({**asked, "stream": bool(body.get("stream")), "store": False})
        )

    def whole(self, reply: dict[str, Any]) -> tuple[dict[str, Any], int]:
        text, calls = "", []
        for item in reply["output"]:
            if item["type"] == "message":
                text += "".join(part["text"] for part in item["content"])
            elif item["type"] == "function_call":
                calls.append(call(item["call_id"], item["name"], item["arguments"]))
        return message(text, calls), reply["usage"]["input_tokens"]

    def streamed(self, events: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], int]:
        *_, last = events
        return self.whole(last["response"])


class Messages:
    """Anthropic's Messages."""

    key = ("x-api-key", "")

    def request(self, body: dict[str, Any]) -> Sent:
        system, turns = "", list[dict[str, Any]]()
        for one in body["messages"]:
            blocks: list[dict[str, Any]] = []
            if one["role"] == "system":
                system = one["content"]
                continue
            if one["role"] == "tool":
                blocks.append(
                    {"type": "tool_result", "tool_use_id": one["tool_call_id"], "content": one["content"]}
                )
            elif one["content"]:
                blocks.append({"type": "text", "text": one["content"]})
            for made in one.get("tool_calls") or ():
                function = made["function"]
                value = orjson.loads(function["arguments"])
                blocks.append(
                    {"type": "tool_use", "id": made["id"], "name": function["name"], "input": value}
                )
            turns.append({"role": "assistant" if one["role"] == "assistant" else "user", "content": blocks})
        tools = [
            {
                "name": tool["function"]["name"],
                "description": tool["function"]["description"],
                "input_schema": tool["function"]["parameters"],
            }
            for tool in body["tools"]
        ]
        asked = {"model": body["model"], "system": system, "messages": turns, "tools": tools}
        return Sent(
            "/v1/messages",
            orjson.dumps({**asked, "max_tokens": body["max_tokens"], "stream": bool(body.get("stream"))}),
        )

    def whole(self, reply: dict[str, Any]) -> tuple[dict[str, Any], int]:
        text = "".join(block["text"] for block in reply["content"] if block["type"] == "text")
        calls = [
            call(block["id"], block["name"], orjson.dumps(block["input"]).decode())
            for block in reply["content"]
            if block["type"] == "tool_use"
        ]
        return message(text, calls), reply["usage"]["input_tokens"]

    def streamed(self, events: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], int]:
        text, calls, tokens = "", dict[int, dict[str, Any]](), 0
        for event in events:
            block, delta = event.get("content_block") or {}, event.get("delta") or {}
            if block.get("type") == "tool_use":
                calls[event["index"]] = call(block["id"], block["name"], "")
            text += delta.get("text") or ""
            if delta.get("partial_json"):
                calls[event["index"]]["function"]["arguments"] += delta["partial_json"]
            tokens = (event.get("usage") or {}).get("input_tokens", tokens)
        return message(text, calls.values()), tokens


class Google:
    """Google's Gemini API."""

    key = ("x-goog-api-key", "")

    def request(self, body: dict[str, Any]) -> Sent:
        asked: dict[str, Any] = {"contents": [], "generationConfig": {"maxOutputTokens": body["max_tokens"]}}
        names: dict[str, str] = {}
        for one in body["messages"]:
            parts: list[dict[str, Any]] = []
            if one["role"] == "system":
                asked["systemInstruction"] = {"parts": [{"text": one["content"]}]}
                continue
            if one["role"] == "tool":
                response = {"id": one["tool_call_id"], "name": names[one["tool_call_id"]]}
                parts.append({"functionResponse": {**response, "response": {"output": one["content"]}}})
            elif one["content"]:
                parts.append({"text": one["content"]})
            for made in one.get("tool_calls") or ():
                function = made["function"]
                names[made["id"]] = function["name"]
                value = orjson.loads(function["arguments"])
                parts.append({"functionCall": {"id": made["id"], "name": function["name"], "args": value}})
            role = "model" if one["role"] == "assistant" else "user"
            asked["contents"].append({"role": role, "parts": parts})
        declared = [
            {
                "name": tool["function"]["name"],
                "description": tool["function"]["description"],
                "parametersJsonSchema": tool["function"]["parameters"],
            }
            for tool in body["tools"]
        ]
        asked["tools"] = [{"functionDeclarations": declared}]
        verb = "streamGenerateContent?alt=sse" if body.get("stream") else "generateContent"
        return Sent(f"/v1beta/models/{body['model']}:{verb}", orjson.dumps(asked))

    def whole(self, reply: dict[str, Any]) -> tuple[dict[str, Any], int]:
        return self.streamed([reply])

    def streamed(self, events: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], int]:
        text, calls, tokens = "", list[dict[str, Any]](), 0
        for event in events:
            for candidate in event.get("candidates") or ():
                for part in candidate["content"].get("parts") or ():
                    text += part.get("text") or ""
                    if made := part.get("functionCall"):
                        arguments = orjson.dumps(made["args"]).decode()
                        calls.append(call(made.get("id") or f"call_{len(calls)}", made["name"], arguments))
            tokens = (event.get("usageMetadata") or {}).get("promptTokenCount", tokens)
        return message(text, calls), tokens


Dialect = Chat | Responses | Messages | Google
DIALECTS: dict[str, Dialect] = {
    "chat": Chat(),
    "responses": Responses(),
    "messages": Messages(),
    "google": Google(),
}


def call(id: str, name: str, arguments: str) -> dict[str, Any]:
    """A tool call of a chat message."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def message(text: str, calls: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """A chat message."""
    made = list(calls)
    found: dict[str, Any] = {"role": "assistant", "content": text or None}
    return {**found, "tool_calls": made} if made else found


def events_of(response: HTTPResponse) -> Iterable[dict[str, Any]]:
    """The JSON data of a stream's events."""
    for line in response:
        if line.startswith(_DATA) and not line.startswith(b"data: [DONE]"):
            yield orjson.loads(line[len(_DATA) :])
