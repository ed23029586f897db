"""load_renderer: from the name of a model to the Renderer of its chat format."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from renderers.base import MODEL_RENDERER_MAP

from swe_core.errors import ConfigError
from swe_core.tokens.call_formats import CALL_FORMATS, CallFormat
from swe_core.tokens.comparison import Comparison
from swe_core.tokens.family_renderer import FAMILIES, FamilyRenderer
from swe_core.tokens.guard import Guard
from swe_core.tokens.probe_messages import TOOLS
from swe_core.tokens.renderer import Renderer
from swe_core.tokens.template_renderer import TemplateRenderer
from swe_core.tokens.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_ALIASES = {
    "deepseek-v3": "deepseek_v3",
    "glm": "glm45",
    "glm47": "glm45",
    "llama4_json": "llama3_json",
    "qwen3": "hermes",
    "qwen3.5": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
}
"""Other names of notations, in vLLM and in the package `renderers`."""


def load_renderer(
    tokenizer: str,
    *,
    renderer: str = "auto",
    chat_template: Path | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    tool_parser: str | None = None,
    special_tokens: bool = False,
) -> Renderer:
    """Return the Renderer of a model's chat format.

    Args:
        tokenizer: A directory with the model's tokenizer files, or the model's name on the Hugging Face Hub,
            which is not contacted where `HF_HUB_OFFLINE` is set.
        renderer: A family of the package `renderers`, such as "qwen3"; "template" for the model's own chat
            template; "auto" for the family that the model's name or equal ids show, else the template.
        chat_template: A file with a template that replaces the tokenizer's own.
        template_kwargs: Options of the template, such as `enable_thinking`.
        tool_parser: The notation of tool calls, by vLLM's name of its parser; None takes that in which the
            format prints past calls.
        special_tokens: Whether special tokens that are typed in messages become tokens, as with vLLM.

    Raises:
        ConfigError: An option is unknown or does not fit the others; the sentence says what to pass.
    """
    if renderer not in FAMILIES | {"auto", "template"}:
        near = difflib.get_close_matches(renderer, FAMILIES, n=3, cutoff=0.3) or sorted(FAMILIES)
        raise ConfigError(f"renderer {renderer!r} is not known: choose auto, template or {', '.join(near)}")
    calls = _notation(tool_parser)
    loaded = load_tokenizer(tokenizer)
    kwargs = dict(template_kwargs or {})
    source = template_of(loaded, chat_template)
    known = MODEL_RENDERER_MAP.get(tokenizer) if renderer == "auto" and chat_template is None else None
    name = renderer if renderer in FAMILIES else known
    guard = Guard(loaded, not special_tokens, source)
    named = FamilyRenderer(loaded, name, kwargs, guard) if name is not None else None
    if source is None:
        if named is None:
            raise ConfigError(
                f"the tokenizer {tokenizer!r} has no chat template: pass a file that holds one, or the name "
                "of a renderer"
            )
        named.calls = calls
        return named
    comparison = Comparison(loaded, source, kwargs, guard)
    made: Renderer | None = named if renderer in FAMILIES else None
    if renderer == "auto":
        family = comparison.recognise(known)
        made = family if family is not None and family.how == "bridge" else None
    if made is None:
        made = TemplateRenderer(loaded, source, template_kwargs=kwargs, calls=calls, guard=guard)
    if isinstance(made, FamilyRenderer):
        made.calls = calls
    made.differs = comparison.differences(made)
    return made


def template_of(tokenizer: PreTrainedTokenizerBase, chat_template: Path | None) -> str | None:
    """Return the template's text; None where the tokenizer has none and no file is given."""
    if chat_template is not None:
        try:
            return chat_template.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"the chat template {str(chat_template)!r} cannot be read: {error}") from error
    try:
        return str(tokenizer.get_chat_template(tools=TOOLS))
    except ValueError:
        return None


def _notation(name: str | None) -> CallFormat | None:
    if name is None:
        return None
    calls = CALL_FORMATS.get(_ALIASES.get(name, name))
    if calls is None:
        near = difflib.get_close_matches(name, CALL_FORMATS, n=3, cutoff=0.3) or sorted(CALL_FORMATS)
        raise ConfigError(f"the tool parser {name!r} is not known: choose {', '.join(near)}")
    return calls
