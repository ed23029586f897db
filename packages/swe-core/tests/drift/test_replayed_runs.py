"""A run with exact tokens, replayed: the rows of our prompts are those that the run trains."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.messages import Message
from swe_core.api.records import Turn
from swe_core.api.request_diff import RequestDiff
from swe_core.drift.measure import Replay
from swe_core.drift.readers import read
from swe_core.tokens.conversation import Conversation
from swe_core.tokens.probe_messages import TOOLS, reply, result, user
from swe_core.tokens.token_log import TokenLog
from swe_testing.records import make_rollout, make_run, make_turn

from ..token_turns import make_sampled
from .test_measure import qwen3

pytest.importorskip("trl", reason="the chat templates are in TRL")

CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'


class Recorder:
    """Records calls as the gate and the engine `vllm` do."""

    def __init__(self) -> None:
        self.renderer, self.template = qwen3()
        self.turns: list[Turn] = []
        self._conversation = Conversation(self.renderer)
        self._log, self._diff = TokenLog(), RequestDiff()

    def ask(self, messages: list[Message], ids: list[int], dropped: str | None) -> Message:
        """Record a call, and return its reply."""
        place = self._conversation.find(messages, TOOLS)
        prompt = self._conversation.extend(place) or self._conversation.render(place)
        sampled = make_sampled(
            prompt.new_ids, ids, prompt.extends, rendered=prompt.rendered, cause=prompt.cause
        )
        parsed = self.renderer.parse(ids, prompt.tail, TOOLS)
        index = len(self.turns)
        calls = [(f"call{index:05}", name, arguments) for name, arguments, _ in parsed.calls]
        message = reply(parsed.content, parsed.reasoning, *calls)
        self._conversation.add(prompt, sampled, message)
        added = self._diff.added(index, {"messages": messages, "tools": TOOLS})._asdict()
        tokens = self._log.add(index, sampled, dropped)
        ended = self.renderer.stop_ids.isdisjoint(ids[-1:])
        known = {"tokens": tokens, "finish_reason": "length" if ended else "stop"}
        self.turns.append(make_turn(index, **added, reply=message, **known))
        return message


calls = st.fixed_dictionaries({
    "then": st.sampled_from(["on", "on", "on", "back", "new", "edited"]),
    "text": st.sampled_from(["I look.", "Done.", "", "  x\n"]),
    "thought": st.sampled_from(["", "Where?"]),
    "call": st.booleans(),
    "letters": st.booleans(),  # sampled letter by letter, as no tokenizer cuts the text
    "cut": st.integers(0, 3),
    "dropped": st.sampled_from([None, None, None, "title"]),
})  # fmt: skip


@given(st.lists(calls, min_size=1, max_size=8))
@settings(max_examples=60)
def test_rows_of_a_replayed_run_are_those_that_it_trains(steps: list[dict[str, Any]]) -> None:
    recorder = Recorder()
    histories: list[list[Message]] = [[user("Fix it.")]]
    for number, step in enumerate(steps):
        match step["then"]:
            case "on":
                history = histories[-1]
            case "back":
                history = histories[number // 2]
            case "edited":
                history = [*histories[-1][:-1], user(f"Rather {number}.")]
            case _:
                history = [user(f"Task {number}.")]
        think = f"<think>\n{step['thought']}\n</think>\n\n" if step["thought"] else ""
        text = think + step["text"] + (CALL if step["call"] else "")
        parts = list(text) if step["letters"] and not (think or step["call"]) else [text]
        ids = [id_ for part in parts for id_ in recorder.template.ids(part)]
        stop = recorder.template.ids("<|im_end|>")
        ids = ids[: step["cut"]] if step["cut"] and len(ids) > step["cut"] else [*ids, *stop]
        message = recorder.ask(history, ids, step["dropped"])
        answers = [result(call["id"], "one line") for call in message.get("tool_calls", ())]
        histories.append([*history, message, *(answers or [user("Go on.")])])
    with tempfile.TemporaryDirectory() as scratch:
        run = make_run(Path(scratch, "run"), 1)
        folder = run.folder("t-0")
        for turn in recorder.turns:
            folder.add_turn(turn)
        folder.close()
        run.append(make_rollout("t", 0))
        trained = run.chains("t-0")
        (recorded,) = read(run.path)
    replay = Replay(recorder.renderer, recorder.template)
    for index, call in enumerate(recorded.turns):
        replay.add(index, call)
    assert replay.exact == len(steps)
    rows = replay.chains.build()
    assert [(row.turns, row.cause) for row in rows] == [(row.turns, row.cause) for row in trained]
    for row, same in zip(rows, trained, strict=True):
        assert np.array_equal(row.input_ids, same.input_ids)
        assert np.array_equal(row.completion_mask, same.completion_mask)
    assert replay.ours.rows == len(trained)
    assert replay.lost(rows) <= sum(int(row.completion_mask.sum()) for row in rows)
