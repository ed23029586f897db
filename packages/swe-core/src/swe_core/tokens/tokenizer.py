"""load_tokenizer: a model's tokenizer, read without torch where `tokenizer.json` is sufficient."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import transformers
from tokenizers import AddedToken, Tokenizer
from transformers.tokenization_utils_base import PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from swe_core.errors import ConfigError

_NEW = int(transformers.__version__.partition(".")[0]) >= 5
_GENERAL = frozenset({"PreTrainedTokenizerFast", "TokenizersBackend"})
"""Tokenizer classes for which transformers uses the file unchanged."""
_QWEN = frozenset({"Qwen2Tokenizer", "Qwen2TokenizerFast"})
"""Classes for which it uses the vocabulary, and adds the class's own settings."""
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_QWEN_STATES = frozenset({"eos_token", "pad_token", "unk_token"})
"""Tokens that these classes add where the files have none."""
_MISTRAL = frozenset(
    ("ministral", "ministral3", "mistral", "mistral3", "mixtral", "pixtral", "voxtral", "voxtral_realtime")
)
"""Model types with files and classes of their own."""
_CHANGING = frozenset({"add_prefix_space", "auto_map", "fix_mistral_regex", "split_special_tokens"})
"""Settings with which transformers changes the file."""


class FileTokenizer(PreTrainedTokenizerBase):  # type: ignore[misc]  # transformers is not typed here
    """A `tokenizer.json`, with its chat template and special tokens, for renderers.

    The tokenizer classes of transformers import torch where it is installed, which takes seconds and hundreds
    of MB.

    Raises:
        ValueError: The settings beside the file name tokens that it lacks, or has otherwise.
    """

    vocab_files_names: ClassVar = {"tokenizer_file": "tokenizer.json"}
    is_fast = True

    def __init__(
        self, *, tokenizer_file: str, added_tokens_decoder: dict[int, AddedToken], **kwargs: Any
    ) -> None:
        self.backend_tokenizer = Tokenizer.from_file(tokenizer_file)
        self.backend_tokenizer.no_truncation()
        self.backend_tokenizer.no_padding()
        super().__init__(**kwargs)
        own = self.added_tokens_decoder
        others = [
            str(token) for id_, token in added_tokens_decoder.items() if repr(own.get(id_)) != repr(token)
        ]
        special = {str(token) for token in own.values() if token.special}
        others += [token for token in self.all_special_tokens if token not in special]
        if others:
            raise ValueError(f"{tokenizer_file!r} does not have these tokens as they are stated: {others}")

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    @property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        return dict(self.backend_tokenizer.get_added_tokens_decoder())

    def get_vocab(self) -> dict[str, int]:
        return dict(self.backend_tokenizer.get_vocab())

    def get_added_vocab(self) -> dict[str, int]:
        return {str(token): id_ for id_, token in sorted(self.added_tokens_decoder.items())}

    def convert_tokens_to_ids(self, tokens: str | Sequence[str]) -> Any:
        if not isinstance(tokens, str):
            return [self.convert_tokens_to_ids(token) for token in tokens]
        id_ = self.backend_tokenizer.token_to_id(tokens)
        return self.unk_token_id if id_ is None else id_

    def _encode_plus(
        self, text: str, *, add_special_tokens: bool = True, return_offsets_mapping: bool = False, **_: Any
    ) -> dict[str, Any]:
        encoding = self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens)
        places = {"offset_mapping": encoding.offsets} if return_offsets_mapping else {}
        return {"input_ids": encoding.ids, **places}

    def _decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False, **_: Any) -> str:
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return str(self.backend_tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a directory or of a model on the Hub.

    Raises:
        ConfigError: It cannot be loaded.
    """
    try:
        found = _from_file(name) if _NEW else None  # transformers 4 always imports torch
        return _from_transformers(name) if found is None else found
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the tokenizer {name!r} cannot be loaded: pass a directory that holds the model's tokenizer "
            f"files, or its name on the Hugging Face Hub ({' '.join(str(error).split())})"
        ) from error


def _from_transformers(name: str) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    # Cleaned-up spaces would change text that was streamed already, as in "do" + " n't".
    return AutoTokenizer.from_pretrained(name, clean_up_tokenization_spaces=False)


def _from_file(name: str) -> FileTokenizer | None:
    """Return the tokenizer of `tokenizer.json`; None where transformers may change it."""
    config, model_type = (
        read_json(name, "tokenizer_config.json"),
        read_json(name, "config.json").get("model_type"),
    )
    kind = config.get("tokenizer_class")
    if kind not in _GENERAL | _QWEN or model_type in _MISTRAL or any(map(config.get, _CHANGING)):
        return None
    if _path(name, "tokenizer.json") is None:
        return None
    try:
        found: FileTokenizer = FileTokenizer.from_pretrained(name)
    except ValueError:
        return None
    if kind in _GENERAL and model_type != "qwen2":  # transformers uses these classes in any case
        return found
    return found if config.keys() >= _QWEN_STATES and _is_qwen(found.backend_tokenizer) else None


def _is_qwen(backend: Tokenizer) -> bool:
    """Return whether the settings around the vocabulary are those of Qwen's class."""
    parts = [backend.normalizer, backend.pre_tokenizer, backend.decoder]
    if None in parts:
        return False
    normalizer, pieces, decoder = (json.loads(part.__getstate__()) for part in parts)
    for piece in pieces.get("pretokenizers", ()):
        piece.pop("trim_offsets", None)  # no effect here: only a post-processor trims
    split = {"type": "Split", "pattern": {"Regex": _QWEN_SPLIT}, "behavior": "Isolated", "invert": False}
    to_bytes = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    expected = {"type": "Sequence", "pretokenizers": [split, to_bytes]}
    return (normalizer["type"], pieces, decoder["type"]) == ("NFC", expected, "ByteLevel")


def read_json(name: str, file: str) -> dict[str, Any]:
    """Read a JSON file of the model; empty if it is missing."""
    path = _path(name, file)
    return json.loads(path.read_text(encoding="utf-8")) if path is not None else {}


def _path(name: str, file: str) -> Path | None:
    found = cached_file(
        name,
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(found) if found is not None else None
