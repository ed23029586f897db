"""What the proxies are measured with: a tokenizer, texts, replies of the model, and requests like an agent's.

All of it is made from the standard library's sources, the same in every run of one Python version.
"""

from __future__ import annotations

import json
import random
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

MODEL = "policy"
MAX_MODEL_LEN = 131_072
REPLIES = 50
LONG_REPLY, PACED_REPLY = 4_000, 50
"""Ids of text of the long replies and of those that come at a pace; a call follows."""
LONG_TURNS, LONG_TOKENS = 100, 74_000
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run a command in the repository.",
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string"}},
                "required": ["command"],
            },
        },
    }
]
_SYSTEM = "You are a coding agent. Fix the bug, and run the tests before you end."
_VOCABULARY = 8_000
_TRAINED_ON = 4_000_000
_FRAME = 15
"""Ids that a chat template puts around a reply and a tool result."""
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")


@cache
def corpus() -> str:
    """Sources of the standard library, one after the other."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


class Texts:
    """Pieces of the corpus, never the same one twice in a row."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def piece(self, characters: int) -> str:
        """`characters` characters from anywhere in the corpus."""
        start = self._random.randrange(len(corpus()) - characters)
        return corpus()[start : start + characters]


def write_tokenizer(folder: Path) -> Any:
    """Write a byte-level BPE tokenizer with Qwen3's special tokens, trained on the corpus, into `folder`, as
    `transformers` reads it; 2 KB of the corpus are about 510 ids. It has TRL's chat template for training
    Qwen3 where TRL is installed, else none.

    Returns:
        The tokenizer, a `PreTrainedTokenizerFast`.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([corpus()[:_TRAINED_ON]], trainer)
    bpe.add_special_tokens(list(_SPECIAL))
    bpe.add_tokens(list(_MARKERS))
    fast = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    try:
        template = files("trl") / "chat_templates" / "qwen3_training.jinja"
    except ModuleNotFoundError:
        pass
    else:
        fast.chat_template = template.read_text(encoding="utf-8")
    fast.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def characters_of(tokenizer: Any, ids: int) -> int:
    """How many characters of the corpus are about `ids` ids."""
    texts = Texts(seed=2)
    sample = "".join(texts.piece(2000) for _ in range(100))
    return round(ids * len(sample) / len(tokenizer.encode(sample)))


def replies(tokenizer: Any, count: int = REPLIES, length: int | None = None) -> list[dict[str, Any]]:
    """What the mock engine answers, in turns: a text and a command each, as message and as tokens.

    Args:
        length: Ids of the text; None makes it 60 characters.
    """
    texts, made = Texts(seed=1), []
    for number in range(count):
        arguments = json.dumps({"command": f"sed -n {number},80p src/module_{number}.py | head -c 2048"})
        if length is None:
            words = " ".join(texts.piece(60).split())
        else:
            piece = texts.piece(10 * length).encode("ascii", "ignore")  # so that each id is whole characters
            words = tokenizer.decode(tokenizer.encode(piece.decode())[:length]).strip()
        call = f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'
        text = f"{words}\n{call}<|im_end|>"
        reply = {"content": words, "arguments": arguments, "text": text}
        for key, part in (("", text), ("content_", words), ("arguments_", arguments)):
            ids = tokenizer.encode(part, add_special_tokens=False)
            reply |= {f"{key}ids": ids, f"{key}pieces": [tokenizer.decode([token]) for token in ids]}
        made.append(reply)
    return made


def longer_replies(tokenizer: Any) -> dict[str, list[dict[str, Any]]]:
    """Other replies, by name: `long` ones, and those that are `paced`."""
    return {
        "long": replies(tokenizer, 5, LONG_REPLY),
        "paced": replies(tokenizer, 8, PACED_REPLY),
    }


def long_result(tokenizer: Any, answers: Sequence[Mapping[str, Any]]) -> int:
    """Characters of each tool result of a session that grows to `LONG_TOKENS` in `LONG_TURNS`."""
    replied = sum(len(answer["ids"]) for answer in answers) / len(answers)
    return characters_of(tokenizer, round(LONG_TOKENS / LONG_TURNS - replied - _FRAME))


def request(messages: Sequence[Mapping[str, Any]], streamed: bool = False) -> dict[str, Any]:
    """A chat-completions body."""
    body = {"model": MODEL, "messages": messages, "max_tokens": 8192, "tools": TOOLS}
    return {**body, "stream": True, "stream_options": {"include_usage": True}} if streamed else body


def unrelated(count: int, size: int, seed: int, streamed: bool = False) -> Iterator[bytes]:
    """Bodies of about `size` bytes that have nothing but the system prompt in common."""
    texts = Texts(seed)
    left = size - len(json.dumps(request(opening(""), streamed)))
    for _ in range(count):
        yield json.dumps(request(opening(texts.piece(left)), streamed)).encode()


def opening(task: str) -> list[dict[str, Any]]:
    """The first messages of a conversation."""
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": task}]


def results(reply: Mapping[str, Any], text: str) -> list[dict[str, Any]]:
    """What an agent appends to its history: the reply as it came, and the results of its calls."""
    answers = [
        {"role": "tool", "tool_call_id": call["id"], "content": text}
        for call in reply.get("tool_calls") or ()
    ]
    return [dict(reply), *answers]
