"""Session files of Claude Code: a transcript and, from version 2.1.331 at the latest, each request.

A request is stored as the digests of its messages. Most are those of the transcript's own messages; the
file has the others in full.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swe_core.drift.recorded import RecordedTurn

Row = Mapping[str, Any]
Turns = list[RecordedTurn]
Parse = Callable[[Mapping[str, Any]], Turns]
"""Returns the turns of a request to Anthropic's API that ends with a reply."""


@dataclass(slots=True)
class _Call:
    """A reply, and the request that it answers."""

    shape: Mapping[str, Any]
    messages: list[dict[str, Any]]
    reply: dict[str, Any]


@dataclass(slots=True)
class _Thread:
    """The conversation of the agent or of a sub-agent.

    Args:
        said: Its messages since the last compaction; the blocks of a reply are one message.
        reply_id: The id of the last reply; results of its first calls may stand between its blocks.
    """

    said: list[dict[str, Any]] = field(default_factory=list)
    calls: list[_Call] = field(default_factory=list)
    reply_id: object = None


def turns_of_claude(rows: Sequence[Row], parse: Parse) -> Iterator[Turns]:
    """Yield the turns of the conversation, and those of each sub-agent in the file.

    Where the file does not have a request, it is the transcript since the last compaction, without tools and
    without what Claude Code adds to messages.

    Raises:
        BadRequest: A message is malformed or has content other than text.
        KeyError: A row lacks a field of the format.
    """
    requests, shapes = _Requests(), {}
    threads: dict[object, _Thread] = {}
    for row in rows:
        thread = threads.setdefault(row.get("agentId") if row.get("isSidechain") else None, _Thread())
        match row.get("type"):
            case "api-request-shape":
                shapes[row["shapeHash"]] = row["shape"]
            case "api-request-blob":
                requests.known[row["hash"]] = row["message"]
            case "api-request":
                requests.add(row)
            case "system" if row.get("subtype") == "compact_boundary":
                thread.said = []
            case "user" | "assistant" if not row.get("isApiErrorMessage"):
                _say(thread, row, requests, shapes)
    for thread in threads.values():
        requests.learn(thread.said)
        yield [turn for calls in _growing(thread.calls) for turn in _parsed(calls, parse)]


class _Requests:
    """The requests of a file, as far as its messages are known.

    Attributes:
        known: Messages by digest.
    """

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}
        self._digests: dict[str, list[str]] = {}
        self._shape: dict[str, str] = {}

    def add(self, row: Row) -> None:
        base = self._digests.get(row.get("base", ""), [])
        self._digests[row["id"]] = [*base[: row.get("keep", 0)], *row["tail"]]
        self._shape[row["id"]] = row["shapeHash"]

    def learn(self, said: Sequence[dict[str, Any]]) -> None:
        """Note the digests of the last messages: of each, and of those of one role together."""
        for message in said[-2:]:
            self.known.setdefault(_digest(message), message)
        last = said[-1]["role"] if said else None
        blocks: list[Any] = []
        for message in reversed(said):
            if message["role"] != last:
                break
            blocks = [*message["content"], *blocks]
        if last is not None:
            joined = {"role": last, "content": blocks}
            self.known.setdefault(_digest(joined), joined)

    def messages(self, request: object) -> list[dict[str, Any]] | None:
        """Return the messages of a request; None where one is unknown."""
        digests = self._digests.get(str(request))
        if digests is None or not self.known.keys() >= set(digests):
            return None
        return [self.known[digest] for digest in digests]

    def shape(self, request: object) -> str | None:
        return self._shape.get(str(request))


def _say(thread: _Thread, row: Row, requests: _Requests, shapes: Mapping[str, Mapping[str, Any]]) -> None:
    """Add a row of the transcript to its conversation."""
    message = row["message"]
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    same = row["type"] == "assistant" and message.get("id") == thread.reply_id is not None
    if same:  # one reply is a row a block
        thread.calls[-1].reply["content"] += blocks
        return
    requests.learn(thread.said)
    said = {"role": row["type"], "content": blocks}
    if row["type"] == "assistant":
        thread.reply_id = message.get("id")
        asked = requests.messages(row.get("requestRef"))
        shape = shapes.get(requests.shape(row.get("requestRef")) or "", {})
        thread.calls.append(_Call(shape, [*thread.said] if asked is None else asked, said))
    thread.said.append(said)


def _growing(calls: Sequence[_Call]) -> Iterator[list[_Call]]:
    """Yield the calls in groups, in each of which a request begins with the one before and its reply."""
    group: list[_Call] = []
    for call in calls:
        if group:
            before = [*group[-1].messages, group[-1].reply]
            if call.shape != group[-1].shape or call.messages[: len(before)] != before:
                yield group
                group = []
        group.append(call)
    if group:
        yield group


def _parsed(calls: Sequence[_Call], parse: Parse) -> Turns:
    """Return the turns of calls that grow, from the last one's conversation."""
    last = calls[-1]
    body = {"messages": [*last.messages, last.reply], **last.shape}
    return parse({key: value for key, value in body.items() if value})[-len(calls) :]


def _digest(message: Mapping[str, Any]) -> str:
    """Return the digest by which requests name a message."""
    text = json.dumps(message, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
