"""The engine `openai` against a provider that answers and fails as real ones do."""

from __future__ import annotations

import json
import logging
import math
import time
from itertools import pairwise
from typing import Any

import anyio
import pytest
import tenacity
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.engine import ChatRequest, Completion, EngineSession, Usage
from swe_core.builtin import http_engine
from swe_core.builtin.openai import OpenAIConfig
from swe_core.builtin.openai import engine as engine_module
from swe_core.builtin.openai.engine import OpenAIEngine
from swe_core.builtin.openai.replies import parse_reply
from swe_core.builtin.sse import EventParser
from swe_core.errors import (
    ConfigError,
    EngineError,
    EngineProtocolError,
    EngineRefused,
    EngineUnavailable,
    RequestRefused,
)
from swe_core.rollout.recording import RecordedReply
from swe_core.system.redaction import redaction_scope
from swe_testing.provider import Ear, Fault, ScriptedProvider, call_tool, refusing_url, say

KEY = "sk-do-not-show-this-0123456789"
WHO = EngineSession("r", "t", 0, "a")
BODY: dict[str, Any] = {"model": "whatever", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow each other at once; their number stays what the settings say."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setattr(engine_module, "_BACKOFF", tenacity.wait_none())


def _engine(url: str, **settings: Any) -> OpenAIEngine:
    return OpenAIEngine(
        OpenAIConfig(url=url, **{"model": "scripted", "max_retries": 2, "timeout": 60, **settings})
    )


async def _ask(engine: OpenAIEngine, stream: bool, **body: Any) -> tuple[Completion, Ear]:
    ear = Ear()
    sent = {**BODY, **body, "stream": stream}
    request = ChatRequest(sent, sent["messages"])
    return await engine.complete(request, WHO, ear if stream else None), ear


class _Mislabelled(ScriptedProvider):
    """Streams as plain text, and unasked; the model `whole` answers in one piece that is called a stream."""

    async def _answer(self, request: Any, body: Any, fault: Any) -> web.StreamResponse:
        pieces = [
            {"delta": {"content": text}, "finish_reason": end} for text, end in (("a", None), ("b", "stop"))
        ]
        events = (f"data: {json.dumps({'choices': [piece]})}\n\n" for piece in pieces)
        if body["model"] == "whole":
            text = json.dumps({"choices": [{"message": {"content": "ab"}, "finish_reason": "stop"}]})
            return web.Response(text=text, content_type="text/event-stream")
        return web.Response(text=": hi\n\n" + "".join(events))


@pytest.mark.parametrize("stream", [False, True])
async def test_stream_without_its_content_type_is_read(stream: bool) -> None:
    async with _Mislabelled([]) as provider, _engine(provider.url) as engine:
        completion, ear = await _ask(engine, stream)
    assert completion.message["content"] == "ab"
    assert ear.text() == ("ab" if stream else "")
    async with _Mislabelled([]) as provider, _engine(provider.url, model="whole") as engine:
        assert (await _ask(engine, stream))[0].message["content"] == "ab"


TEXT = "line\u2028separators\x85and ünïcödé, in many small pieces"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "reply",
    [
        say(TEXT, reasoning_content="let me think about it"),
        call_tool("bash", {"command": "grep -rn 'a b' ."}),
    ],
    ids=["text", "call"],
)
async def test_reply_is_complete_and_counted(stream: bool, reply: RecordedReply) -> None:
    async with ScriptedProvider([reply], piece=3) as provider, _engine(provider.url) as engine:
        completion, ear = await _ask(engine, stream)
    assert completion.message == {"content": None, **reply.message}
    assert (completion.finish_reason, completion.usage) == (reply.finish_reason, reply.usage)
    assert completion.model == "scripted"
    if stream:
        assert ear.text() == (completion.message["content"] or "")
        assert len(ear.heard) > 10


