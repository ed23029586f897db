"""Generation: the tokens of one reply as they arrive, over several requests if necessary."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
import orjson

from swe_core.api.engine import Progress, Sampled
from swe_core.builtin.vllm.replies import Chunk
from swe_core.tokens.conversation import Prompt


class Generation:
    """The ids, log-probabilities and policy versions of one reply.

    A request that breaks off is continued from the ids that came: the next request's prompt is the prompt
    and those ids, so that no sampled token is lost or drawn twice.

    Attributes:
        ids: What was sampled so far.
        finish: Why it ended, None while it has not.

    Args:
        limit: Ids at most.
        stops: Texts that end a reply. A server looks for them only in what it samples itself: those that
            were there before it broke off, or that it broke in two, are found here.
        text: What ids stand for.
        dropped: Why none of them may be trained; None where they may.
    """

    def __init__(
        self,
        prompt: Prompt,
        limit: int,
        stop_ids: Collection[int],
        progress: Progress,
        stops: Sequence[str],
        text: Callable[[Sequence[int]], str],
        dropped: str | None = None,
    ) -> None:
        self.ids: list[int] = []
        self.finish: str | None = None
        self._prompt = prompt
        self._limit = limit
        self._stop_ids = stop_ids
        self._stops = stops
        self._text = text
        self._dropped = dropped
        self._reach = max((len(stop.encode()) for stop in stops), default=0)  # ids of one, at most
        self._broken = -self._reach
        self._logprobs: list[float] = []
        self._versions: list[int] = []
        self._counts: list[int] = []  # of the ids that each of `_versions` sampled
        progress.follow(self._so_far)

    @property
    def room(self) -> int:
        """Return how many more ids may follow."""
        return self._limit - len(self.ids)

    def prompt(self) -> bytes:
        """Return the ids of the next request's prompt as JSON."""
        if not self.ids:
            return self._prompt.json
        return b"%b,%b" % (self._prompt.json, orjson.dumps(self.ids)[1:-1])

    def add(self, chunk: Chunk) -> None:
        """Add a chunk."""
        start, version = len(self.ids), chunk.version
        self.ids += chunk.ids
        self._logprobs += chunk.logprobs
        if self._versions[-1:] == [version]:
            self._counts[-1] += len(chunk.ids)
        else:
            self._versions.append(version)
            self._counts.append(len(chunk.ids))
        self.finish = chunk.finish if chunk.finish != "abort" else None
        if start < self._broken + self._reach:
            self._find_stop(start)

    def break_off(self) -> None:
        """Note that the request ended without a finish reason, which the ids may give."""
        self._broken = len(self.ids)
        if (self.ids and self.ids[-1] in self._stop_ids) or self._has_stop(0):
            self.finish = "stop"
        elif self.room <= 0:
            self.finish = "length"

    def sampled(self) -> Sampled:
        """Return the tokens so far."""
        return Sampled(
            extends=self._prompt.extends,
            prompt_ids=self._prompt.new_ids,
            completion_ids=np.array(self.ids, np.int32),
            logprobs=np.array(self._logprobs, np.float32),
            versions=np.repeat(np.array(self._versions, np.int32), self._counts),
            rendered=self._prompt.rendered,
            cause=self._prompt.cause,
            dropped=self._dropped,
        )

    def missing(self) -> int:
        """Return the number of ids without a log-probability."""
        return sum(map(math.isnan, self._logprobs))

    def _so_far(self) -> Sampled | None:
        return self.sampled() if self.ids else None

    def _find_stop(self, start: int) -> None:
        """End the reply with the first id from `start` on that completes a stop text which the break cut in
        two: the server, which did not see it, sampled on."""
        for end in range(start + 1, len(self.ids) + 1):
            if self._has_stop(self._broken - self._reach, end):
                self.finish = "stop"
                del self.ids[end:], self._logprobs[end:]
                self._counts[-1] = end - sum(self._counts[:-1])
                return

    def _has_stop(self, start: int, end: int | None = None) -> bool:
        text = self._text(self.ids[max(0, start) : end]) if self._stops else ""
        return any(stop in text for stop in self._stops)
