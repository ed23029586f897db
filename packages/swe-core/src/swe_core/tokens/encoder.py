"""Encoder: a tokenizer with the interface that the package `renderers` needs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from swe_core.tokens.counting import counted
from swe_core.tokens.guard import Guard

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import BatchEncoding, PreTrainedTokenizerBase

_SHORT = 64
"""Characters of texts whose ids are cached: headers and line ends, encoded many times a turn."""
_PLACED = frozenset({"deepseek-v4", "hy3"})
"""Formats that decode single ids to find what a tokenizer lacks, which costs more."""


class Encoder:
    """`renderers.Tokenizer` without offsets (`renderers.OffsetTokenizer`).

    Formats use offsets to tell content from frame. This package does not, and offsets take longer than the
    ids.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, guard: Guard) -> None:
        self._tokenizer = tokenizer
        self._guard = guard
        self._backend: Tokenizer | None = tokenizer.backend_tokenizer if tokenizer.is_fast else None
        self._kept = lru_cache(maxsize=256)(self._encode)

    def __getattr__(self, name: str) -> Any:
        if name == "__call__":  # its presence means offsets
            raise AttributeError(name)
        return getattr(self._tokenizer, name)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`."""
        if len(text) <= _SHORT:
            return list(self._kept(text, add_special_tokens))
        return counted(text, lambda piece: self._encode(piece, add_special_tokens), len)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if (guarded := self._guard.ids(text)) is not None:
            return guarded
        if self._backend is None:
            return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = encoding.ids
        return ids


class _Placing(Encoder):
    """An encoder with offsets."""

    def __call__(self, text: str, **options: Any) -> BatchEncoding | dict[str, Any]:
        if (guarded := self._guard.ids(text)) is not None:  # offsets tell only which message an id is of
            return {"input_ids": guarded, "offset_mapping": [(0, 0)] * len(guarded)}
        return counted(text, lambda piece: self._tokenizer(piece, **options), lambda of: len(of["input_ids"]))


def encoder_for(tokenizer: PreTrainedTokenizerBase, family: str, guard: Guard) -> Encoder:
    """Return what the format `family` encodes with."""
    return (_Placing if family in _PLACED and tokenizer.is_fast else Encoder)(tokenizer, guard)


def decodes_in_parts(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether ids can be decoded in parts, as with byte-level tokenizers.

    Tokenizers that write a blank as part of the next word lose it where a part begins with it.
    """
    ids = tokenizer.encode("Some words, and a blank before each one.", add_special_tokens=False)
    parts = [tokenizer.decode([id_], skip_special_tokens=False) for id_ in ids]
    return "".join(map(str, parts)) == str(tokenizer.decode(ids, skip_special_tokens=False))


def takes_characters_back(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether more ids may change a decoded character: decoders with byte fallback replace a whole run
    of bytes where its end is no character."""
    if not tokenizer.is_fast:
        return True
    return "ByteFallback" in str(tokenizer.backend_tokenizer.decoder)
