"""Who asks the proxies that `interception` compares, and who sets the engine behind them."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import orjson
from _dialects import Dialect, events_of
from _workload import Texts, opening, request, results

from swe_core.errors import SweError, sentence

_DATA = b"data: "


@dataclass(frozen=True)
class Answer:
    """The reply to one request.

    Args:
        prompt_tokens: As the proxy counts them; 0 where it does not.
        came: Of each piece of a stream that brought text: how many characters were there then, and when it
            came, seconds of the machine's monotonic clock.
    """

    message: dict[str, Any]
    prompt_tokens: int
    came: list[tuple[int, float]] = field(default_factory=list)

    def longest_delay(self, sampled: dict[str, list[tuple[int, float]]]) -> float:
        """Milliseconds from when a token was sampled until its text came, of the token that took longest.

        Args:
            sampled: What `MockEngine.sampled` gives.

        Raises:
            SweError: The text is not one that was sampled.
        """
        text = self.message["content"] or ""
        if not self.came or text not in sampled:
            raise SweError(f"it streamed a text that the engine did not: {text[:80]!r}")
        longest, came = 0.0, iter(self.came)
        there, at = next(came)
        for end, when in sampled[text]:
            while there < len(text[:end].rstrip()):  # white space that may be the end is no text yet
                there, at = next(came)
            longest = max(longest, at - when)
            if end >= len(text):
                break
        return 1000 * longest


class Client:
    """One agent: a connection that is kept, an endpoint and its key."""

    def __init__(self, url: str, key: str) -> None:
        parts = urlsplit(url)
        self._connection = HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        self._path = f"{parts.path}/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}

    def ask(self, body: bytes) -> Answer:
        """The reply to one request, whether it comes whole or as a stream.

        Raises:
            SweError: It is an error.
        """
        try:
            self._connection.request("POST", self._path, body, self._headers)
            with self._connection.getresponse() as response:
                if response.status == 200 and response.headers.get_content_type() == "text/event-stream":
                    return _joined(response)
                content = response.read()
        except (OSError, HTTPException) as error:
            raise SweError(f"a request failed: {sentence(error)}") from None
        if response.status != 200:
            raise SweError(f"it answered {response.status}: {content[:200].decode(errors='replace')}")
        reply = orjson.loads(content)
        return Answer(reply["choices"][0]["message"], reply["usage"]["prompt_tokens"])

    def ask_all(self, bodies: Iterable[bytes]) -> list[Answer]:
        """One after the other."""
        return [self.ask(body) for body in bodies]

    def converse(self, turns: int, size: int, seed: int, streamed: bool) -> int:
        """A session of `turns` calls in which every tool result has `size` characters; the last prompt's
        tokens, where the proxy knows them."""
        texts, tokens = Texts(seed), 0
        messages = opening(texts.piece(size))
        for _ in range(turns):
            answer = self.ask(orjson.dumps(request(messages, streamed)))
            messages += results(answer.message, texts.piece(size))
            tokens = answer.prompt_tokens
        return tokens


class DialectClient(Client):
    """An agent of another dialect: it takes bodies of chat completions, and gives their replies."""

    def __init__(self, url: str, key: str, dialect: Dialect) -> None:
        super().__init__(url, key)
        self._dialect = dialect
        self._root = urlsplit(url).path.removesuffix("/v1")
        name, prefix = dialect.key
        self._headers = {name: prefix + key, "Content-Type": "application/json"}

    def ask(self, body: bytes) -> Answer:
        sent = self._dialect.request(orjson.loads(body))
        try:
            self._connection.request("POST", self._root + sent.path, sent.body, self._headers)
            with self._connection.getresponse() as response:
                if response.status != 200:
                    content = response.read()[:200].decode(errors="replace")
                    raise SweError(f"it answered {response.status}: {content}")
                if response.headers.get_content_type() == "text/event-stream":
                    return Answer(*self._dialect.streamed(events_of(response)))
                return Answer(*self._dialect.whole(orjson.loads(response.read())))
        except (OSError, HTTPException) as error:
            raise SweError(f"a request failed: {sentence(error)}") from None


def _joined(response: HTTPResponse) -> Answer:
    """A streamed reply.

    Raises:
        SweError: It breaks off, or an error stands in it.
    """
    text, tokens, whole = "", 0, False
    calls: dict[int, dict[str, Any]] = {}
    came: list[tuple[int, float]] = []
    for line in response:
        if not line.startswith(_DATA):
            continue
        now = time.monotonic()
        data = line[len(_DATA) :].strip()
        if data == b"[DONE]":
            whole = True
            continue
        event = orjson.loads(data)
        if "error" in event:
            raise SweError(f"its stream has an error: {event['error']}")
        tokens = (event.get("usage") or {}).get("prompt_tokens", tokens)
        for choice in event["choices"]:
            if piece := choice["delta"].get("content"):
                text += piece
                came.append((len(text), now))
            for part in choice["delta"].get("tool_calls") or ():
                _add(calls.setdefault(part["index"], {"type": "function", "function": {}}), part)
    if not whole:
        raise SweError("its stream broke off")
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    return Answer(message | ({"tool_calls": [*calls.values()]} if calls else {}), tokens, came)


def _add(call: dict[str, Any], part: dict[str, Any]) -> None:
    """Take a part of a tool call."""
    if part.get("id"):
        call["id"] = part["id"]
    for key, text in (part.get("function") or {}).items():
        call["function"][key] = call["function"].get(key, "") + (text or "")


class MockEngine:
    """The engine behind the proxies."""

    def __init__(self, url: str) -> None:
        self.url = url

    def set(self, replies: str, interval: int | None, pace: float) -> None:
        """Which replies it gives from now on, from the first of them; see `_mock_engine`."""
        self._ask("/mode", {"replies": replies, "interval": interval, "pace": pace})

    def sampled(self) -> dict[str, list[tuple[int, float]]]:
        """By its text, of each token of the paced replies since it was set: the characters up to its end, and
        when it was sampled."""
        return {text: [(end, at) for end, at in tokens] for text, tokens in self._ask("/sampled", {}).items()}

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        with urllib.request.urlopen(self.url + path, orjson.dumps(body), timeout=10) as response:
            return orjson.loads(response.read())
