"""Reply parsers for models whose format is known by their chat template only."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from renderers.parsers import get_reasoning_parser, get_tool_parser

from swe_core.errors import ConfigError
from swe_core.tokens.renderer import Parsed, Tools
from swe_core.tokens.wire_messages import arguments_text, is_name, listed, named_calls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Parser = Callable[[Sequence[int], Sequence[int], Tools], Parsed]
"""Arguments: the ids of a completion without its stop token, those of its prompt's end, and the tools."""


def plain_parser(tokenizer: PreTrainedTokenizerBase) -> Parser:
    """Return the whole reply as text, special tokens included."""

    def parse(completion: Sequence[int], tail: Sequence[int], tools: Tools) -> Parsed:
        return Parsed(str(tokenizer.decode(list(completion), skip_special_tokens=False)))

    return parse


def response_parser(tokenizer: PreTrainedTokenizerBase) -> Parser:
    """Parse with the tokenizer's own response template; a reply that does not fit is text."""
    plain = plain_parser(tokenizer)

    def parse(completion: Sequence[int], tail: Sequence[int], tools: Tools) -> Parsed:
        try:
            found = tokenizer.parse_response(list(completion), prefix=list(tail), tools=listed(tools))
            return Parsed(
                found.get("content") or "",
                found.get("reasoning_content") or found.get("thinking"),
                tuple(_call(call) for call in found.get("tool_calls") or ()),
            )
        except Exception:  # such as a call that is no JSON: the model may sample anything
            return plain(completion, tail, tools)

    return parse


def named_parser(
    tokenizer: PreTrainedTokenizerBase, tool_parser: str | None, reasoning_parser: str | None
) -> Parser:
    """Return parsers of the package `renderers`, by name.

    Raises:
        ConfigError: The package has no parser of that name.
    """
    try:
        tool = get_tool_parser(tool_parser, tokenizer) if tool_parser else None
        reasoning = get_reasoning_parser(reasoning_parser, tokenizer) if reasoning_parser else None
    except ValueError as error:
        raise ConfigError(f"the package renderers says: {error}") from error
    plain = plain_parser(tokenizer)

    def parse(completion: Sequence[int], tail: Sequence[int], tools: Tools) -> Parsed:
        ids, calls = tool.extract(list(completion)) if tool else (completion, [])
        text = plain(ids, tail, tools).content
        opened = reasoning is not None and _text_end(tokenizer, tail).endswith("<think>")
        thought, text = (
            reasoning.extract(f"<think>{text}" if opened else text.lstrip()) if reasoning else (None, text)
        )
        nameless = [
            plain(completion[slice(*call.token_span)], tail, tools).content
            for call in calls
            if not is_name(call.name)
        ]
        return Parsed("\n".join(filter(None, [text, *nameless])), thought, named_calls(calls))

    return parse


def _text_end(tokenizer: PreTrainedTokenizerBase, tail: Sequence[int]) -> str:
    return str(tokenizer.decode(list(tail[-8:]), skip_special_tokens=False)).rstrip()


def _call(call: dict[str, Any]) -> tuple[str, str, str | None]:
    function = call.get("function", call)
    name, arguments, id_ = function["name"], function.get("arguments"), call.get("id")
    if not is_name(name):
        raise ValueError("a call names no tool")
    if arguments is None:
        arguments = {}
    raw = json.dumps(arguments, allow_nan=False)  # raises where JSON cannot write them: all stays text
    return name, arguments_text(arguments, raw), id_ if is_name(id_) else None
