"""Compare a model's own chat template with the renderers that may replace it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Any

import orjson

from swe_core.api.messages import Message
from swe_core.errors import ConfigError, RequestRefused
from swe_core.tokens.family_renderer import FAMILIES, FamilyRenderer
from swe_core.tokens.guard import Guard
from swe_core.tokens.probe_messages import (
    CHAT,
    INLINE_THINKING,
    PROBES,
    THOUGHT,
    TOOLS,
    TOOLS_WITH_THINKING,
    user,
)
from swe_core.tokens.renderer import THINKING, Renderer, Tools
from swe_core.tokens.template_renderer import ChatTemplate, TemplateRenderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_FETCHES = frozenset({"gpt-oss"})
"""Families whose format loads a vocabulary over the network: used only on request."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The template's prompt of one turn; `probes` have this turn."""

    messages: list[Message]
    tools: Tools
    ids: list[int]
    probes: list[str] = field(default_factory=list)


class Comparison:
    """Compare a model's chat template with renderers on all turns of `PROBES`, with and without tools.

    Args:
        kwargs: Its options, such as `enable_thinking`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        source: str,
        kwargs: Mapping[str, Any],
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard or Guard(tokenizer, source=source)
        self._tokenizer = tokenizer
        self._source = source
        self._kwargs = dict(kwargs)
        self._found: dict[Renderer, list[str]] = {}  # the probes on which one differs, once known

    def recognise(self, known: str | None = None) -> FamilyRenderer | None:
        """Return the family that gives the template's ids on every turn; None without one.

        Args:
            known: The family of the model's name: the first choice among equals.
        """
        families: list[str] = sorted(FAMILIES - _FETCHES)
        if known is not None:
            families.insert(0, known)
        for family in families:
            try:
                candidate = FamilyRenderer(self._tokenizer, family, self._kwargs, self._guard)
            except ConfigError:
                continue
            if _agrees(candidate, self._prompts):
                self._found[candidate] = []
                return candidate
        return None

    def differences(self, renderer: Renderer) -> tuple[str, ...]:
        """Return where the renderer differs from the template: see `Renderer.differs`."""
        if isinstance(renderer, TemplateRenderer) and renderer.source == self._source:
            names: list[str] = []
        elif renderer in self._found:
            names = self._found[renderer]
        else:
            names = _differing(renderer, self._prompts)
        return (*names, THINKING) if self._keeps_thinking(renderer) else tuple(names)

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._tokenizer, self._source, self._kwargs)

    @cached_property
    def _prompts(self) -> list[_Prompt]:
        return _prompts(self._template)

    def _keeps_thinking(self, renderer: Renderer) -> bool:
        """Return whether a prompt keeps thinking before a new user message, where the template drops it."""
        if not any(self._drops_thinking(PROBES[name]) for name in (TOOLS_WITH_THINKING, INLINE_THINKING)):
            return False
        prompt = renderer.render(PROBES[CHAT][:1], None)
        return any(
            renderer.extend(prompt, [*self._template.ids(text), stop], [user("Thank you.")], None) is not None
            for text, stop in product(("Good day.", "</think>Good day."), renderer.stop_ids)
        )

    def _drops_thinking(self, conversation: Sequence[Message]) -> bool:
        """Return whether the template drops the first reply's thinking later."""
        try:
            *texts, last = [self._template.text(messages, TOOLS) for messages in _turns(conversation)]
        except RequestRefused:
            return False
        return any(THOUGHT in text for text in texts) and THOUGHT not in last


def _prompts(template: ChatTemplate) -> list[_Prompt]:
    prompts: dict[bytes, _Prompt] = {}
    for tools, (name, conversation) in product((None, TOOLS), PROBES.items()):
        for messages in _turns(conversation):
            key = orjson.dumps([messages, tools])
            if key not in prompts:
                try:
                    ids = template.ids(template.text(messages, tools))
                except RequestRefused:
                    continue
                prompts[key] = _Prompt(messages, tools, ids)
            prompts[key].probes.append(name)
    return list(prompts.values())


def _turns(conversation: Sequence[Message]) -> Iterator[list[Message]]:
    """Return what the agent sends at each turn."""
    for n, message in enumerate(conversation):
        if message["role"] == "assistant":
            yield list(conversation[:n])
    yield list(conversation)


def _agrees(renderer: Renderer, prompts: Sequence[_Prompt]) -> bool:
    return bool(prompts) and all(_same(renderer, prompt) for prompt in prompts)


def _differing(renderer: Renderer, prompts: Sequence[_Prompt]) -> list[str]:
    """Return the probes with a turn that the renderer prints differently, in order."""
    found = {name for prompt in prompts if not _same(renderer, prompt) for name in prompt.probes}
    return [name for name in PROBES if name in found]


def _same(renderer: Renderer, prompt: _Prompt) -> bool:
    """Return whether the ids are the same. For a reply with text and a call, the same text is enough: some
    formats tokenise the two apart, which does not concern sampled replies."""
    try:
        ids = renderer.render(prompt.messages, prompt.tools)
    except RequestRefused:
        return False
    if any(message["content"] and message.get("tool_calls") for message in prompt.messages):
        return renderer.text(ids) == renderer.text(prompt.ids)
    return ids == prompt.ids
