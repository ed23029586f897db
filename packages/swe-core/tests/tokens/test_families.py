"""FamilyRenderer: each chat format of `renderers`, with a tokenizer that has its special tokens."""

from __future__ import annotations

from transformers import PreTrainedTokenizerFast

from swe_core.testing.tokenizer import make_tokenizer
from swe_core.tokens.families import FamilyRenderer

SPECIAL = {
    "qwen3": (
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
        "<think>",
        "</think>",
    ),
}


def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    return make_tokenizer(SPECIAL[family], eos_token="<|im_end|>")


def test_one_turn_of_qwen3() -> None:
    tokenizer = tokenizer_of("qwen3")
    renderer = FamilyRenderer(tokenizer, "qwen3")
    prompt = renderer.render([{"role": "user", "content": "hi"}], None)
    reply = '<think>\nWhy?\n</think>\n\nOn it.\n<tool_call>\n{"name": "bash", "arguments": {}}\n</tool_call><|im_end|>'
    completion = tokenizer.encode(reply)
    parsed = renderer.parse(completion, prompt, None)
    assert (parsed.content, parsed.reasoning) == ("On it.", "Why?")
    assert parsed.calls == (("bash", "{}", None),)
    more = renderer.extend(prompt, completion, [{"role": "tool", "content": "ok", "tool_call_id": "1"}], None)
    assert renderer.text(more or []) == (
        "\n<|im_start|>user\n<tool_response>\nok\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
