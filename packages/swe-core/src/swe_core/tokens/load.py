"""load_renderer: from the name of a model to the Renderer of its chat format."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from renderers.base import MODEL_RENDERER_MAP
from transformers import AutoTokenizer

from swe_core.errors import ConfigError, RequestRefused
from swe_core.messages import Message
from swe_core.tokens.families import FAMILIES, FamilyRenderer
from swe_core.tokens.parsers import Parser, named_parser, response_parser
from swe_core.tokens.probes import CHAT, PROBES, TOOLS
from swe_core.tokens.renderer import Renderer, Tools
from swe_core.tokens.templates import ChatTemplate, TemplateRenderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FETCHES = frozenset({"gpt-oss"})
"""Families whose format loads a vocabulary of its own over the network: only where they are asked for."""


def load_renderer(
    tokenizer: str,
    *,
    renderer: str = "auto",
    chat_template: Path | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
    tool_parser: str | None = None,
    reasoning_parser: str | None = None,
) -> Renderer:
    """The Renderer of a model's chat format.

    Args:
        tokenizer: A directory that holds the model's tokenizer files, or the model's name on the Hugging Face
            Hub, which is not asked where `HF_HUB_OFFLINE` is set.
        renderer: A family of the package `renderers`, such as "qwen3"; "template" for the model's own chat
            template; "auto" for the family where it is known by the model's name or found to give the same
            ids as the model's own template, and for the template otherwise.
        chat_template: A file with a template to use in place of the tokenizer's own.
        template_kwargs: Options of the template, such as `enable_thinking`.
        tool_parser: What finds tool calls in replies where a template is used: a parser of `renderers`.
        reasoning_parser: What finds reasoning there.

    Raises:
        ConfigError: One of these is not known or does not fit the others; the sentence says what to pass.
    """
    if renderer not in FAMILIES | {"auto", "template"}:
        near = difflib.get_close_matches(renderer, FAMILIES, n=3, cutoff=0.3) or sorted(FAMILIES)
        raise ConfigError(f"renderer {renderer!r} is not known: choose auto, template or {', '.join(near)}")
    loaded = load_tokenizer(tokenizer)
    kwargs = dict(template_kwargs or {})
    if renderer in FAMILIES:
        return FamilyRenderer(loaded, renderer, kwargs)
    family: FamilyRenderer | None = None
    if renderer == "auto" and chat_template is None and tokenizer in MODEL_RENDERER_MAP:
        family = FamilyRenderer(loaded, MODEL_RENDERER_MAP[tokenizer], kwargs)
        if family.how == "bridge":
            return family
    source = _template(loaded, chat_template)
    if renderer == "auto":
        family = family or recognise(loaded, source, kwargs)
    if family is not None and family.how == "bridge":
        return family
    parser = named_parser(loaded, tool_parser, reasoning_parser) if tool_parser or reasoning_parser else None
    own = template_renderer(loaded, source, kwargs, parser)
    return own if own.proven or family is None else family


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory or of a model on the Hub.

    Raises:
        ConfigError: It cannot be loaded.
    """
    try:
        # Cleaned-up spaces would change text that was streamed already, as in "do" + " n't".
        return AutoTokenizer.from_pretrained(name, clean_up_tokenization_spaces=False)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the tokenizer {name!r} cannot be loaded: pass a directory that holds the model's tokenizer "
            f"files, or its name on the Hugging Face Hub ({' '.join(str(error).split())})"
        ) from error


def recognise(
    tokenizer: PreTrainedTokenizerBase, source: str, kwargs: Mapping[str, Any]
) -> FamilyRenderer | None:
    """The family whose format gives the same ids as a chat template on every turn of `PROBES` that the
    template takes; None where there is none.

    With thinking on is enough: with thinking off some families print the empty thinking of each reply again,
    where templates drop it. Then the first prompt says whether thinking is on.
    """
    thinking = [kwargs, {**kwargs, "enable_thinking": True}] if "enable_thinking" in source else [kwargs]
    family = next(filter(None, (_family(tokenizer, source, options) for options in thinking)), None)
    if family is None:
        return None
    template = ChatTemplate(tokenizer, source, kwargs)
    first = template.ids(template.text(PROBES[CHAT][:1], None))
    for options in (kwargs, {"enable_thinking": False, **kwargs}):
        candidate = _candidate(tokenizer, family, options)
        if candidate and candidate.render(PROBES[CHAT][:1], None) == first:
            return candidate
    return None


