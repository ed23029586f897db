"""The dialect of Google's Gemini API: requests in; replies, event streams and errors out.

The API reads field names in camel case and in snake case, and its SDKs send both in one request.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from itertools import groupby
from typing import Any, ClassVar
from uuid import uuid4

import orjson

from swe_core.api.engine import Completion, Delta, Usage
from swe_core.api.messages import Message, dumps, same_arguments, text_of
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
from swe_core.interception.dialects.common import kind_of, limit_of, load


@cache
def _snake(key: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key)


_ROLES = {"user": "user", "function": "user", "model": "model"}
"""Roles of contents, of which "function" is an old one → who speaks."""
_NO_DATA = frozenset({"thought", "thoughtSignature", "thought_signature", "partMetadata", "part_metadata"})
"""Fields that a part may have without data."""
_TEXT_ONLY = "this endpoint's model reads text, function calls and their responses only; send text"
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
    for key in (word, _snake(word), word.removeprefix("$"))
}
"""Keywords of a schema that need a change, in all spellings → the JSON schema's spelling."""
_REASONS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_LINE_ENDS = ((b"\xe2\x80\xa8", b"\\u2028"), (b"\xe2\x80\xa9", b"\\u2029"), (b"\xc2\x85", b"\\u0085"))
"""U+2028, U+2029 and U+0085 → their escapes. Google's SDKs take these characters for the end of a line."""
_ARGS_DEPTH = 100
"""Levels of objects and lists in the arguments of a call, which later requests have inside others."""


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
            fields = _object(fields, "generateContentRequest") or fields
        if _get(fields, "cachedContent"):
            raise BadRequest("'cachedContent' is not supported here: nothing is cached; send all contents")
        config = _object(fields, "generationConfig")
        messages, tools = _messages(fields), list(_tools(fields))
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
        with_thoughts = bool(_get(_object(config, "thinkingConfig"), "includeThoughts"))
        in_events = target.query.get("alt") == "sse"
        return ParsedRequest(body, messages, tools or None, stream, most, extra=(in_events, with_thoughts))

    def reply(self, asked: ParsedRequest, model: str) -> Reply:
        in_events, with_thoughts = asked.extra
        return (_EventsReply if in_events else _ArrayReply)(model, with_thoughts)

    def error(self, problem: Problem) -> bytes:
        return orjson.dumps(_error(problem))

    def count(self, tokens: int) -> bytes:
        return orjson.dumps({"totalTokens": tokens})


