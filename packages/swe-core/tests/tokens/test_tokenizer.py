"""load_tokenizer: the ids that transformers gives, without what transformers imports."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.tokens.probe_messages import PROBES
from swe_testing.tokenizer import family_tokens, make_tokenizer

from .test_load_renderer import shipped

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL = family_tokens("qwen3.6")
CLASSES = ("TokenizersBackend", "Qwen2Tokenizer")
NO_TORCH = """
import sys
from swe_core.builtin.vllm import engine
from swe_core.tokens.load_renderer import load_renderer
family = load_renderer(sys.argv[1])
template = load_renderer(sys.argv[2], renderer="template", tool_parser="qwen3")
print(family.name, template.name, sorted({"torch", "trl"} & sys.modules.keys()))
"""


def saved(directory: Path, kind: str = "TokenizersBackend", source: str | None = None) -> Path:
    """A model's directory, with a tokenizer of that class."""
    made: Any = make_tokenizer(SPECIAL, chat_template=source, eos_token="<|im_end|>")
    if kind == "Qwen2Tokenizer":
        from transformers import Qwen2Tokenizer

        bpe = json.loads(made.backend_tokenizer.to_str())["model"]
        made = Qwen2Tokenizer(
            bpe["vocab"], list(map(tuple, bpe["merges"])), chat_template=source, eos_token="<|im_end|>"
        )
        made.add_tokens(list(SPECIAL), special_tokens=True)
    made.save_pretrained(directory)
    return directory


@cache
def both(kind: str) -> tuple[PreTrainedTokenizerBase, PreTrainedTokenizerBase]:
    """Ours and that of transformers, of the same files."""
    from transformers import AutoTokenizer

    from swe_core.tokens.tokenizer import FileTokenizer, load_tokenizer

    directory = str(saved(Path(mkdtemp()), kind, shipped("qwen3_6")))
    ours = load_tokenizer(directory)
    assert isinstance(ours, FileTokenizer)
    return ours, AutoTokenizer.from_pretrained(directory)


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed: nobody could import it")
@pytest.mark.slow
def test_renderer_is_loaded_without_torch(tmp_path: Path) -> None:
    family = saved(tmp_path / "family", source=shipped("qwen3_6"))
    proven = saved(tmp_path / "template", source=shipped("qwen3_6_training"))
    command = [sys.executable, "-c", NO_TORCH, str(family), str(proven)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "renderers/qwen3.6 template (proven) []\n", done.stderr


@pytest.mark.parametrize("kind", CLASSES)
@settings(deadline=None)  # the first one saves and loads the tokenizers
@given(text=st.lists(st.text() | st.sampled_from(SPECIAL)).map("".join), special=st.booleans())
def test_any_text_has_the_ids_and_places_that_transformers_gives(kind: str, text: str, special: bool) -> None:
    ours, theirs = both(kind)
    expected = theirs(text, add_special_tokens=special, return_offsets_mapping=True)
    found = ours(text, add_special_tokens=special, return_offsets_mapping=True)
    assert found["input_ids"] == expected["input_ids"] == ours.encode(text, add_special_tokens=special)
    assert found["offset_mapping"] == expected["offset_mapping"]
    ids = expected["input_ids"]
    for skip in (True, False):
        assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", CLASSES)
def test_conversations_and_tokens_are_those_of_transformers(kind: str) -> None:
    ours, theirs = both(kind)
    for messages in PROBES.values():
        plain = [{k: v for k, v in message.items() if k != "tool_calls"} for message in messages]
        told = [one.apply_chat_template(plain, tokenize=False) for one in (ours, theirs)]
        assert told[0] == told[1]
    assert ours.get_added_vocab() == theirs.get_added_vocab()
    assert len(ours) == len(theirs)
    tokens = [*SPECIAL, "a", "no such token"]
    assert ours.convert_tokens_to_ids(tokens) == theirs.convert_tokens_to_ids(tokens)
    for name in ("eos_token_id", "unk_token_id", "special_tokens_map", "name_or_path", "is_fast"):
        assert getattr(ours, name) == getattr(theirs, name)


OTHERWISE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a class that makes it anew": ({"tokenizer_class": "LlamaTokenizerFast"}, {}),
    "Qwen's class round other pieces": ({"tokenizer_class": "Qwen2Tokenizer"}, {}),
    "Qwen's class by the type of the model": ({}, {"model_type": "qwen2"}),
    "a type of model with files of its own": ({}, {"model_type": "mistral"}),
    "a special token that the file lacks": ({"pad_token": "<|new|>"}, {}),
    "an added token that the file has otherwise": (
        {"added_tokens_decoder": {"1500": {"content": SPECIAL[0], "lstrip": True, "special": True}}},
        {},
    ),
    "special tokens that are split": ({"split_special_tokens": True}, {}),
}


@pytest.mark.parametrize(("stated", "model"), OTHERWISE.values(), ids=OTHERWISE)
def test_ambiguous_tokenizer_is_left(tmp_path: Path, stated: dict[str, Any], model: dict[str, Any]) -> None:
    from swe_core.tokens.tokenizer import FileTokenizer, load_tokenizer

    directory = saved(tmp_path)
    assert isinstance(load_tokenizer(str(directory)), FileTokenizer)
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **stated}))
    (directory / "config.json").write_text(json.dumps(model))
    assert not isinstance(load_tokenizer(str(directory)), FileTokenizer)


def test_truncation_length_of_the_file_is_ignored(tmp_path: Path) -> None:
    from swe_core.tokens.tokenizer import load_tokenizer

    tokenizer = make_tokenizer(SPECIAL)
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    loaded = load_tokenizer(str(tmp_path))
    assert loaded.decode(loaded.encode("one two three four five six")) == "one two three four five six"
