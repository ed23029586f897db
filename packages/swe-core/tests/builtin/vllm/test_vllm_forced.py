"""Forced turns: a script gives them, the model continues from them, and they are not trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from swe_core.api.engine import EngineSession
from swe_core.api.messages import Message
from swe_core.api.records import Ledger
from swe_core.errors import EngineUnavailable
from swe_core.tokens.chains import build_chains, step_of
from swe_core.tokens.token_log import TokenLog
from swe_testing.provider import Ear
from swe_testing.serving.start import TokenServer

from .conftest import HELLO, TOOLS, Qwen, chat, said

if TYPE_CHECKING:
    from swe_testing.serving.forced import ForcedEngine

COMMAND = "cd /x && sed -i 's/a.b/c+d/' \"f\" | grep '(é)[1]' <<EOF\n$HOME\nEOF"
CALL = f"<tool_call>\n{json.dumps({'name': 'bash', 'arguments': {'command': COMMAND}})}\n</tool_call>"
WHO = EngineSession("r1", "task-1", 0, "agent")


def script(path: Path, content: object) -> Path:
    file = path / "script.json"
    file.write_text(json.dumps(content))
    return file


def forced(url: str, file: Path, **settings: Any) -> ForcedEngine:
    from swe_testing.serving.forced import ForcedConfig, ForcedEngine

    defaults: dict[str, Any] = {"model": "scripted", "renderer": "qwen3", "max_retries": 1}
    return ForcedEngine(ForcedConfig(url=url, script=file, **{**defaults, **settings}))


async def test_broken_forced_reply_is_not_forced_again(qwen: Qwen, tmp_path: Path) -> None:
    file = script(tmp_path, {"*": {"*": ["some longer text to say"]}})
    async with qwen.server("some longer text to say", faults=["abort"]) as server:
        async with forced(server.url, file) as engine:
            request = chat()
            with pytest.raises(EngineUnavailable, match="broke a forced reply off"):
                await engine.complete(request, WHO)
    assert len(server.requests) == 1
    assert request.progress.sampled is not None
    assert request.progress.sampled.dropped == "forced"
    assert server.requests[0].body["structured_outputs"] == {"choice": ["some longer text to say"]}


@pytest.mark.engine
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.slow
async def test_forced_turns_are_context_and_not_trained(
    token_server: TokenServer, tmp_path: Path, stream: bool
) -> None:
    """Forced, free, forced, free: forced text is exact, and context of what follows."""
    file = script(tmp_path, {"task-1": {"*": [CALL, None, "Done: naïve ☃."]}})
    settings: dict[str, Any] = {"model": token_server.model, "max_tokens": 200, "seed": 3}
    book, tokens, replies = TokenLog(), [], []
    messages: list[Message] = [*HELLO]
    async with forced(token_server.url, file, **settings) as engine:
        await engine.check()
        for turn in range(4):
            request = chat(messages, tools=TOOLS)
            reply = await engine.complete(request, WHO, Ear() if stream else None)
            replies.append(reply)
            assert reply.sampled is not None
            tokens.append(book.add(turn, reply.sampled))
            messages += [said(reply), {"role": "user", "content": f"go on {turn}"}]
        renderer = engine._model.renderer if engine._model is not None else None
        [*_, note] = engine.notes()
    [call] = replies[0].message["tool_calls"]
    assert call["function"]["name"] == "bash"
    assert json.loads(call["function"]["arguments"]) == {"command": COMMAND}
    assert replies[2].message["content"] == "Done: naïve ☃."
    assert renderer is not None
    for reply, text in ((replies[0], CALL), (replies[2], "Done: naïve ☃.")):
        assert reply.sampled is not None
        assert renderer.text(reply.sampled.completion_ids.tolist()) == f"{text}<|im_end|>"
    assert str(file) in note
    assert [one.dropped for one in tokens] == ["forced", None, "forced", None]
    assert [one.base for one in tokens] == [None, 0, 1, 2]
    # One row holds all turns and trains two of them; the numbers are those of the turns.
    sizes = [len(one.completion) for one in tokens]
    assert book.ledger() == Ledger(
        sampled=sum(sizes),
        trainable=sizes[1] + sizes[3],
        dropped={"forced": sizes[0] + sizes[2]},
        chains=1,
        rendered={"full": 1, "bridge": 3},
    )
    [chain] = build_chains(step_of(turn, one) for turn, one in enumerate(tokens))
    assert chain.turns == (1, 3)
    assert chain.cause == "start"
    ids, mask = [], []
    for one in tokens:
        ids += [*one.prompt, *one.completion]
        mask += [False] * len(one.prompt) + [one.dropped is None] * len(one.completion)
    assert chain.input_ids.tolist() == ids
    assert chain.completion_mask.tolist() == mask
