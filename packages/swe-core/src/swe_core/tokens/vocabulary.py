"""token_table: the bytes that each token of a tokenizer stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from swe_core.api.engine import TokenTable
from swe_core.tokens.tokenizer import read_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHOWN = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
"""Bytes that byte-level BPE writes as the character of that number."""
_HIDDEN = sorted(set(range(256)) - set(_SHOWN))
_BYTE_OF = {byte: byte for byte in _SHOWN} | {256 + place: byte for place, byte in enumerate(_HIDDEN)}
"""Character of byte-level BPE → byte, as GPT-2 defined it: the other bytes are the characters from 256 on."""
_BLANK = "▁"
"""How sentencepiece writes a blank."""
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
"""How sentencepiece writes a byte that is no whole character."""


def token_table(tokenizer: PreTrainedTokenizerBase) -> TokenTable:
    """Return the tokens of a tokenizer.

    The bytes of a text's ids, joined, are the text in UTF-8, as far as the tokenizer keeps it: some normalise
    characters (NFC), and some put a blank before the text.
    """
    vocabulary, added = tokenizer.get_vocab(), tokenizer.added_tokens_decoder
    bytes_of = _reader(tokenizer, vocabulary)
    found = {id_: bytes_of(token) for token, id_ in vocabulary.items() if id_ not in added}
    for id_, token in added.items():  # a text contains them as they are, but sentencepiece's runs of blanks
        marked = bytes_of is _of_piece and not token.special
        found[id_] = (str(token).replace(_BLANK, " ") if marked else str(token)).encode()
    return TokenTable(
        str(tokenizer.name_or_path),
        [found.get(id_) for id_ in range(max(found, default=-1) + 1)],
        {id_: str(token) for id_, token in sorted(added.items()) if found[id_].strip()},
    )


def model_size(tokenizer: PreTrainedTokenizerBase, names: Collection[str]) -> int:
    """Return how many ids the model of a tokenizer has. Many have rows for more ids than the tokenizer.

    Args:
        names: Directories, or names on the Hub, that may have the model's `config.json`.
    """
    configs = [read_json(name, "config.json") for name in names]
    texts = [config.get("text_config") or {} for config in configs]
    rows = [size for one in configs + texts if isinstance(size := one.get("vocab_size"), int)]
    ids = (*tokenizer.get_vocab().values(), *tokenizer.added_tokens_decoder)
    return max(*rows, 1 + max(ids, default=-1), 0)


def _reader(tokenizer: PreTrainedTokenizerBase, vocabulary: Collection[str]) -> Callable[[str], bytes]:
    """Return what turns a token of the vocabulary into bytes."""
    decoder = str(tokenizer.backend_tokenizer.decoder) if tokenizer.is_fast else ""
    if "ByteLevel" in decoder:
        return _of_byte_level
    if any(part in decoder for part in ("ByteFallback", "Metaspace", _BLANK)) or _BLANK in vocabulary:
        return _of_piece
    if all(chr(code) in vocabulary for code in _BYTE_OF):  # written in Python, such as a tiktoken's
        return _of_byte_level
    return str.encode


def _of_byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[ord(character)] for character in token])
    except KeyError:  # not written in that alphabet
        return token.encode()


def _of_piece(token: str) -> bytes:
    byte = _BYTE.fullmatch(token)
    return token.replace(_BLANK, " ").encode() if byte is None else bytes.fromhex(byte[1])