async def test_body_of_the_agent_gets_model_and_params() -> None:
    extra = {
        "tools": [{"type": "function", "function": {"name": "bash"}}],
        "temperature": 1,
        "x_unknown": {"a": [None]},
        "stream_options": {"x": 1},
    }
    async with (
        ScriptedProvider() as provider,
        _engine(provider.url, params={"temperature": 0, "top_p": 0.5}) as engine,
    ):
        await _ask(engine, False, **extra)
        await _ask(engine, True, **extra)
    plain, streamed = (seen.body for seen in provider.requests)
    common = {**BODY, **extra, "model": "scripted", "temperature": 0, "top_p": 0.5}
    del common["stream_options"]
    assert plain == {**common, "stream": False}
    assert streamed == {**common, "stream": True, "stream_options": {"x": 1, "include_usage": True}}
    assert provider.requests[0].headers["Authorization"] == f"Bearer {KEY}"


WHOLE: list[tuple[Fault, type[EngineError], str, int]] = [
    ("html", EngineProtocolError, "answered an HTML page: check that the URL is the API's base", 1),
    ("not-json", EngineProtocolError, "answered something that is not JSON", 1),
    ("no-choices", EngineProtocolError, r"answered no chat completion \(choices is empty\)", 1),
    ("400", RequestRefused, r"refuses this request \(400\): This model's maximum context length", 1),
    ("413", RequestRefused, r"refuses this request \(413\)", 1),
    ("401", EngineRefused, r"refuses the key in the environment variable 'OPENAI_API_KEY' \(401\)", 1),
    ("403", EngineRefused, r"refuses access \(403\): scripted 403", 1),
    ("404", EngineRefused, r"no such model or path \(404\): check the model 'scripted' .*/v1", 1),
    ("redirect", EngineRefused, "redirects to 'https://elsewhere.invalid/v1'.*pass that URL", 1),
    ("429", EngineUnavailable, r"too many requests \(429\): slow down \(tried 3 times\): check", 3),
    ("500", EngineUnavailable, r"fails \(500\): scripted 500 \(tried 3 times\)", 3),
    ("drop", EngineUnavailable, r"broke the connection .*\(tried 3 times\)", 3),
    ("hang", EngineUnavailable, r"sent nothing for 0\.2 s \(tried 3 times\)", 3),
    ("error-in-reply", EngineUnavailable, r"fails \(502\): upstream is down \(tried 3 times\)", 3),
]
STREAMED: list[tuple[Fault, type[EngineError], str, int]] = [
    ("broken-stream-early", EngineUnavailable, r"broke the connection .*\(tried 3 times\)", 3),
    ("broken-stream", EngineUnavailable, "broke the connection .*in the middle of a reply", 1),
    ("hang-in-stream", EngineUnavailable, "sent nothing for 0.5 s, in the middle of a reply", 1),
    ("error-event-early", EngineUnavailable, r"fails \(500\): the model crashed \(tried 3 times\)", 3),
    ("error-event", EngineUnavailable, "the model crashed, in the middle of a reply", 1),
    ("garbage-event", EngineProtocolError, r"streamed no chat completion \(invalid JSON\)", 1),
]


@pytest.mark.parametrize(
    ("stream", "fault", "kind", "sentence", "requests"),
    [(False, *case) for case in WHOLE]
    + [(True, *case) for case in WHOLE if case[0] in ("no-choices", "400", "500", "drop", "error-in-reply")]
    + [(True, *case) for case in STREAMED],
)
async def test_provider_failure_is_one_sentence_without_key(
    stream: bool, fault: Fault, kind: type[EngineError], sentence: str, requests: int, caplog: Any
) -> None:
    """No error and no log line has the key, which the provider quotes."""
    caplog.set_level(logging.DEBUG)
    reply = say("a reply of several pieces")
    async with ScriptedProvider([reply], then=fault) as provider:
        timeout = {"hang": 0.2, "hang-in-stream": 0.5}.get(fault, 60)
        async with _engine(provider.url, timeout=timeout) as engine:
            with pytest.raises(EngineError, match=sentence) as caught:
                await _ask(engine, stream)
    assert type(caught.value) is kind
    assert len(provider.requests) == requests
    assert caught.value.status not in (408, 409, 429)
    assert caught.value.status < 500
    assert "\n" not in str(caught.value)
    assert all(seen.headers["Authorization"] == f"Bearer {KEY}" for seen in provider.requests)
    for text in (str(caught.value), repr(caught.value), repr(engine), repr(vars(engine)), caplog.text):
        assert KEY not in text
    assert all(KEY not in repr(vars(record)) for record in caplog.records)


