"""load_renderer: from the name of a model to the Renderer of its chat format."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from renderers.base import MODEL_RENDERER_MAP
from renderers.configs import _CONFIG_BY_NAME
from transformers import AutoTokenizer

from swe_core.errors import ConfigError
from swe_core.tokens.families import FamilyRenderer
from swe_core.tokens.renderer import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FAMILIES = sorted(_CONFIG_BY_NAME.keys() - {"auto", "default"})


def load_renderer(
    tokenizer: str,
    *,
    renderer: str = "auto",
    chat_template: Path | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> Renderer:
    """The Renderer of a model's chat format."""
    loaded = _load_tokenizer(tokenizer)
    family = renderer
    if renderer == "auto":
        family = MODEL_RENDERER_MAP.get(tokenizer, "qwen3")
    elif renderer not in FAMILIES:
        near = difflib.get_close_matches(renderer, FAMILIES, n=3, cutoff=0.3) or FAMILIES
        raise ConfigError(f"there is no renderer {renderer!r}: choose auto, template or {', '.join(near)}")
    return FamilyRenderer(loaded, family, template_kwargs)


def _load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    try:
        return AutoTokenizer.from_pretrained(name, clean_up_tokenization_spaces=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the tokenizer {name!r} cannot be loaded: pass a directory that holds the model's tokenizer "
            f"files, or its name on the Hugging Face Hub ({' '.join(str(error).split())[:300]})"
        ) from error
