"""A tokenizer with any special tokens, made without a download."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from swe_core.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

QWEN3_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
)
"""The special tokens of Qwen3's chat template."""
_VOCABULARY = 1500
_SOURCES = (
    "abc",
    "argparse",
    "ast",
    "asyncio/tasks",
    "json/decoder",
    "pathlib",
    "pydoc",
    "textwrap",
    "typing",
)


def make_tokenizer(
    special: Iterable[str] = (), *, chat_template: str | None = None, **attributes: str
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE on the standard library's source; each of `special` is one token.

    Args:
        special: Special tokens; their ids follow those of the BPE in this order.
        attributes: Such as `eos_token`; must be among `special`.

    Raises:
        ImportError: transformers is not installed.
    """
    from tokenizers import AddedToken, Tokenizer
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer.from_str(_trained())
    bpe.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, chat_template=chat_template, clean_up_tokenization_spaces=False, **attributes
    )


@cache
def family_tokens(family: str) -> tuple[str, ...]:
    """Return the special tokens that a family of the package `renderers` needs.

    These are "<|endoftext|>", "<think>", "</think>" and the tokens that the family reports as missing.

    Raises:
        ConfigError: The family needs something else, such as a download.
    """
    from swe_core.tokens.family_renderer import FamilyRenderer

    special = ["<|endoftext|>", "<think>", "</think>"]
    while True:
        try:
            FamilyRenderer(make_tokenizer(special), family)
        except ConfigError as error:
            missing = re.search(r"oken(?: for)? '([^']+)'", str(error))
            if missing is None or missing[1] in special:
                raise
            special.append(missing[1])
        else:
            return tuple(special)


@cache
def _trained() -> str:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    # As large models split text: words, single digits, runs of marks with the line's end.
    words = Regex(r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    split = pre_tokenizers.Split(words, "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    library = Path(sysconfig.get_path("stdlib"))
    bpe.train([str(library / f"{name}.py") for name in _SOURCES], trainer)
    return str(bpe.to_str())
