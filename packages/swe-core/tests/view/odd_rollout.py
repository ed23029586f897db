"""A rollout with what is rare: a branch, a sub-agent, a dropped turn that others continue, a lost logprob."""

from __future__ import annotations

from typing import Any

import numpy as np

from swe_core.api.engine import ForkCause, Sampled
from swe_core.api.records import Rollout, Turn
from swe_core.api.request_diff import RequestDiff
from swe_core.rollout.run_directory import RunDirectory
from swe_core.tokens.token_log import TokenLog
from swe_testing.records import make_rollout
from swe_testing.sample_runs import START, WordTokenizer

NAME = "odd-g8-0"
LONG = (
    2
    * "Fix the parser of offsets, read the failing test, run it, and change no other file of the repository. "
)


def add_odd(run: RunDirectory, words: WordTokenizer, **fields: Any) -> Rollout:
    """Finish the rollout. Rows: turns 0, 1, 4, 5; a branch, turn 2; a sub-agent, turn 3; a fork, turn 6."""
    turns: list[Turn] = []
    log, diff = TokenLog(), RequestDiff()

    def call(
        messages: list[dict[str, Any]],
        reply: str,
        before: Sampled | None = None,
        *,
        cause: ForkCause | None = None,
        dropped: str | None = None,
        missing: tuple[int, ...] = (),
        change: tuple[str, str] = ("", ""),
    ) -> Sampled:
        """Answer a request; its prompt is whole if there is a `cause`.

        Args:
            missing: Places of the reply without a logprob.
            change: Text of the prompt that is rendered in another way.
        """
        new = messages if before is None or cause else messages[-1:]
        text = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in new)
        text = text.replace(*change) if change[0] else text
        prompt = words.encode(f"{text}<|im_start|>assistant\n")
        ids = words.encode(f"{reply}<|im_end|>")
        logprobs = np.linspace(-0.1, -3, len(ids), dtype=np.float32)
        logprobs[list(missing)] = np.nan
        index = len(turns)
        sampled = Sampled(
            None if cause else before,
            np.array(prompt, np.int32),
            np.array(ids, np.int32),
            logprobs,
            np.full(len(ids), index // 3, np.int32),
            rendered="full" if before is None or cause else "bridge",
            cause=cause or (None if before is not None else "start"),
        )
        tokens = log.add(index, sampled, dropped)
        known = {"started_at": START, "seconds": 1.0, "reply": {"role": "assistant", "content": reply}}
        body = {"messages": messages}
        turns.append(Turn.from_request(diff, index, body, tokens=tokens, **known))
        return sampled

    system, task = {"role": "system", "content": "You are an agent."}, {"role": "user", "content": LONG}

    def said(text: str) -> dict[str, Any]:
        return {"role": "assistant", "content": text}

    def result(text: str) -> dict[str, Any]:
        return {"role": "tool", "content": text}

    begin = [system, task]
    first = call(begin, "I read the test.")
    seen = [*begin, said("I read the test."), result("one test fails")]
    second = call(seen, "Its offset is wrong.", first)
    call(seen, "It is the parser.", first)
    call([{"role": "user", "content": "Summarise the test for me."}], "It parses a time.")
    more = [*seen, said("Its offset is wrong."), result("offset = 120")]
    third = call(more, "So I change it.", second, dropped="forced")
    last = [*more, said("So I change it."), result("changed")]
    call(last, "Done now.", third, missing=(1,))
    ends = [*last, said("Done now."), {"role": "user", "content": "Are you sure?"}]
    call(ends, "Yes, it passes.", third, cause="template", change=("one test fails", "one  test fails"))
    folder = run.folder(NAME)
    for turn in turns:
        folder.add_turn(turn)
    folder.close()
    record = make_rollout("odd", id=NAME, ledger=log.ledger(), turns=len(turns), **fields)
    run.append(record)
    words.write(run.path)
    return record
