"""FamilyRenderer: the model families whose chat format the package `renderers` knows by heart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from renderers import create_renderer
from renderers.base import merge_chat_template_kwargs
from renderers.configs import config_from_name

from swe_core.engine import Rendered
from swe_core.errors import ConfigError, RequestRefused
from swe_core.messages import Message
from swe_core.tokens.renderer import Parsed, Renderer, Tools

if TYPE_CHECKING:
    from renderers.base import ParsedResponse, ParsedToolCall
    from renderers.base import Renderer as Format
    from transformers import PreTrainedTokenizerBase

STREAMING = frozenset({"qwen3"})
"""Families whose reasoning and tool calls open with special tokens, so that text once seen stays."""
_NAMED = frozenset({"gemma4", "gpt-oss", "inkling"})
"""Families that print a tool's name beside its result."""


class FamilyRenderer(Renderer):
    """A chat format of the package `renderers`.

    Thinking stays in the prompt wherever the format lets it stay: a new user message extends the prompt,
    where the model's own template would render it afresh without the thinking.

    Args:
        tokenizer: The model's tokenizer.
        family: The format's name in `renderers`, such as "qwen3".
        template_kwargs: Options of the model's chat template.

    Raises:
        ConfigError: There is no such format, it has no such option, or the tokenizer lacks its tokens.
    """

    how: Rendered = "bridge"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        family: str,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._family = family
        self._format = _format(tokenizer, family, dict(template_kwargs or {}))
        self._special = frozenset(tokenizer.get_added_vocab().values())
        self.name = f"renderers/{family}"
        self.stop_ids = frozenset(self._format.get_stop_token_ids())
        self.streams = family in STREAMING

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        """See `Renderer.render`."""
        if self._family in _NAMED:
            messages = with_tool_names(messages)
        try:
            return list(
                self._format.render_ids(
                    [with_decoded_arguments(message) for message in messages],
                    tools=_listed(tools),
                    add_generation_prompt=True,
                )
            )
        except Exception as error:  # whatever the format's code trips over is in the agent's messages
            raise RequestRefused(f"{self.name} cannot render this conversation: {error}") from error

    def extend(
        self, tail: Sequence[int], completion: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        """See `Renderer.extend`."""
        before = [*tail, *completion]
        if self._family in _NAMED:
            calls = self.parse(completion, tail, tools).calls
            messages = with_tool_names([_asking(calls, messages), *messages])[1:]
            if any(message["role"] == "tool" and "name" not in message for message in messages):
                return None
        bridged = self._format.bridge_to_next_turn(
            list(tail),
            list(completion),
            list(messages),
            tools=_listed(tools),
        )
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        return list(bridged.token_ids[len(before) :])

    def parse(
        self, completion: Sequence[int], tail: Sequence[int], tools: Tools, *, ended: bool = True
    ) -> Parsed:
        """See `Renderer.parse`."""
        try:
            found = self._format.parse_response(list(completion), tools=_listed(tools), prompt_ids=list(tail))
        except Exception:  # such as RecursionError: the model may sample anything
            return Parsed(settled(self.text(completion), ended))
        content = found.content
        if not ended and completion and completion[0] in self._special:
            content = ""  # the reply's header, perhaps, of which the rest is still to come
        if ended:
            content = "\n".join(filter(None, [content, *self._nameless(found, completion)]))
        return Parsed(
            content=settled(content, ended),
            reasoning=settled(found.reasoning_content or "", ended) or None,
            calls=tuple(
                (call.name, _arguments(call), call.id)
                for call in found.tool_calls
                if _is_named(call) and call.name is not None
            ),
        )

    def text(self, ids: Sequence[int]) -> str:
        """See `Renderer.text`."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _nameless(self, found: ParsedResponse, completion: Sequence[int]) -> list[str]:
        """The blocks that were meant as tool calls and name no tool, as they were sampled."""
        return [
            call.raw if call.token_span is None else self.text(completion[slice(*call.token_span)])
            for call in found.tool_calls
            if not _is_named(call)
        ]


def _format(tokenizer: PreTrainedTokenizerBase, family: str, kwargs: dict[str, Any]) -> Format:
    try:
        config = config_from_name(family)
        if config is None:
            raise ValueError("it names no format")
        try:
            config = merge_chat_template_kwargs(type(config)(thinking_retention="all"), kwargs)
        except ValueError:  # an option of the template says what becomes of the thinking
            config = merge_chat_template_kwargs(config, kwargs)
        return create_renderer(tokenizer, config)
    except Exception as error:
        raise ConfigError(
            f"the chat format {family!r} of the package renderers does not fit the tokenizer "
            f"{tokenizer.name_or_path!r} with the template options {kwargs}: {' '.join(str(error).split())}"
        ) from error


def settled(text: str, ended: bool) -> str:
    """`text` without the white space around it; where more may follow, without a character at its end of
    which only some bytes are there."""
    return text.strip() if ended else text.lstrip().rstrip("\ufffd \t\r\n\f\v\x1c\x1d\x1e\x1f\x85\xa0")


def with_decoded_arguments(message: Message) -> Message:
    """The message with the arguments of its calls as dicts, for formats that iterate over them; arguments
    that are no JSON object stay text."""
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _decoded(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _decoded(arguments: str) -> dict[str, Any] | str:
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def with_tool_names(messages: Sequence[Message]) -> list[Message]:
    """The messages with each tool result naming its tool, found by the id of the call."""
    names: dict[str | None, str] = {}
    named = []
    for message in messages:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        name = names.get(message.get("tool_call_id")) if message["role"] == "tool" else None
        named.append({**message, "name": name} if name and "name" not in message else message)
    return named


def _asking(calls: Sequence[tuple[str, str, str | None]], messages: Sequence[Message]) -> Message:
    """An assistant message whose calls the tool results in `messages` answer. Which answers which is known
    only where there are as many results as calls, or one tool was called."""
    ids = [message.get("tool_call_id") for message in messages if message["role"] == "tool"]
    names = [name for name, _, _ in calls]
    if len(set(names)) == 1:
        names = names[:1] * len(ids)
    pairs = zip(ids, names, strict=True) if len(ids) == len(names) else ()
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": id_, "function": {"name": name}} for id_, name in pairs],
    }


def _is_named(call: ParsedToolCall) -> bool:
    return isinstance(call.name, str) and bool(call.name)


def _arguments(call: ParsedToolCall) -> str:
    if isinstance(call.arguments, str):
        return call.arguments
    if call.arguments is None:
        return str(call.raw)
    text = json.dumps(call.arguments, ensure_ascii=False)
    # JSON can name half of a surrogate pair, which no UTF-8 can carry.
    return text if text.isascii() or _is_utf8(text) else json.dumps(call.arguments)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(tools: Tools) -> list[Any] | None:
    return [dict(tool) for tool in tools] if tools else None