class _GoogleReply(Reply):
    """A reply; a subclass says how the pieces of a stream follow each other."""

    def __init__(self, model: str, with_thoughts: bool) -> None:
        self._id = uuid4().hex
        self._model = model
        self._with_thoughts = with_thoughts
        self._begun = False

    def body(self, completion: Completion) -> bytes:
        parts = [*self._texts(completion.message), *_call_parts(completion.message)]
        return orjson.dumps(self._last(parts, completion))

    def delta(self, delta: Delta) -> bytes:
        # Calls follow at the end: this API has no pieces of arguments.
        parts = self._texts(delta)
        if not parts:
            return b""
        self._begun = True
        return self._event(self._response({"content": {"parts": parts, "role": "model"}, "index": 0}))

    def end(self, completion: Completion) -> bytes:
        parts = [] if self._begun else self._texts(completion.message)
        return self._event(self._last([*parts, *_call_parts(completion.message)], completion))

    def failed(self, problem: Problem) -> bytes:
        return self._event(_error(problem))

    @abstractmethod
    def _event(self, data: dict[str, Any]) -> bytes:
        """Return one piece of the stream."""

    def _texts(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the parts of a message, or of a piece of one, that are text."""
        parts: list[dict[str, Any]] = []
        thought = message.get("reasoning_content") or message.get("reasoning")
        if self._with_thoughts and thought and isinstance(thought, str):
            parts.append({"text": thought, "thought": True})
        if text := text_of(message.get("content")):
            parts.append({"text": text})
        return parts

    def _last(self, parts: list[dict[str, Any]], completion: Completion) -> dict[str, Any]:
        # The chats of the SDKs forget a turn in which one event has no part.
        candidate = {
            "content": {"parts": parts or [{"text": ""}], "role": "model"},
            "finishReason": _REASONS.get(completion.finish_reason, "STOP"),
            "index": 0,
        }
        return {**self._response(candidate, completion.model), "usageMetadata": _usage(completion.usage)}

    def _response(self, candidate: dict[str, Any], model: str = "") -> dict[str, Any]:
        return {"candidates": [candidate], "modelVersion": model or self._model, "responseId": self._id}


class _EventsReply(_GoogleReply):
    """A stream of server-sent events."""

    def failed(self, problem: Problem) -> bytes:
        # No event: the JavaScript SDK finds an error in a stream only as a line of its own.
        return orjson.dumps(_error(problem)) + b"\n\n"

    def _event(self, data: dict[str, Any]) -> bytes:
        line = orjson.dumps(data)
        for character, escape in _LINE_ENDS:
            line = line.replace(character, escape)
        return b"data: %b\n\n" % line


class _ArrayReply(_GoogleReply):
    """A stream that is one JSON array, as the API sends it without `alt=sse`; and a reply in one piece."""

    content_type: ClassVar[str] = "application/json"

    def __init__(self, model: str, with_thoughts: bool) -> None:
        super().__init__(model, with_thoughts)
        self._separator = b"["

    def end(self, completion: Completion) -> bytes:
        return super().end(completion) + b"]"

    def failed(self, problem: Problem) -> bytes:
        return super().failed(problem) + b"]"

    def _event(self, data: dict[str, Any]) -> bytes:
        separator, self._separator = self._separator, b",\n"
        return separator + orjson.dumps(data)


class _Odd(ValueError):
    """A part cannot be read; the text goes on from the place of the part."""


class _Calls:
    """The calls of a conversation: gives ids to those without one, and finds the call of a response."""

    def __init__(self) -> None:
        self._count = 0
        self._open: set[str] = set()
        self._by_name: dict[str, deque[str]] = {}

    def begin(self) -> None:
        """Begin a message of the model: responses answer only its calls."""
        self._open = set()
        self._by_name = {}

    def add(self, call: dict[str, Any]) -> dict[str, Any]:
        """Return a call in canonical form."""
        name, args = _named(call, "functionCall", "args")
        id = str(call.get("id") or f"call_{self._count}")
        self._count += 1
        self._open.add(id)
        self._by_name.setdefault(name, deque()).append(id)
        return {"id": id, "type": "function", "function": {"name": name, "arguments": dumps(args)}}

    def result(self, response: dict[str, Any]) -> Message:
        """Return the response to a call as a message."""
        name, content = _named(response, "functionResponse", "response")
        if response.get("parts"):
            raise _Odd(f".functionResponse.parts is not supported here: {_TEXT_ONLY} in 'response'")
        message: Message = {"role": "tool", "content": _result_text(content)}
        if id := self._answered(response.get("id"), name):
            message["tool_call_id"] = id
        return message

    def _answered(self, given: object, name: str) -> str | None:
        """Return the id of the call that a response answers: the given id, else the next of that name."""
        id = given if isinstance(given, str) else None
        if id not in self._open:
            waiting = self._by_name.get(name, deque())
            while waiting and waiting[0] not in self._open:  # answered by its id
                waiting.popleft()
            id = waiting.popleft() if waiting else id
        self._open.discard(id or "")
        return id


def _messages(fields: dict[str, Any]) -> list[Message]:
    """Return the instructions and contents of a request in canonical form."""
    contents = _listed(_get(fields, "contents"))
    if not contents:
        raise BadRequest("'contents' is missing or empty; send a list of at least one content")
    messages: list[Message] = []
    if texts := _instructions(_get(fields, "systemInstruction")):
        messages.append({"role": "system", "content": "".join(texts)})
    calls = _Calls()
    # The chats of the SDKs send each event of a streamed reply back as a content of its own.
    for role, run in groupby(enumerate(contents), key=_role):
        if role == "model":
            messages.append(_assistant(calls, run))
        else:
            for index, content in run:
                messages += _user(calls, index, content)
    return messages


def _instructions(given: Any) -> list[str]:
    """Return the texts of the system's instructions: a content, parts, one part or a string."""
    if isinstance(given, str):
        given = {"text": given}
    content = given if isinstance(given, dict) and "parts" in given else {"parts": given}
    texts: list[str] = []
    _read("systemInstruction", content, lambda part: texts.append(part["text"]))
    return texts


def _role(numbered: tuple[int, Any]) -> str:
    index, content = numbered
    if not isinstance(content, dict):
        raise BadRequest(f"contents[{index}] is {kind_of(content)}; send an object with 'parts'")
    given = content.get("role")
    role = _ROLES.get(given or "user") if isinstance(given, str | None) else None
    if role is None:
        raise BadRequest(f"contents[{index}].role is {given!r}; send user or model")
    return role


def _assistant(calls: _Calls, run: Iterable[tuple[int, Any]]) -> Message:
    """Return consecutive contents of the model as one message."""
    calls.begin()
    texts: list[str] = []
    thoughts: list[str] = []
    made: list[dict[str, Any]] = []

    def add_text(part: dict[str, Any]) -> None:
        (thoughts if part.get("thought") else texts).append(part["text"])

    def add_call(call: dict[str, Any]) -> None:
        made.append(calls.add(call))

    for index, content in run:
        _read(f"contents[{index}]", content, add_text, "functionCall", add_call)
    message: Message = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if made:
        message["tool_calls"] = made
    return message


def _user(calls: _Calls, index: int, content: dict[str, Any]) -> list[Message]:
    """Return the responses of a content, then its text: templates show results next to their calls."""
    texts: list[str] = []
    messages: list[Message] = []
    _read(
        f"contents[{index}]",
        content,
        lambda part: texts.append(part["text"]),
        "functionResponse",
        lambda response: messages.append(calls.result(response)),
    )
    if texts or not messages:
        messages.append({"role": "user", "content": "".join(texts)})
    return messages


def _read(
    at: str,
    content: dict[str, Any],
    add_text: Callable[[dict[str, Any]], None],
    kind: str = "text",
    add: Callable[[dict[str, Any]], None] = lambda data: None,
) -> None:
    """Read the parts of a content.

    Args:
        at: The content's place, for errors.
        add_text: Receives each part that is text.
        kind: The other kind of parts that the content may have.
        add: Receives the data of each part of that kind.
    """
    for number, part in enumerate(_listed(content.get("parts"))):
        try:
            if not isinstance(part, dict):
                raise _Odd(f" is {kind_of(part)}; send an object such as {{'text': ...}}")
            if isinstance(part.get("text"), str):
                add_text(part)
            elif (data := _data(part, kind)) is not None:
                add(data)
        except _Odd as odd:
            raise BadRequest(f"{at}.parts[{number}]{odd}") from None


def _data(part: dict[str, Any], kind: str) -> dict[str, Any] | None:
    """Return the object of `kind` in a part without text; None in a part without data."""
    if part.get("text") is not None:
        raise _Odd(f".text is {kind_of(part['text'])}; send a string")
    data = _get(part, kind)
    if isinstance(data, dict):
        return data
    if data is not None:
        raise _Odd(f".{kind} is {kind_of(data)}; send an object")
    odd = next((key for key, value in part.items() if value is not None and key not in _NO_DATA), None)
    if odd is not None:
        raise _Odd(f".{odd} is not supported here: {_TEXT_ONLY}")
    return None


def _named(fields: dict[str, Any], at: str, key: str) -> tuple[str, dict[str, Any]]:
    """Return the name in a call or response, and the object at `key`."""
    name, value = fields.get("name") or "", fields.get(key)  # a model may sample a call without a name
    if not isinstance(name, str):
        raise _Odd(f".{at}.name is {kind_of(name)}; send a string")
    if not isinstance(value, dict | None):
        raise _Odd(f".{at}.{key} is {kind_of(value)}; send an object")
    return name, value or {}


def _result_text(response: dict[str, Any]) -> str:
    """Return a function's response as text: its output where that is all there is, else sorted JSON."""
    if len(response) == 1:
        ((key, value),) = response.items()
        if key in ("output", "result") and isinstance(value, str):
            return value
    return orjson.dumps(response, option=orjson.OPT_SORT_KEYS).decode()


def _tools(fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the declared functions in chat-completions form."""
    for index, tool in enumerate(_listed(fields.get("tools"))):
        if not isinstance(tool, dict):
            raise BadRequest(f"tools[{index}] is {kind_of(tool)}; send an object")
        for key, value in tool.items():
            if value is None:
                continue
            if key not in ("functionDeclarations", "function_declarations"):
                raise BadRequest(
                    f"tools[{index}].{key} is not supported here: this endpoint runs no tools itself; "
                    "send 'functionDeclarations' only"
                )
            for number, declared in enumerate(_listed(value)):
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
    parameters = _get(declared, "parametersJsonSchema")
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
    config = _object(_object(fields, "toolConfig"), "functionCallingConfig")
    if not config:
        return None
    mode = str(config.get("mode") or "AUTO")
    choice = _MODES.get(mode)
    if choice is None:
        raise BadRequest(f"functionCallingConfig.mode is {mode!r}; send one of {', '.join(_MODES)}")
    names = _listed(_get(config, "allowedFunctionNames"))
    if not names or choice == "none":
        return choice
    allowed = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice, "tools": allowed}}


def _options(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a generation as a chat completion names them."""
    count = _get(config, "candidateCount")
    if count is True or count not in (None, 0, 1):
        raise BadRequest(f"'candidateCount' is {count!r}; this endpoint gives one candidate a request")
    for key, (nothing, why) in _NOT_GIVEN.items():
        if _get(config, key) not in (None, nothing):
            raise BadRequest(f"{key!r} is not supported here: {why}; leave it out")
    options = {name: value for key, name in _OPTIONS.items() if (value := _get(config, key)) is not None}
    if (wanted := _response_format(config)) is not None:
        options["response_format"] = wanted
    return options


def _response_format(config: dict[str, Any]) -> dict[str, Any] | None:
    mime = _get(config, "responseMimeType")
    if mime not in (None, "", "text/plain", "application/json"):
        raise BadRequest(f"'responseMimeType' is {mime!r}; send text/plain or application/json")
    schema = _get(config, "responseJsonSchema") or _json_schema(_get(config, "responseSchema"))
    if schema:
        return {"type": "json_schema", "json_schema": {"name": "response", "schema": schema}}
    return {"type": "json_object"} if mime == "application/json" else None


def _call_parts(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the parts of a message that are calls."""
    for call in message.get("tool_calls") or ():
        function = call["function"]
        named = {"name": function["name"], "args": _args(function["arguments"])}
        yield {"functionCall": {"id": call["id"], **named} if call.get("id") else named}


def _args(text: str) -> dict[str, Any]:
    """Return sampled arguments as an object, which is all that this API can express."""
    with suppress(BadRequest):
        return load(text.encode(), _ARGS_DEPTH)
    with suppress(BadRequest):  # without numbers that only JavaScript reads
        return load(same_arguments(text).encode(), _ARGS_DEPTH)
    return {}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "promptTokenCount": usage.prompt_tokens,
        "candidatesTokenCount": usage.completion_tokens,
        "totalTokenCount": usage.prompt_tokens + usage.completion_tokens,
    }


def _error(problem: Problem) -> dict[str, Any]:
    status, message = problem.status, problem.message
    if problem.overflow is not None:  # the API's own words, which clients look for
        message = (
            f"The input token count ({problem.overflow.prompt_tokens}) exceeds the maximum number of tokens "
            f"allowed ({problem.overflow.limit})."
        )
    name = _STATUSES.get(status, "FAILED_PRECONDITION" if status < 500 else "INTERNAL")
    return {"error": {"code": status, "message": message, "status": name}}


def _get(fields: Mapping[str, Any], key: str) -> Any:
    """Return the value at a key in camel case, or at the same key in snake case."""
    value = fields.get(key)
    return fields.get(_snake(key)) if value is None else value


def _object(fields: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the object at a key, empty where there is none."""
    value = _get(fields, key)
    if not isinstance(value, dict | None):
        raise BadRequest(f"{key!r} is {kind_of(value)}; send an object")
    return value or {}


def _listed(value: Any) -> list[Any]:
    """Return a list; the API also takes the one element of a list without its brackets."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
