"""token_table: the joined bytes of a text's ids are the text."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEXTS = [
    "plain words, and two  blanks",
    "a line\nand a tab\t\r\n\n    four\x00\x7f\xad",
    "Zoë naïve café — “quoted”… ▁ Ġ Ċ <0x0A>",
    "漢字かな交じり文, 한국어, العربية, हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 🇪🇺 👍🏽",
    "e\u0301 o\u0308 \u0928\u0940 \u200d\ufeff\U0010ffff",
    "def f(x):\n\treturn {'a': x ** 2}  # ε",
]
SPECIAL = ("<|im_start|>", "<|im_end|>")


def byte_level() -> PreTrainedTokenizerBase:
    """As Qwen, Llama 3 and GPT-2, but without a normalizer."""
    made = make_tokenizer(QWEN3_TOKENS)
    made.add_tokens(["  ", "漢"])  # no special tokens, one of them blank, and none the sign of a byte
    return made


def sentencepiece(prefix: bool = False) -> PreTrainedTokenizerBase:
    """As Gemma: pieces with a marked blank, and bytes for what no piece has; with `prefix` as Llama 2, which
    puts a blank before the text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz,.—é漢", "▁a", "an", "▁an", "▁▁"]
    merges = [("▁", "a"), ("a", "n"), ("▁a", "n"), ("▁", "▁")]
    model = models.BPE({piece: id_ for id_, piece in enumerate(pieces)}, merges, byte_fallback=True)
    made = Tokenizer(model)
    before = [normalizers.Prepend("▁")] if prefix else []
    made.normalizer = normalizers.Sequence([*before, normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    made.add_tokens([AddedToken("▁▁▁▁", normalized=True)])
    return PreTrainedTokenizerFast(tokenizer_object=made, clean_up_tokenization_spaces=False)


def from_file() -> PreTrainedTokenizerBase:
    """Qwen's as the engine loads it, without torch."""
    from swe_core.tokens.tokenizer import FileTokenizer, load_tokenizer

    directory = Path(mkdtemp())
    made: Any = make_tokenizer(QWEN3_TOKENS, eos_token="<|im_end|>")
    made.save_pretrained(directory)
    loaded = load_tokenizer(str(directory))
    assert isinstance(loaded, FileTokenizer)
    assert loaded.get_vocab() == made.get_vocab()
    return loaded


class InPython:
    """A tokenizer without a backend whose vocabulary has the alphabet of byte-level BPE, as Kimi's."""

    is_fast = False
    name_or_path = "in/python"

    def __init__(self) -> None:
        self._made = make_tokenizer(QWEN3_TOKENS)
        self.added_tokens_decoder = self._made.added_tokens_decoder
        self.get_vocab, self.encode = self._made.get_vocab, self._made.encode


MADE = {"byte level": byte_level, "sentencepiece": sentencepiece, "file": from_file, "python": InPython}


@cache
def tokenizer(kind: str) -> Any:
    return MADE[kind]()


def table_of(made: Any) -> Any:
    from swe_core.tokens.vocabulary import token_table

    return token_table(made)


@cache
def table(kind: str) -> Any:
    return table_of(tokenizer(kind))


def joined(tokens: Sequence[bytes | None], ids: Iterable[int]) -> bytes:
    return b"".join(tokens[id_] or b"" for id_ in ids)


def kept(kind: str, text: str) -> bytes:
    """What the tokenizer keeps of a text: sentencepiece takes its mark for a blank."""
    return (text.replace("▁", " ") if kind == "sentencepiece" else text).encode()


@pytest.mark.parametrize("kind", MADE)
@given(st.text() | st.lists(st.sampled_from([*QWEN3_TOKENS, *SPECIAL, "é", " ", "\n", "a"])).map("".join))
@example(" ".join(TEXTS))
def test_bytes_of_any_text_are_the_text(kind: str, text: str) -> None:
    ids = tokenizer(kind).encode(text, add_special_tokens=False)
    assert joined(table(kind).tokens, ids) == kept(kind, text)


def test_blank_that_the_tokenizer_adds_is_shown() -> None:
    made = sentencepiece(prefix=True)
    assert joined(table_of(made).tokens, made.encode("an an漢")) == " an an漢".encode()


def test_normalised_text_is_shown_as_the_model_reads_it() -> None:
    from tokenizers import normalizers

    made, text = make_tokenizer(), "e\u0301 and n\u0303"
    made.backend_tokenizer.normalizer = normalizers.NFC()
    assert joined(table_of(made).tokens, made.encode(text)) == unicodedata.normalize("NFC", text).encode()


def test_added_tokens_have_names_unless_they_are_blank() -> None:
    names = table("byte level").special
    ids = {name: id_ for id_, name in names.items()}
    assert set(names.values()) == {*QWEN3_TOKENS, "漢"}
    assert table("byte level").tokens[ids["<think>"]] == b"<think>"
    assert set(table("sentencepiece").special.values()) == set(SPECIAL)


def test_id_without_a_token_has_no_bytes(tmp_path: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    made = make_tokenizer()
    file = tmp_path / "tokenizer.json"
    stored = json.loads(made.backend_tokenizer.to_str())
    last = max(stored["model"]["vocab"].values())
    stored["model"]["vocab"]["later"] = last + 3
    file.write_text(json.dumps(stored))
    tokens = table_of(PreTrainedTokenizerFast(tokenizer_file=str(file))).tokens
    assert tokens[last + 1 :] == [None, None, b"later"]
