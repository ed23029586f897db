"""FamilyRenderer: the model families whose chat format the package `renderers` knows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

from renderers import RendererConfig, create_renderer
from renderers.base import merge_chat_template_kwargs
from renderers.configs import config_from_name

from swe_core.api.engine import Rendered
from swe_core.api.messages import Message
from swe_core.errors import ConfigError, ContextOverflow, RequestRefused
from swe_core.tokens.encoder import decodes_in_parts, encoder_for, takes_characters_back
from swe_core.tokens.probe_messages import MALFORMED, PROBES, reply, result, user
from swe_core.tokens.renderer import Parsed, Renderer, Tools
from swe_core.tokens.wire_messages import (
    asking,
    is_name,
    listed,
    named_calls,
    settled,
    with_arguments,
    with_tool_names,
)

if TYPE_CHECKING:
    from renderers.base import ParsedResponse
    from renderers.base import Renderer as Format
    from transformers import PreTrainedTokenizerBase

FAMILIES = frozenset(
    config.model_fields["name"].default for config in get_args(get_args(RendererConfig)[0])
) - {"auto", "custom", "default"}
"""Names of the formats."""
_MAY_TURN_OUT = frozenset({"deepseek-v4", "gemma4", "gpt-oss", "inkling", "llama-3"})
"""Families in which text may turn out to be a call or a channel's name. In others special tokens open
reasoning and calls, so that text stays text."""
_NAMED = frozenset({"gemma4", "gpt-oss", "inkling"})
"""Families that print a tool's name beside its result."""


class FamilyRenderer(Renderer):
    """A chat format of the package `renderers`.

    Thinking stays in the prompt wherever the format allows: a new user message extends the prompt, where the
    model's own template would drop the thinking. `how` is "full" where the format's bridge and its rendering
    disagree, so that neither is trusted.

    Attributes:
        family: The format's name in `renderers`, such as "qwen3".

    Args:
        template_kwargs: Options of the model's chat template.

    Raises:
        ConfigError: There is no such format, it has no such option, or the tokenizer lacks its tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        family: str,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.family = family
        self._format = _format(tokenizer, family, dict(template_kwargs or {}))
        added = frozenset(tokenizer.get_added_vocab().values())
        self.name = f"renderers/{family}"
        self._takes_text = True
        self._takes_text = self._renders(PROBES[MALFORMED])
        self.stop_ids = frozenset(self._format.get_stop_token_ids())
        self.marks = added | self.stop_ids
        self.how: Rendered = "bridge"
        if not self._bridge_agrees():
            self.how = "full"
        may_turn_out = family in _MAY_TURN_OUT or takes_characters_back(tokenizer)
        self.streams = not may_turn_out and _marks_thinking(tokenizer, family)
        self.splits = decodes_in_parts(tokenizer)
        self.finds_calls = True

    def render(self, messages: Sequence[Message], tools: Tools, *, cue: bool = True) -> list[int]:
        if self.family in _NAMED:
            messages = with_tool_names(messages)
        try:
            return list(
                self._format.render_ids(
                    [with_arguments(message, True, self._takes_text) for message in messages],
                    tools=listed(tools),
                    add_generation_prompt=cue,
                )
            )
        except ContextOverflow:
            raise
        except Exception as error:  # errors of the format's code come from the agent's messages
            raise RequestRefused(f"{self.name} cannot render this conversation: {error}") from error

    def extend(
        self, tail: Sequence[int], completion: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        if self.how == "full":
            return None
        before = [*tail, *completion]
        if self.family in _NAMED:
            names = [name for name, _, _ in self.parse(completion, tail, tools).calls]
            asked = asking(names, messages)
            if asked is None:
                return None
            messages = with_tool_names([asked, *messages])[1:]
        bridged = self._format.bridge_to_next_turn(
            list(tail), list(completion), list(messages), tools=listed(tools)
        )
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        return list(bridged.token_ids[len(before) :])

    def parse(
        self, completion: Sequence[int], tail: Sequence[int], tools: Tools, *, ended: bool = True
    ) -> Parsed:
        if not completion:
            return Parsed("")
        found = self._find(completion, tail, tools)
        if found is None:  # such as a call nested too deep for a JSON parser: the text before it counts
            ends = range(1, len(completion) + 1)
            readable = bisect_left(ends, True, key=lambda n: self._find(completion[:n], tail, tools) is None)
            return self.parse(completion[:readable], tail, tools, ended=ended)
        content, reasoning = found.content, found.reasoning_content or ""
        if ended:
            content = "\n".join(filter(None, [content, *self._nameless(found, completion)]))
        elif completion and completion[0] in self.marks:
            header = self.text(completion[:1])  # of the reply, perhaps; known once it is complete
            content, reasoning = ("" if text.startswith(header) else text for text in (content, reasoning))
        return Parsed(
            content=settled(content, ended),
            reasoning=settled(reasoning, ended) or None,
            calls=named_calls(found.tool_calls),
        )

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _bridge_agrees(self) -> bool:
        """Return whether the format's rendering after a reply equals its bridge (not all do in 0.1.12)."""
        asked = reply("", None, ("call00001", "bash", "{}"))
        for said, message in ((reply("Good day."), user("Go on.")), (asked, result("call00001", "one line"))):
            prompt = self.render([user("Hello.")], None)
            whole = self.render([user("Hello."), said, message], None)
            follows = []
            for text, stop in product(("Good day.", "</think>Good day."), self.stop_ids):
                completion = [*self.tokenizer.encode(text, add_special_tokens=False), stop]
                more = self.extend(prompt, completion, [message], None)
                if more is not None:
                    follows.append([stop, *more])
            if follows and not any(whole[-len(ids) :] == ids for ids in follows):
                return False
        return True

    def _renders(self, messages: Sequence[Message]) -> bool:
        try:
            self.render(messages, None)
        except RequestRefused:
            return False
        return True

    def _find(self, completion: Sequence[int], tail: Sequence[int], tools: Tools) -> ParsedResponse | None:
        try:
            return self._format.parse_response(list(completion), tools=listed(tools), prompt_ids=list(tail))
        except Exception:  # the model may sample anything
            return None

    def _nameless(self, found: ParsedResponse, completion: Sequence[int]) -> list[str]:
        """Return the tool calls without a name, as sampled."""
        return [
            call.raw if call.token_span is None else self.text(completion[slice(*call.token_span)])
            for call in found.tool_calls
            if not is_name(call.name)
        ]


def _format(tokenizer: PreTrainedTokenizerBase, family: str, kwargs: dict[str, Any]) -> Format:
    try:
        config = config_from_name(family)
        if config is None:
            raise ValueError("it names no format")
        try:
            config = merge_chat_template_kwargs(type(config)(thinking_retention="all"), kwargs)
        except ValueError:  # an option of the template decides about the thinking
            config = merge_chat_template_kwargs(config, kwargs)
        return create_renderer(encoder_for(tokenizer, family), config)
    except Exception as error:  # an assertion or an error of its own: the two do not fit
        raise ConfigError(
            f"the chat format {family!r} of the package renderers does not fit the tokenizer "
            f"{tokenizer.name_or_path!r} with the template options {kwargs}: {' '.join(str(error).split())}"
        ) from error


def _marks_thinking(tokenizer: PreTrainedTokenizerBase, family: str) -> bool:
    """Return whether special tokens mark thinking, not text markers, which begin like text."""
    suffix = ":opensource" if family == "hy3" else ""
    vocabulary = tokenizer.get_added_vocab()
    return f"<think{suffix}>" in vocabulary and f"</think{suffix}>" in vocabulary