async def test_refused_connection_is_an_error() -> None:
    with refusing_url() as url:
        async with _engine(url) as engine:
            with pytest.raises(EngineUnavailable, match=r"cannot be reached .*\(tried 3 times\)"):
                await _ask(engine, False)
            with pytest.raises(EngineUnavailable, match=r"cannot be reached .*check --engine-url"):
                await engine.check()
    with pytest.raises(RuntimeError, match="the engine is not open"):
        await _engine(url).check()


@pytest.mark.parametrize("stream", [False, True])
async def test_incomplete_reply_is_accepted(stream: bool) -> None:
    async with ScriptedProvider(then="null-content") as provider, _engine(provider.url) as engine:
        completion, _ = await _ask(engine, stream)
    assert completion.message == {"role": "assistant", "content": None}
    async with ScriptedProvider([call_tool("bash", {})], then="no-finish") as provider:
        async with _engine(provider.url) as engine:
            completion, _ = await _ask(engine, stream)
    assert completion.finish_reason == "tool_calls"


OPENAI_QUOTA = {"message": "You exceeded your current quota", "type": "insufficient_quota", "code": None}
CREDIT = {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API."}


@pytest.mark.parametrize(
    ("status", "body", "spent"),
    [
        (429, {"error": OPENAI_QUOTA}, True),
        (400, {"error": {"message": "Billing hard limit", "code": "billing_hard_limit_reached"}}, True),
        (400, {"type": "error", "error": CREDIT}, True),
        (402, {"error": {"message": "Insufficient Balance"}}, True),
        (429, {"error": "litellm.RateLimitError: OpenAIException - {'code': 'insufficient_quota'}"}, True),
        (429, {"error": {"message": "slow down", "type": "tokens", "code": "rate_limit_exceeded"}}, False),
        (400, {"error": {"message": "unknown tool 'insufficient_quota'", "code": None}}, False),
        (500, ["insufficient_quota"], False),
    ],
)
def test_account_without_money_is_not_asked_again(status: int, body: Any, spent: bool) -> None:
    refusals = http_engine.ErrorTranslator("provider", "http://h/v1", "", "m", "KEY", None)
    errors = [refusals.of(status, {}, json.dumps(body).encode())]
    if body == {"error": OPENAI_QUOTA}:  # some providers send it with status 200, too
        errors.append(refusals.in_reply(body))
    for error in errors:
        assert (type(error) is EngineRefused) is spent
        assert ("no credit or quota left" in str(error)) is spent


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("API key not valid. Please pass a valid API key.", 401),
        ("Incorrect API key provided: xx", 401),
        ("some/name is not a valid model ID", 404),
        ("Model Not Exist", 404),
        ("Invalid model: name", 404),
        ("the prompt says: Invalid model", 400),
    ],
)
def test_refusal_that_means_the_key_or_the_model_is_an_error_of_the_engine(said: str, status: int) -> None:
    refusals = http_engine.ErrorTranslator("provider", "http://h/v1", "", "m", "KEY", None)
    error = refusals.of(400, {}, json.dumps({"error": {"message": said, "code": 400}}).encode())
    assert type(error) is (RequestRefused if status == 400 else EngineRefused)
    assert f"({status})" in str(error)


def test_retry_after_is_a_time_to_come() -> None:
    refusals = http_engine.ErrorTranslator("provider", "http://h/v1", "", "m", "KEY", None)

    def wanted(value: str) -> float | None:
        error = refusals.of(429, {"retry-after": value}, b"")
        assert isinstance(error, http_engine.Transient)
        return error.retry_after

    assert [wanted("1.5"), wanted("1e999")] == [1.5, math.inf]
    assert (wanted("Fri, 31 Dec 9999 23:59:59 GMT") or 0) > http_engine.MAX_WAIT
    for nothing in ("nan", "-5", "0", "Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 99999 23:59:59 GMT", "x"):
        assert wanted(nothing) is None


def test_wait_is_what_the_provider_asks_for_or_grows_with_jitter_up_to_a_cap() -> None:
    def wait(attempt: int, *wish: float) -> float:
        state = tenacity.RetryCallState(tenacity.AsyncRetrying(), None, (), {})
        state.attempt_number = attempt
        error = http_engine.Transient("busy", *wish)
        state.set_exception((type(error), error, error.__traceback__))
        return http_engine.RetryAfterWait(http_engine.BACKOFF)(state)

    assert [wait(1, wish) for wish in (7.0, 0.0, -5.0, 86_400.0)] == [7.0, 0.0, 0.0, http_engine.MAX_WAIT]
    for attempt, low, high in ((1, 0.5, 1.5), (4, 4.0, 5.0), (20, 30.0, 31.0)):
        waits = [wait(attempt) for _ in range(20)]
        assert low <= min(waits) <= max(waits) <= high
        assert len(set(waits)) > 10


