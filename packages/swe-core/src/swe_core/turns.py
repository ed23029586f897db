"""Requests as turns and back: each turn keeps only what its request added to the one before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from swe_core.record import Turn


class Added(NamedTuple):
    """What one request added: the fields `kept`, `messages` and `params` of its turn."""

    kept: int
    messages: list[dict[str, Any]]
    params: dict[str, Any]


class RequestDiff:
    """Follows the requests of one rollout. Keeps the last one only."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        self._tools: object = None

    def added(self, body: Mapping[str, Any]) -> Added:
        """What the request `body` adds to the one given before."""
        messages: list[dict[str, Any]] = list(body["messages"])
        kept = _common_prefix(self._messages, messages)
        params = {key: value for key, value in body.items() if key not in ("messages", "tools")}
        tools = body.get("tools")
        if tools != self._tools:
            params["tools"] = tools  # null says that there are none any more
        self._messages, self._tools = messages, tools
        return Added(kept, messages[kept:], params)


def requests(turns: Iterable[Turn]) -> Iterator[dict[str, Any]]:
    """The request bodies that `turns`, all of a rollout in their order, were recorded from.

    A `tools` that was null comes back as absent.
    """
    messages: list[dict[str, Any]] = []
    tools: object = None
    for turn in turns:
        messages = [*messages[: turn.kept], *turn.messages]
        tools = turn.params.get("tools", tools)
        body = {**turn.params, "messages": messages, "tools": tools}
        if tools is None:
            del body["tools"]
        yield body


def _common_prefix(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> int:
    kept = 0
    for before, after in zip(old, new, strict=False):
        if before != after:
            break
        kept += 1
    return kept
