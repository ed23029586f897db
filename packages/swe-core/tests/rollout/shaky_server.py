"""An engine that owns its tokens and fails at random, and a server over it in a process of its own.

python shaky_server.py FOLDER ROLLOUTS SEED    prints URL, path and token of each rollout; runs until killed
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import anyio
import numpy as np

from swe_core.api.engine import ChatRequest, Completion, Emit, Engine, EngineSession, Sampled, Usage
from swe_core.errors import ContextOverflow, EngineUnavailable, RequestRefused
from swe_core.interception.server import InterceptionServer
from swe_core.system.event_loop import run
from swe_testing.records import make_run

BAD_DAYS = {
    "ok": 70,
    "null": 5,  # no content, no logprobs
    "stall": 6,
    "refuse": 6,
    "overflow": 3,
    "fail": 2,  # for good, in the middle of a reply
    "raise": 1,
    "nothing": 1,  # None instead of a completion
}
MAX_BODY = 64 * 1024


def ids(text: str) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """One id a byte."""
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


class Shaky(Engine):
    """Replies in pieces with the rollout's id, the request and a number, so that all replies differ.

    Its tokens are the bytes of the text.

    Attributes:
        typed: How many tokens it sampled for each rollout, by its own count.
        days: What happened how often.
    """

    model = "shaky"
    limits_context = True

    def __init__(self, random: Random, days: dict[str, int] = BAD_DAYS) -> None:
        self.typed: Counter[str] = Counter()
        self.days: Counter[str] = Counter()
        self.ended: list[str] = []
        self._random = random
        self._chances = days
        self._last: dict[str, Sampled] = {}

    async def complete(
        self, request: ChatRequest, session: EngineSession, emit: Emit | None = None
    ) -> Completion:
        (day,) = self._random.choices(list(self._chances), list(self._chances.values()))
        self.days[day] += 1
        if day == "refuse":
            raise RequestRefused("not this one")
        if day == "overflow":
            raise ContextOverflow(9000, 8192)
        rollout, asked = session.rollout_id, request.messages[-1]["content"]
        text = f"[{rollout}] {asked} {self.days.total()} " + "x" * self._random.randrange(20)
        last = self._last.get(rollout)
        base = last if self._random.random() < 0.8 else None
        sampled = None
        size = self._random.randrange(1, 12)
        for end in range(size, len(text) + size, size):
            said = text[:end]
            logprobs = np.full(len(said), np.nan if day == "null" else -1.0, np.float32)
            versions = np.zeros(len(said), np.int32)
            cause = None if base is not None else "start"
            sampled = Sampled(base, ids("?"), ids(said), logprobs, versions, "bridge", cause)
            self.typed[rollout] += len(said) - max(0, end - size)
            request.progress.sampled = sampled
            if emit is not None and day != "null":
                await emit({"content": said[end - size :]})
            await anyio.sleep(0 if self._random.random() < 0.9 else 0.005)
            if end > len(text) // 2 and day == "stall":
                await anyio.sleep_forever()
            if end > len(text) // 2 and day == "fail":
                raise EngineUnavailable("the server is gone")
            if end > len(text) // 2 and day == "raise":
                raise KeyError("logprobs")
        if day == "nothing":
            return None
        if sampled is None:
            raise RuntimeError("nothing was said")
        self._last[rollout] = sampled
        return Completion(
            message={"role": "assistant", "content": None if day == "null" else text},
            usage=Usage(prompt_tokens=1, completion_tokens=len(text)),
            sampled=sampled,
        )

    async def end(self, session: EngineSession) -> None:
        self.ended.append(session.rollout_id)
        self._last.pop(session.rollout_id, None)


async def serve(folder: Path, rollouts: int, seed: int) -> None:
    """Answer for `rollouts` rollouts until this process is killed."""
    run = make_run(folder, rollouts)
    engine = Shaky(Random(seed))
    async with engine, InterceptionServer(max_body=MAX_BODY) as server, AsyncExitStack() as open_:
        opened = []
        for number in range(rollouts):
            who = EngineSession(str(number), "task", 0, "agent")
            record = run.folder(who.rollout_id).add_turn
            gate = await open_.enter_async_context(server.session(engine, who, record))
            opened.append([server.url + gate.path, gate.token])
        print(json.dumps(opened), flush=True)
        await anyio.sleep_forever()


if __name__ == "__main__":
    run(serve, Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
