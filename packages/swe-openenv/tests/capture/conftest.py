"""A tokenizer with Qwen3's special tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer

if TYPE_CHECKING:
    from .engines import Qwen


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Qwen:
    from swe_core.tokens.load_renderer import load_renderer

    from .engines import Qwen

    path = tmp_path_factory.mktemp("qwen")
    make_tokenizer(QWEN3_TOKENS, eos_token="<|im_end|>", pad_token="<|endoftext|>").save_pretrained(path)
    return Qwen(path, load_renderer(str(path), renderer="qwen3"))