def _family(tokenizer: PreTrainedTokenizerBase, source: str, kwargs: Mapping[str, Any]) -> str | None:
    expected = list(_prompts(ChatTemplate(tokenizer, source, kwargs)))
    for family in sorted(FAMILIES - _FETCHES):
        candidate = _candidate(tokenizer, family, kwargs)
        if candidate and expected and all(_agrees(candidate, *prompt) for prompt in expected):
            return str(family)
    return None


def _candidate(
    tokenizer: PreTrainedTokenizerBase, family: str, kwargs: Mapping[str, Any]
) -> FamilyRenderer | None:
    try:
        return FamilyRenderer(tokenizer, family, kwargs)
    except ConfigError:
        return None


def _agrees(candidate: FamilyRenderer, messages: list[Message], tools: Tools, expected: list[int]) -> bool:
    """Whether the ids are the same. Where a reply has text and a call, the same text is enough: some formats
    tokenise the two apart, which matters to no reply that was sampled."""
    try:
        ids = candidate.render(messages, tools)
    except RequestRefused:
        return False
    if any(message["content"] and message.get("tool_calls") for message in messages):
        return candidate.text(ids) == candidate.text(expected)
    return ids == expected


def _prompts(template: ChatTemplate) -> Iterator[tuple[list[Message], Tools, list[int]]]:
    """The prompt of every turn of `PROBES`, with tools and without."""
    for tools in (None, TOOLS):
        for conversation in PROBES.values():
            for turn in range(1, len(conversation) + 1):
                if turn < len(conversation) and conversation[turn]["role"] != "assistant":
                    continue
                messages = conversation[:turn]
                try:
                    yield messages, tools, template.ids(template.text(messages, tools))
                except RequestRefused:
                    continue


def template_renderer(
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    kwargs: Mapping[str, Any],
    parser: Parser | None = None,
) -> TemplateRenderer:
    """The Renderer of a chat template: itself where it is proven to preserve prefixes, else the variant of it
    that TRL trains with where there is one and that one is proven, else itself.

    Args:
        parser: What finds reasoning and calls in replies; None is what the tokenizer or TRL knows.
    """
    if parser is None and _knows_replies(tokenizer, source):
        parser = response_parser(tokenizer)
    own = TemplateRenderer(tokenizer, source, template_kwargs=kwargs, parser=parser)
    if own.proven:
        return own
    variant = _training_template(tokenizer, source)
    if variant is None:
        return own
    trained = TemplateRenderer(
        tokenizer, variant, kind="training template", template_kwargs=kwargs, parser=parser
    )
    return trained if trained.proven else own


def _template(tokenizer: PreTrainedTokenizerBase, chat_template: Path | None) -> str:
    if chat_template is not None:
        try:
            return chat_template.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"the chat template {str(chat_template)!r} cannot be read: {error}") from error
    try:
        return str(tokenizer.get_chat_template(tools=TOOLS))
    except ValueError as error:
        raise ConfigError(
            f"the tokenizer {tokenizer.name_or_path!r} has no chat template: pass a file that holds one, or "
            "the name of a renderer"
        ) from error


def _knows_replies(tokenizer: PreTrainedTokenizerBase, source: str) -> bool:
    """Whether the tokenizer says how replies are parsed; where it does not, TRL is asked to tell it."""
    if getattr(tokenizer, "response_template", None) is not None:
        return True
    if find_spec("trl") is None:
        return False
    from trl.chat_template_utils import add_response_schema

    tokenizer.chat_template = source
    try:
        add_response_schema(tokenizer)
    except ValueError:  # a template that TRL does not know
        return False
    return getattr(tokenizer, "response_template", None) is not None


def _training_template(tokenizer: PreTrainedTokenizerBase, source: str) -> str | None:
    if find_spec("trl") is None:
        return None
    from trl.chat_template_utils import get_training_chat_template

    tokenizer.chat_template = source
    try:
        variant = get_training_chat_template(tokenizer)
    except Exception:  # a template that TRL does not know, or that refuses what TRL tries it with
        return None
    return None if variant is None else str(variant)
