"""What one more turn of a long conversation costs the host, next to rendering and tokenising it all afresh.

    python benchmarks/turn_cost.py [--runs N] [--turns N]

A conversation with tool results grows to 74k tokens in 100 turns. Counted is the processor time of what the
engine `vllm` does for a turn besides HTTP and the JSON of its requests: find the turn that the history
continues, make the prompt's ids from it and the new messages, parse the reply's ids, and keep the turn. An
early turn and the last one are medians over the turns around them, in all runs. The other side is
transformers' `apply_chat_template` of the whole conversation, at the same turns of the same conversations. It
comes after each, since it empties the processor's caches, and the more so the longer the conversation is.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import orjson
from _common import Report, Target, median, ratio, shown
from _workload import LONG_TURNS, TOOLS, Texts, long_result, opening, replies, results, write_tokenizer
from numpy.typing import NDArray
from rich.table import Table

from swe_core.api.engine import Sampled
from swe_core.api.messages import Message
from swe_core.tokens.conversation import Conversation
from swe_core.tokens.load_renderer import load_renderer
from swe_core.tokens.renderer import Renderer

EARLY, AROUND = 5, 2
LIMIT = 2.0
Ids = NDArray[np.int32]


@dataclass
class Times:
    """Milliseconds of processor time at an early turn and at the last one."""

    early: list[float] = field(default_factory=list)
    last: list[float] = field(default_factory=list)

    def of(self, turn: int, turns: int) -> list[float] | None:
        """Where the time of `turn` belongs, counted from 1; None where it belongs nowhere."""
        if turn > turns - 1 - 2 * AROUND:
            return self.last
        return self.early if abs(turn - EARLY) <= AROUND else None


def since(started: float) -> float:
    """Milliseconds of processor time since `started`."""
    return 1000 * (time.process_time() - started)


class Session:
    """One conversation, and what its turns cost."""

    def __init__(self, renderer: Renderer, tokenizer: Any, answers: Iterable[Mapping[str, Any]]) -> None:
        self._conversation = Conversation(renderer)
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._answers = [
            (answer, np.array(answer["ids"], np.int32), np.full(len(answer["ids"]), -0.5, np.float32))
            for answer in answers
        ]

    async def grow(self, turns: int, size: int, seed: int, ours: Times, full: Times) -> int:
        """`turns` turns with tool results of `size` characters; the ids of the last prompt."""
        texts, length, afresh = Texts(seed), 0, []
        messages = opening(texts.piece(size))
        for turn in range(1, turns + 1):
            answer, ids, logprobs = self._answers[turn % len(self._answers)]
            call = {"name": "bash", "arguments": answer["arguments"]}
            reply = {
                "role": "assistant",
                "content": answer["content"],
                "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": call}],
            }
            asked = orjson.loads(orjson.dumps(messages))  # each request is read anew
            started = time.process_time()
            length = await self._turn(asked, ids, logprobs, reply)
            used = since(started)
            kept = ours.of(turn, turns)
            if kept is not None:
                kept.append(used)
            if (kept := full.of(turn, turns)) is not None:
                afresh.append((kept, [*messages]))
            messages += results(reply, texts.piece(size))
        for kept, history in afresh if self._tokenizer.chat_template is not None else ():
            started = time.process_time()
            self._tokenizer.apply_chat_template(history, tools=TOOLS, add_generation_prompt=True)
            kept.append(since(started))
        return length

    async def _turn(
        self, messages: list[Message], ids: Ids, logprobs: NDArray[np.float32], reply: Message
    ) -> int:
        """What the engine does for one turn; the ids of its prompt."""
        prompt = await self._conversation.prepare(messages, TOOLS)
        self._renderer.parse(ids.tolist(), prompt.tail, TOOLS)
        versions = np.zeros(len(ids), np.int32)
        sampled = Sampled(
            prompt.extends, prompt.new_ids, ids, logprobs, versions, prompt.rendered, prompt.cause
        )
        self._conversation.add(prompt, sampled, reply)
        return prompt.length


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7, help="conversations; default: 7")
    parser.add_argument("--turns", type=int, default=LONG_TURNS, help=f"default: {LONG_TURNS}")
    options = parser.parse_args()

    report = Report("turn_cost", options.runs)
    ours, full, length = Times(), Times(), 0
    with tempfile.TemporaryDirectory(prefix="swe-bench-") as folder:
        tokenizer = write_tokenizer(Path(folder))
        renderer = load_renderer(folder, renderer="qwen3")
        answers = replies(tokenizer)
        size = long_result(tokenizer, answers)
        await Session(renderer, tokenizer, answers).grow(EARLY, size, 0, Times(), Times())  # warms the caches
        for number in range(1, options.runs + 1):
            session = Session(renderer, tokenizer, answers)
            length = await session.grow(options.turns, size, number, ours, full)

    figures = {
        name: (median(times.early), median(times.last))
        for name, times in (("swe_core", ours), ("full_render", full))
    }
    for name, (early, last) in figures.items():
        report.medians |= {f"{name}_turn_{EARLY}_ms": early, f"{name}_turn_{options.turns}_ms": last}
        report.ratios[f"{name}_last_to_early"] = ratio(last, early)
    report.ratios["full_render_to_swe_core"] = ratio(figures["full_render"][1], figures["swe_core"][1])
    what = f"turn {options.turns} to turn {EARLY}"
    report.targets = [Target(what, report.ratios["swe_core_last_to_early"], LIMIT, "x")]
    report.notes.append(f"the last prompt has {length} ids")
    if tokenizer.chat_template is None:
        report.notes.append("rendering afresh is skipped: TRL, whose chat template it uses, is not installed")
    table = Table(title=f"One more turn, processor time, medians of {options.runs} conversations")
    table.add_column("")
    for column in (f"turn {EARLY}", f"turn {options.turns}", "ratio"):
        table.add_column(column, justify="right")
    for name, title in (("swe_core", "swe-core"), ("full_render", "rendered and tokenised afresh")):
        early, last = figures[name]
        table.add_row(title, shown(early, "ms"), shown(last, "ms"), shown(ratio(last, early), "x"))
    report.show(table)


if __name__ == "__main__":
    anyio.run(main)
