"""ReplyReader: a growing reply is read in parts, with the same result as if read whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import pytest

from swe_core.tokens.family_renderer import FamilyRenderer
from swe_core.tokens.renderer import Parsed, Tools
from swe_core.tokens.reply_reader import ReplyReader
from swe_core.tokens.template_renderer import TemplateRenderer
from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer

THOUGHT = "<think>\nI look at ünïcode 🎉 first.\n\nThen at the rest.\n</think>\n\n"
CALL = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT = "Some words, line\nby line,\n\n  indented 修复 👩‍💻.\n"


class Counting(FamilyRenderer):
    """Counts the ids that it parses and decodes."""

    parsed = 0
    decoded = 0

    def parse(
        self, completion: Sequence[int], tail: Sequence[int], tools: Tools, *, ended: bool = True
    ) -> Parsed:
        self.parsed += len(completion)
        return super().parse(completion, tail, tools, ended=ended)

    def text(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return super().text(ids)


@cache
def tokenizer() -> object:
    return make_tokenizer(QWEN3_TOKENS)


@pytest.fixture
def renderer() -> Counting:
    return Counting(tokenizer(), "qwen3")  # type: ignore[arg-type]  # cached as object: transformers loads late


def readings(renderer: Counting, text: str, step: int = 1) -> tuple[list[tuple[str, str]], Parsed]:
    """What is read after each `step` ids, and the whole."""
    sampled = renderer.tokenizer.encode(text, add_special_tokens=False)
    whole = renderer.parse(sampled, [], None)
    renderer.parsed = renderer.decoded = 0
    ids: list[int] = []
    reader, seen = ReplyReader(renderer, ids, [], None), []
    while len(ids) < len(sampled):
        ids += sampled[len(ids) : len(ids) + step]
        if reader.may_tell():
            seen.append(reader.read())
    return seen, whole


def test_id_shows_as_soon_as_its_character_is_complete(renderer: Counting) -> None:
    seen, _ = readings(renderer, TEXT)
    ids = renderer.tokenizer.encode(TEXT, add_special_tokens=False)
    for end, (_, content) in enumerate(seen, 1):
        assert content == renderer.parse(ids[:end], [], None, ended=False).content


def test_long_text_is_decoded_once(renderer: Counting) -> None:
    seen, _ = readings(renderer, THOUGHT + TEXT * 100)
    assert renderer.parsed < 500
    assert renderer.decoded < 2 * len(seen)


def test_call_is_read_at_its_end(renderer: Counting) -> None:
    text = "On it.\n" + CALL.replace("ls", "ls " * 1000)
    seen, whole = readings(renderer, text)
    assert seen[-1] == ("", whole.content) == ("", "On it.")
    assert renderer.parsed + renderer.decoded < len(renderer.tokenizer.encode(text)) + 100


def test_undivided_ids_are_parsed_whole_and_rarely(renderer: Counting) -> None:
    renderer.splits = False
    seen, whole = readings(renderer, TEXT * 100)
    assert whole.content.startswith(seen[-1][1])
    assert len(seen[-1][1]) > 0.9 * len(whole.content)
    assert renderer.parsed < 25 * len(seen)


def test_stop_token_is_not_text_of_a_template() -> None:
    """In a template all of a reply is text, special tokens included."""
    renderer = TemplateRenderer(tokenizer(), TEMPLATE)  # type: ignore[arg-type]  # cached as object: transformers loads late
    ids = renderer.render([{"role": "user", "content": "Some words."}], None)
    sampled = ids[ids.index(next(iter(renderer.stop_ids))) - 3 :][:4]
    assert sampled[-1] in renderer.stop_ids
    growing: list[int] = []
    reader = ReplyReader(renderer, growing, [], None)
    for id_ in sampled:
        growing.append(id_)
        seen = reader.read()
    assert seen == ("", renderer.parse(sampled, [], None).content)


def test_tokenizer_that_retracts_characters_does_not_stream() -> None:
    """An incomplete run of bytes replaces the characters before it."""
    from tokenizers import Tokenizer, decoders, models  # these take seconds, in each worker that collects
    from transformers import PreTrainedTokenizerFast

    letters = {f"<0x{byte:02X}>": byte for byte in range(256)}
    fast = Tokenizer(models.BPE({**letters, "a": 256, "<end>": 257}, [], byte_fallback=True))
    fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    fast.add_special_tokens(["<end>"])
    falling = PreTrainedTokenizerFast(tokenizer_object=fast, eos_token="<end>")
    assert falling.decode([0xC3, 0xA9]) == "é"
    assert falling.decode([0xC3, 0xA9, 0xC3]) == "\ufffd" * 3
    assert not TemplateRenderer(falling, "{% for m in messages %}{{ m.content }}<end>{% endfor %}").streams
    assert TemplateRenderer(tokenizer(), TEMPLATE).streams  # type: ignore[arg-type]  # cached as object: transformers loads late
