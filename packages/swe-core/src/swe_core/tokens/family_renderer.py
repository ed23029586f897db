"""FamilyRenderer: the model families whose chat format the package `renderers` knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

from renderers import RendererConfig, create_renderer
from renderers.base import merge_chat_template_kwargs
from renderers.configs import config_from_name

from swe_core.api.engine import Rendered
from swe_core.api.messages import Message
from swe_core.errors import ConfigError, ContextOverflow, RequestRefused
from swe_core.tokens.call_formats import CallFormat
from swe_core.tokens.encoder import decodes_in_parts, encoder_for
from swe_core.tokens.guard import Guard
from swe_core.tokens.probe_messages import MALFORMED, PROBES, reply, result, user
from swe_core.tokens.renderer import Parsed, Renderer, Tools
from swe_core.tokens.reply_parser import ReplyParser, recognise, until
from swe_core.tokens.wire_messages import (
    asking,
    listed,
    with_arguments,
    with_tool_names,
)

if TYPE_CHECKING:
    from renderers.base import Renderer as Format
    from transformers import PreTrainedTokenizerBase

FAMILIES = frozenset(
    config.model_fields["name"].default for config in get_args(get_args(RendererConfig)[0])
) - {"auto", "custom", "default"}
"""Names of the formats."""
_NAMED = frozenset({"gemma4", "gpt-oss", "inkling"})
"""Families that print a tool's name beside its result."""


class FamilyRenderer(Renderer):
    """A chat format of the package `renderers`.

    Thinking stays in the prompt wherever the format allows: a new user message extends the prompt, where the
    model's own template would drop the thinking. `how` is "full" where the format's bridge and its rendering
    disagree, so that neither is trusted.

    Attributes:
        family: The format's name in `renderers`, such as "qwen3".
        calls: The notation of its calls, where it is not that in which past calls are printed.

    Args:
        template_kwargs: Options of the model's chat template.
        guard: What keeps typed special tokens apart.

    Raises:
        ConfigError: There is no such format, it has no such option, or the tokenizer lacks its tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        family: str,
        template_kwargs: Mapping[str, Any] | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.family = family
        self.calls: CallFormat | None = None
        self._guard = guard or Guard(tokenizer)
        self._format = _format(tokenizer, family, dict(template_kwargs or {}), self._guard)
        added = frozenset(tokenizer.get_added_vocab().values())
        self.name = f"renderers/{family}"
        self._takes_text = True
        self._takes_text = self._renders(PROBES[MALFORMED])
        self.stop_ids = frozenset(self._format.get_stop_token_ids())
        self.marks = added | self.stop_ids
        self.how: Rendered = "bridge"
        if not self._bridge_agrees():
            self.how = "full"
        self.splits = decodes_in_parts(tokenizer)

    @cached_property
    def _parser(self) -> ReplyParser:
        def show(messages: Sequence[Message], tools: Tools) -> str:
            return self.text(self.render(messages, tools, cue=False))

        return ReplyParser(self.tokenizer, self.calls or recognise(show))

    @property
    def streams(self) -> bool:  # type: ignore[override]  # read only
        return self._parser.streams

    @property
    def finds_calls(self) -> bool:  # type: ignore[override]  # read only
        return self._parser.finds_calls

    def render(self, messages: Sequence[Message], tools: Tools, *, cue: bool = True) -> list[int]:
        if self.family in _NAMED:
            messages = with_tool_names(messages)
        told = [with_arguments(message, True, self._takes_text) for message in messages]
        try:
            return list(
                self._format.render_ids(
                    self._guard.messages(told),
                    tools=listed(self._guard.tools(tools)),
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
            list(tail),
            list(completion),
            list(self._guard.messages(messages)),
            tools=listed(self._guard.tools(tools)),
        )
        if bridged is None or bridged.token_ids[: len(before)] != before:
            return None
        return list(bridged.token_ids[len(before) :])

    def parse(
        self, completion: Sequence[int], tail: Sequence[int], tools: Tools, *, ended: bool = True
    ) -> Parsed:
        return self._parser.parse(until(completion, self.stop_ids), tail, tools, ended)

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


def _format(tokenizer: PreTrainedTokenizerBase, family: str, kwargs: dict[str, Any], guard: Guard) -> Format:
    try:
        config = config_from_name(family)
        if config is None:
            raise ValueError("it names no format")
        try:
            config = merge_chat_template_kwargs(type(config)(thinking_retention="all"), kwargs)
        except ValueError:  # an option of the template decides about the thinking
            config = merge_chat_template_kwargs(config, kwargs)
        return create_renderer(encoder_for(tokenizer, family, guard), config)
    except Exception as error:  # an assertion or an error of its own: the two do not fit
        raise ConfigError(
            f"the chat format {family!r} of the package renderers does not fit the tokenizer "
            f"{tokenizer.name_or_path!r} with the template options {kwargs}: {' '.join(str(error).split())}"
        ) from error
