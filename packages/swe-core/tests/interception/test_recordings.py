"""The dialects: recorded requests and what they mean, recorded replies and how they are written.

They are in `recordings/DIALECT.json`, whose fields are explained here. `test_*_clients.py` show that the SDKs
send such requests and take such replies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.engine import Completion, Usage
from swe_core.errors import ContextOverflow
from swe_core.interception.dialects import DIALECTS
from swe_core.interception.dialects.base import BadRequest, Dialect, ParsedRequest, Problem, Target

from .helpers import events_of

BY_NAME = {dialect.name: dialect for dialect in DIALECTS}
FILES = {one: json.loads((Path(__file__).parent / f"recordings/{one}.json").read_text()) for one in BY_NAME}
LONG = "x" * 1100


class Recording:
    """One recording: a request, or several of one rollout, each with what is expected.

    Ids of 32 hexadecimal digits are "#1", "#2" and so on, in the order in which the dialect makes them, and
    "#long" is `LONG`.
    """

    def __init__(self, name: str) -> None:
        self.dialect: Dialect = BY_NAME[name]
        self.file = FILES[name]
        self.memory: dict[str, Any] = {}
        self.ids = {LONG: "#long"}

    def parse(self, case: dict[str, Any]) -> ParsedRequest:
        """Read the request `send`, fields on top of those in `base`, or a text that is the whole body."""
        sent = case.get("send", {})
        raw = sent if isinstance(sent, str) else json.dumps(self.meant({**self.file["base"], **sent}))
        path = case.get("path", self.dialect.routes[0].path)
        route = next(route for route in self.dialect.routes if route.path.endswith(path))
        target = Target(route, {"id": "r1", "model": "policy"}, case.get("query", {}), self.memory)
        return self.dialect.parse(raw.encode(), target)

    def request(self, case: dict[str, Any]) -> ParsedRequest | None:
        """Compare a request with its `messages` and with the chat completion `chat` that it asks for."""
        if "refused" in case:
            with pytest.raises(BadRequest) as refused:
                self.parse(case)
            assert self.meant(case["refused"]) in str(refused.value)
            assert refused.value.code == case.get("code")
            return None
        asked = self.parse(case)
        messages = case.get("messages", [{"role": "user", "content": "hello"}])
        assert self.seen(asked.messages) == messages
        if self.dialect.name == "chat":  # what is recorded and relayed stays the agent's own
            body = {**self.file["base"], **case.get("relayed", case.get("send", {}))}
        else:
            body = {"messages": messages, "stream": False}
            body |= {**self.file.get("chat", {}), **case.get("chat", {})}
        assert self.seen(asked.body) == body
        assert asked.tools == (body.get("tools") or None)
        assert asked.stream is bool(body.get("stream"))
        assert asked.max_tokens == case.get("max_tokens", body.get("max_tokens"))
        return asked

    def reply(self, case: dict[str, Any], asked: ParsedRequest) -> None:
        """Compare the reply `said` with its `whole` form, and its pieces with the events of a stream.

        `stream` has the pieces, each with the events that it becomes; after them come those of `end`, or of
        `failed` where `problem` ends it.
        """
        said = {"role": "assistant", "content": "", **self.meant(case.get("said", {}))}
        prompt, reply = case.get("usage", [0, 0])
        usage = Usage(prompt_tokens=prompt, completion_tokens=reply)
        completion = Completion(said, case.get("finish", "stop"), usage, stopped_by=case.get("stopped_by"))
        if "whole" in case:
            whole = json.loads(self.dialect.reply(asked, "policy").body(completion))
            assert self.bare(whole, case) == case["whole"]
        if "stream" not in case:
            return
        reply = self.dialect.reply(asked, "policy")
        expected = [events for _, events in case["stream"]]
        raw = [reply.delta(piece) for piece, _ in case["stream"]]
        if "end" in case:
            expected, raw = [*expected, case["end"]], [*raw, reply.end(completion)]
        if "failed" in case:
            expected, raw = [*expected, case["failed"]], [*raw, reply.failed(problem_of(*case["problem"]))]
        raw = [self.dialect.keepalive + piece for piece in raw]
        if reply.content_type == "application/json":
            expected, found = [[*chain.from_iterable(expected)]], [json.loads(b"".join(raw))]
        else:
            found = [events_of(piece, self.dialect) for piece in raw]
        numbers = [one.pop("sequence_number") for many in found for one in many if "sequence_number" in one]
        assert numbers == list(range(len(numbers)))
        assert self.bare(found, case) == expected

    def meant(self, value: Any) -> Any:
        """Return recorded JSON with the ids that the dialect has made."""
        text = json.dumps(value)
        for id_, short in self.ids.items():
            text = text.replace(short, id_)
        return json.loads(text)

    def seen(self, value: Any) -> Any:
        """Return JSON as it is recorded: with short ids, and without times."""
        text = json.dumps(value, ensure_ascii=False).replace(LONG, "#long")
        text = re.sub(r'("created(?:_at)?": )\d+', r"\g<1>0", text)
        text = re.sub("[0-9a-f]{32}", lambda id_: self.ids.setdefault(id_[0], f"#{len(self.ids)}"), text)
        return json.loads(text)

    def bare(self, value: Any, case: dict[str, Any]) -> Any:
        """Return a reply without the fields that are `usual`, the same in every one, unless it is `full`."""

        def without(value: Any) -> Any:
            if isinstance(value, list):
                return list(map(without, value))
            if not isinstance(value, dict):
                return value
            usual = {} if case.get("full") else self.file["usual"]
            return {key: without(one) for key, one in value.items() if key not in usual or usual[key] != one}

        return without(self.seen(value))


def problem_of(status: int, kind: Any, message: str, code: str | None = None, *overflow: int) -> Problem:
    return Problem(status, kind, message, code, ContextOverflow(*overflow) if overflow else None)


def recorded(name: str, kind: str) -> Iterator[tuple[Recording, dict[str, Any]]]:
    """Yield each request, or each reply with its request; those of one rollout have the same recording."""
    for case in chain.from_iterable(FILES[name][kind].values()):
        recording = Recording(name)
        for step in case if isinstance(case, list) else [case]:
            yield recording, step


@pytest.mark.parametrize("name", FILES)
def test_requests_and_replies_are_as_recorded(name: str) -> None:
    for recording, step in recorded(name, "requests"):
        recording.request(step)
    for recording, step in recorded(name, "replies"):
        asked = recording.request(step)
        if asked is not None:
            recording.reply(step, asked)


@pytest.mark.parametrize("name", FILES)
def test_errors_counts_and_keys_are_as_recorded(name: str) -> None:
    dialect, file = BY_NAME[name], FILES[name]
    for problem, body in file["errors"]:
        assert json.loads(dialect.error(problem_of(*problem))) == body
    for headers, query, key in file["keys"]:
        assert dialect.key(headers, query) == key
    if "count" in file:
        assert json.loads(dialect.count(7)) == file["count"]
