"""load: our renderer of a tokenizer, and the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swe_core.tokens.load_renderer import load_renderer, template_of
from swe_core.tokens.renderer import Renderer
from swe_core.tokens.template_renderer import ChatTemplate
from swe_core.tokens.tokenizer import load_tokenizer


def load(
    tokenizer: str, renderer: str, chat_template: Path | None, kwargs: Mapping[str, Any]
) -> tuple[Renderer, ChatTemplate | None]:
    """Return our renderer, and the chat template; None where the tokenizer has none.

    Args:
        tokenizer: A directory, or a name on the Hugging Face Hub.
        renderer: See `load_renderer`.
        chat_template: A file with a template that replaces the tokenizer's own.
        kwargs: Options of the template.

    Raises:
        ConfigError: The tokenizer cannot be loaded, or an option does not fit.
    """
    made = load_renderer(tokenizer, renderer=renderer, chat_template=chat_template, template_kwargs=kwargs)
    loaded = load_tokenizer(tokenizer)
    source = template_of(loaded, chat_template)
    return made, None if source is None else ChatTemplate(loaded, source, kwargs)
