"""Encoder: a tokenizer as the package `renderers` needs it, and no more than that."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from swe_core.tokens.counting import counted

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import BatchEncoding, PreTrainedTokenizerBase

_SHORT = 64
"""Characters of texts whose ids are kept: headers and line ends, which formats encode many times a turn."""
_PLACED = frozenset({"deepseek-v4", "hy3"})
"""Formats that find out by decoding id after id what a tokenizer does not tell, which costs more."""


class Encoder:
    """`renderers.Tokenizer` without the places of ids in their text (`renderers.OffsetTokenizer`).

    Formats ask for places to mark which ids are content and which are frame; nobody here reads that, and it
    takes longer than the ids themselves. The ids are the same.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._backend: Tokenizer = tokenizer.backend_tokenizer
        self._kept = lru_cache(maxsize=256)(self._encode)

    def __getattr__(self, name: str) -> Any:
        if name == "__call__":  # what says that places can be asked for
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`."""
        if len(text) <= _SHORT:
            return list(self._kept(text, add_special_tokens))
        return counted(text, lambda piece: self._encode(piece, add_special_tokens), len)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids


class _Placing(Encoder):
    """An encoder that tells the places too."""

    def __call__(self, text: str, **options: Any) -> BatchEncoding:
        return counted(text, lambda piece: self._tokenizer(piece, **options), lambda of: len(of["input_ids"]))


def encoder_for(tokenizer: PreTrainedTokenizerBase, family: str) -> Encoder | PreTrainedTokenizerBase:
    """What the format `family` should encode with: an `Encoder`, or the tokenizer itself where it is not one
    of the package `tokenizers`."""
    if not tokenizer.is_fast:
        return tokenizer
    return _Placing(tokenizer) if family in _PLACED else Encoder(tokenizer)


def decodes_in_parts(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether ids can be decoded in parts, as with byte-level tokenizers. Those that write a blank as part of
    the next word leave it out where a part begins with it."""
    ids = tokenizer.encode("Some words, and a blank before each one.", add_special_tokens=False)
    parts = [tokenizer.decode([id_], skip_special_tokens=False) for id_ in ids]
    return "".join(map(str, parts)) == str(tokenizer.decode(ids, skip_special_tokens=False))


def takes_characters_back(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a character that was decoded may be none once more ids follow: decoders that fall back to bytes
    replace a whole run of bytes where its end is no character."""
    if not tokenizer.is_fast:
        return True
    return "ByteFallback" in str(tokenizer.backend_tokenizer.decoder)