async def test_transient_failure_is_retried_after_the_wait_that_is_asked_for() -> None:
    faults: list[Fault] = ["429", "broken-stream-early"]
    async with ScriptedProvider([say("at last")], faults=faults, retry_after="0.2") as provider:
        async with _engine(provider.url) as engine:
            started = time.monotonic()
            completion, ear = await _ask(engine, True)
    assert time.monotonic() - started > 0.15
    assert len(provider.requests) == 3
    assert ear.text() == completion.message["content"] == "at last"


@pytest.mark.parametrize("stream", [False, True])
async def test_cancelled_call_closes_the_connection(stream: bool) -> None:
    fault: Fault = "hang-in-stream" if stream else "hang"
    async with ScriptedProvider(then=fault) as provider, _engine(provider.url) as engine:
        async with anyio.create_task_group() as group:
            group.start_soon(_ask, engine, stream)
            with anyio.fail_after(120):
                await provider.asked.wait()
            group.cancel_scope.cancel()
        with anyio.fail_after(120):
            await provider.requests[0].finished.wait()
        assert provider.requests[0].disconnected


async def test_check_reports_unusable_provider() -> None:
    faults: list[Fault] = ["html", "not-json", "401", "500", "redirect"]
    for fault in faults:
        async with ScriptedProvider(models_fault=fault) as provider, _engine(provider.url) as engine:
            with pytest.raises(EngineError, match=r"HTML|JSON|401|500|308") as caught:
                await engine.check()
        assert KEY not in str(caught.value)
        assert provider.requests == []


