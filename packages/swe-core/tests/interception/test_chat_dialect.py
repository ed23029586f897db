"""Chat completions: requests to canonical messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from swe_core.interception.dialects.base import BadRequest, ParsedRequest, Target
from swe_core.interception.dialects.chat import ChatCompletions

CHAT = ChatCompletions()
TARGET = Target(CHAT.routes[0])


def _parse(*messages: dict[str, Any], **more: Any) -> ParsedRequest:
    return CHAT.parse(orjson.dumps({"messages": messages, **more}), TARGET)


def _call(arguments: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": arguments}, "index": 0}


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ({"role": "developer", "content": "be brief"}, {"role": "system", "content": "be brief"}),
        ({"role": "user"}, {"role": "user", "content": ""}),
        (
            {
                "role": "user",
                "name": "x",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "user", "content": "ab"},
        ),
        (
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": [_call('{"a": 1}')]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"a": 1}'}}
                ],
            },
        ),
        (
            {"role": "assistant", "content": "x", "reasoning": "hm", "tool_calls": []},
            {"role": "assistant", "content": "x", "reasoning_content": "hm"},
        ),
        (
            {"role": "assistant", "content": "x", "reasoning_content": "hm"},
            {"role": "assistant", "content": "x", "reasoning_content": "hm"},
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "out"}]},
            {"role": "tool", "content": "out", "tool_call_id": "c1"},
        ),
    ],
)
def test_messages_become_canonical(given: dict[str, Any], canonical: dict[str, Any]) -> None:
    asked = _parse(given)
    assert asked.messages == [canonical]
    assert asked.body["messages"] == [given]  # what is recorded and relayed stays the agent's own


@pytest.mark.parametrize(("given", "text"), [({"a": 1}, '{"a":1}'), (None, "{}"), ("{bad", "{bad")])
def test_arguments_become_text(given: Any, text: str) -> None:
    (message,) = _parse({"role": "assistant", "tool_calls": [_call(given)]}).messages
    assert message["tool_calls"][0]["function"]["arguments"] == text


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            r"messages\[0\]: .*'image_url'.*text",
        ),
        ({"role": "user", "content": 3}, r"messages\[0\]: content is a number"),
        ({"role": "critic", "content": ""}, r"messages\[0\].role is 'critic'; send one of developer, system"),
        ({"role": "assistant", "tool_calls": {}}, r"^$"),
        ({"role": "assistant", "tool_calls": {"a": 1}}, r"tool_calls is an object; send a list"),
        ({"role": "assistant", "tool_calls": ["x"]}, r"a call without a 'function' object"),
        (
            {"role": "assistant", "function_call": {"name": "f"}},
            r"messages\[0\].function_call .*'tool_calls'",
        ),
    ],
)
def test_unsupported_content_is_rejected(message: dict[str, Any], sentence: str) -> None:
    if sentence == "^$":  # an empty value says that there is none
        assert "tool_calls" not in _parse(message).messages[0]
        return
    with pytest.raises(BadRequest, match=sentence):
        _parse(message)


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        (
            {"logprobs": True},
            "'logprobs' is not supported here: replies carry no log-probabilities; leave it out",
        ),
        ({"logprobs": False, "top_logprobs": 3}, "'top_logprobs' is not supported"),
        ({"modalities": ["text", "audio"]}, "'modalities' is not supported here: replies are text"),
        ({"audio": {"voice": "ash", "format": "wav"}}, "'audio' is not supported"),
        ({"web_search_options": {}}, "'web_search_options' is not supported"),
        ({"moderation": {"model": "m"}}, "'moderation' is not supported"),
        ({"parallel_tool_calls": 0}, "'parallel_tool_calls' is a number; send true or false"),
        ({"logit_bias": [1]}, "'logit_bias' is a list; send an object"),
        *(({"max_tokens": value}, "'max_tokens' is") for value in (0, -1, 1.5, "5", True)),
    ],
)
def test_invalid_field_is_rejected(field: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        _parse({"role": "user", "content": ""}, **field)


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": False, "top_logprobs": 0, "modalities": ["text"], "logit_bias": {"5": 1}},
        {"parallel_tool_calls": False, "stream_options": {"include_usage": True}, "service_tier": "auto"},
        dict.fromkeys(
            ("logprobs", "top_logprobs", "modalities", "audio", "web_search_options", "moderation",
             "parallel_tool_calls", "logit_bias")
        ),
        {"temperature": 0, "top_p": 1, "seed": 1, "user": "u", "store": False, "metadata": {},
         "reasoning_effort": "high", "verbosity": "low", "prompt_cache_key": "k", "prediction": None},
    ],
)  # fmt: skip
def test_common_agent_fields_are_accepted(fields: dict[str, Any]) -> None:
    assert _parse({"role": "user", "content": ""}, **fields).body.items() >= fields.items()


@pytest.mark.parametrize(
    ("limits", "wanted"),
    [
        ({}, None),
        ({"max_tokens": None}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 5),
    ],
)
def test_both_names_of_the_token_limit_are_read(limits: dict[str, Any], wanted: int | None) -> None:
    assert _parse({"role": "user", "content": ""}, **limits).max_tokens == wanted


def _nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = {"a": value} if len(str(value)) % 2 else [value]
    return value


@pytest.mark.parametrize(
    "place",
    [
        lambda value: {"extra": value},
        lambda value: {"tools": [{"function": value}]},
        lambda value: {"messages": [{"role": "assistant", "tool_calls": [_call(value)]}]},
    ],
)
def test_too_deep_request_is_rejected(place: Callable[[Any], dict[str, Any]]) -> None:
    """orjson reads 1024 levels and writes 254."""
    body = {"messages": [{"role": "user", "content": "hi"}], **place(_nested(200))}
    with pytest.raises(BadRequest, match="nested more than 128 levels deep"):
        CHAT.parse(orjson.dumps(body), TARGET)


def test_deepest_allowed_request_is_accepted() -> None:
    _parse({"role": "user", "content": "hi"}, extra=_nested(127))
    with pytest.raises(BadRequest):
        _parse({"role": "user", "content": "hi"}, extra=_nested(128))