@pytest.mark.parametrize(
    ("listed", "warning"),
    [
        ({"models": ["qwen3-4b-instruct"]}, r"list the model 'qwen3-4b'; near it are 'qwen3-4b-instruct'"),
        ({"models": ["zzz"]}, r"does not list the model 'qwen3-4b'"),
        *(({"models": models}, None) for models in (["models/qwen3-4b"], ["a", "qwen3-4b"], [], None)),
        *(({"models_fault": fault}, None) for fault in ("403", "404")),
    ],
)
async def test_check_warns_about_unlisted_model(
    listed: dict[str, Any], warning: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedProvider(**listed) as provider, _engine(provider.url, model="qwen3-4b") as engine:
        await engine.check()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (0 if warning is None else 1)
    if warning is not None:
        assert warning in warnings[0]


async def test_missing_key_sends_no_authorization(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    async with ScriptedProvider() as provider, _engine(provider.url) as engine:
        await _ask(engine, False)
    assert "Authorization" not in provider.requests[0].headers
    async with ScriptedProvider(key="wanted") as provider, _engine(provider.url) as engine:
        with pytest.raises(EngineRefused, match=r"wants a key \(401\): put it into .*'OPENAI_API_KEY'"):
            await engine.check()


UNUSABLE: list[tuple[dict[str, Any], str]] = [
    ({}, "needs a model: pass --model NAME, such as .* or --engine-url URL --model NAME"),
    ({"url": "http://h/v1"}, "needs a model: pass --model NAME, a model that .*'http://h/v1' has"),
    ({"url": "h/v1", "model": "m"}, "'h/v1' is not a base URL"),
    ({"url": "ftp://h/v1", "model": "m"}, "not a base URL"),
    ({"url": "http://", "model": "m"}, "not a base URL"),
    ({"url": "http://h/v1?key=x", "model": "m"}, "no query"),
    ({"url": "http://u:sekret@h/v1", "model": "m"}, "user or password"),
    ({"url": "http://u:sekret/x@h/v1", "model": "m"}, "is not a URL"),
    ({"url": "u:sekret@h/v1", "model": "m"}, "'h/v1' is not a base URL"),
    ({"url": "http://h/v1?key=sekret", "model": "m"}, "'http://h/v1' is not a base URL"),
    ({"url": "http://h/v1#http://sekret", "model": "m"}, "'http://h/v1' is not a base URL"),
    ({"url": "http://h/v1", "model": "m", "params": {"messages": []}}, "sets 'messages' itself"),
]


def test_unusable_settings_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a password nor a key that is no value of a header is shown."""
    for settings, sentence in UNUSABLE:
        with pytest.raises(ConfigError, match=sentence) as caught:
            OpenAIEngine(OpenAIConfig(**settings))
        assert "sekret" not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "sk-line1\nsk-line2")
    with pytest.raises(ConfigError, match="'MY_KEY' has characters") as caught:
        _engine("http://h/v1", api_key_env="MY_KEY")
    assert "line1" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "known", "said"),
    [
        ("sk-long-enough", {"sk-long-enough"}, "is set"),
        ("seven77", set(), "is set; it has less than 8 characters, so no text is searched for it"),
        ("Not-Needed", set(), None),
        ("", set(), "is not set: no key is sent"),
    ],
)
def test_key_is_redacted_unless_it_is_too_common(
    monkeypatch: pytest.MonkeyPatch, key: str, known: set[str], said: str | None
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with redaction_scope() as redactor:
        _engine("http://127.0.0.1:1/v1")
        assert redactor.known() == known
    assert said in (None, http_engine.key_check("OPENAI_API_KEY").look().text)


def test_missing_usage_is_zero() -> None:
    refusals = http_engine.ErrorTranslator("provider", "http://h/v1", "", "m", "KEY", None)
    for usage in (None, {}, {"prompt_tokens": None}):
        content = json.dumps({"choices": [{"message": {"content": "x"}}], "usage": usage}).encode()
        completion = parse_reply(content, {}, "http://h/v1", refusals)
        assert (completion.usage, completion.finish_reason) == (Usage(), "stop")
        assert completion.message == {"role": "assistant", "content": "x"}


LIMITS: list[tuple[dict[str, int], int | None, int | None, dict[str, int]]] = [
    ({}, None, None, {}),
    ({}, 50, None, {"max_tokens": 50}),
    ({"max_tokens": 100}, 50, None, {"max_tokens": 50}),
    ({"max_completion_tokens": 100}, 50, None, {"max_completion_tokens": 50}),
    ({"max_completion_tokens": 20}, 50, None, {"max_completion_tokens": 20}),
    ({}, None, 30, {"max_tokens": 30}),
    ({"max_tokens": 64_000}, None, 30, {"max_tokens": 30}),
    ({"max_completion_tokens": 64_000}, 20, 30, {"max_completion_tokens": 20}),
    ({"max_tokens": 10}, 20, 30, {"max_tokens": 10}),
]


async def test_budget_and_setting_bound_the_token_limit_of_the_agent() -> None:
    async with ScriptedProvider() as provider:
        for body, left, setting, sent in LIMITS:
            async with _engine(provider.url, max_tokens=setting) as engine:
                await engine.complete(ChatRequest({**BODY, **body}, BODY["messages"], max_tokens=left), WHO)
            seen = provider.requests[-1].body
            assert {key: value for key, value in seen.items() if key.startswith("max_")} == sent


def test_proxy_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    url, proxy = "http://inside.example:8000/v1", "http://proxy:3128"
    assert engine_module._proxy(url) is None
    monkeypatch.setenv("http_proxy", proxy)
    assert engine_module._proxy(url) == proxy
    assert engine_module._proxy(url.replace("http:", "https:")) is None
    monkeypatch.setenv("no_proxy", "inside.example")
    assert engine_module._proxy(url) is None


STREAM = (
    b": a comment\n\nevent: x\ndata: one\n\ndata:two\r\n\r\ndata: three\ndata: lines\n\nid: 1\n\n"
    b"data: \xe2\x80\xa8 is no line's end\n\ndata: cut off"
)
EVENTS = [b"one", b"two", b"three\nlines", b"\xe2\x80\xa8 is no line's end"]


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_event_parser_accepts_any_pieces(cuts: list[int]) -> None:
    parser = EventParser(10**6, 10**6)
    pieces = [STREAM[start:end] for start, end in pairwise(sorted({0, *cuts, len(STREAM)}))]
    assert [event for piece in pieces for event in parser.feed(piece)] == EVENTS
