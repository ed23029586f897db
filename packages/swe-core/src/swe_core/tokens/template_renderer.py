"""TemplateRenderer: any model's own chat template, extended where it provably preserves prefixes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from swe_core.api.engine import Rendered
from swe_core.api.messages import Message
from swe_core.errors import RequestRefused
from swe_core.tokens.call_formats import CallFormat
from swe_core.tokens.counting import counted
from swe_core.tokens.encoder import decodes_in_parts
from swe_core.tokens.guard import Guard
from swe_core.tokens.probe_messages import CHAT, INLINE_THINKING, PROBES, TOOLS, reply, result, user
from swe_core.tokens.renderer import Parsed, Renderer, Tools
from swe_core.tokens.reply_parser import THINKING, ReplyParser, recognise, until
from swe_core.tokens.wire_messages import asking, listed, with_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_WORD = "Kaleidoscope"
_THOUGHTS = re.compile(
    "|".join(f"{re.escape(opened)}.*?{re.escape(closed)}" for opened, closed in THINKING)
    + "|"
    + "|".join(re.escape(mark.strip()) for pair in THINKING for mark in pair)
    + r"|<\|channel\|>analysis<\|message\|>.*?<\|end\|><\|start\|>assistant",
    re.DOTALL,
)
"""Thinking, and marks without any."""
_HELLO = user("Hello.")
_GOOD_DAY = reply(f"Good day, {_WORD}.")


@dataclass(frozen=True, slots=True)
class Following:
    """What follows a reply: the token that ends it, and the ids after that, generation prompt included."""

    end: int
    ids: list[int]


class ChatTemplate:
    """A chat template as a function from canonical messages to text and ids.

    Templates accept different forms without an error: content as text or as a list of parts, arguments as
    dicts or as text. Probes show which form this template prints.

    Args:
        kwargs: Its options, such as `enable_thinking`.
        guard: What keeps typed special tokens apart.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        source: str,
        kwargs: Mapping[str, Any],
        guard: Guard | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._guard = guard or Guard(tokenizer, source=source)
        self._source = source
        self._kwargs = dict(kwargs)
        special = sorted(map(str, tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        self._parts, self._objects, self._texts = False, True, True
        if not self._shows(user(_WORD)):
            self._parts = True
            self._parts = self._shows(user(_WORD))
        self._objects = self._shows(_HELLO, _calling("bash", f'{{"command": "{_WORD}"}}'))
        self._texts = self._shows(_HELLO, _calling("bash", _WORD))
        self._objects = self._objects or not self._texts

    def text(self, messages: Sequence[Message], tools: Tools, *, prompt: bool = True) -> str:
        """Return the conversation as text.

        Args:
            prompt: Whether to end with the generation prompt.

        Raises:
            RequestRefused: The template refuses the conversation; the sentence quotes it.
        """
        told = [with_arguments(message, self._objects, self._texts) for message in messages]
        conversation = self._guard.messages(told)
        if self._parts:
            conversation = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in conversation]
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    conversation,
                    tools=listed(self._guard.tools(tools)),
                    chat_template=self._source,
                    add_generation_prompt=prompt,
                    tokenize=False,
                    **self._kwargs,
                )
            )
        except Exception as error:  # TemplateError, or any error of its expressions
            raise RequestRefused(f"the chat template refuses this conversation: {error}") from error

    def ids(self, text: str) -> list[int]:
        """Return text of the template as ids."""

        def encode(piece: str) -> list[int]:
            guarded = self._guard.ids(piece)
            if guarded is not None:
                return guarded
            return list(self.tokenizer(piece, add_special_tokens=False, verbose=False)["input_ids"])

        return counted(text, encode, len)

    def without_cue(self, messages: Sequence[Message], tools: Tools) -> str | None:
        """Return the conversation's text up to its generation prompt; None without a known one.

        That is the prompt of any other conversation or, after tool results in some formats, empty.
        """
        whole, bare = self.text(messages, tools), self.text(messages, tools, prompt=False)
        if whole == bare:
            return whole
        return whole.removesuffix(self._cue) if whole.endswith(self._cue) else None

    @cached_property
    def _hello(self) -> str:
        return self.text([_HELLO], None)

    @cached_property
    def _is_open(self) -> bool:
        """Return whether the next message's first token ends a reply, as with GLM."""
        said = _GOOD_DAY["content"]
        closed = self.text([_HELLO, _GOOD_DAY], None, prompt=False).rpartition(said)[2]
        then = self.text([_HELLO, _GOOD_DAY, _HELLO], None).rpartition(said)[2]
        return not self._special.search(closed) and self._special.match(then) is not None

    @cached_property
    def _cue(self) -> str:
        return self._hello[len(_shared(self._hello, self.text([_HELLO], None, prompt=False))) :]

    def following(self, asked: Message, messages: Sequence[Message]) -> Following | None:
        """Return what follows the reply `asked` when `messages` come next, in a conversation of these alone.

        None where no special token ends the reply.

        Raises:
            RequestRefused: The template refuses that conversation.
        """
        closed = self.text([_HELLO, asked], None, prompt=False)
        whole = self.text([_HELLO, asked, *messages], None)
        shared = _shared(closed, whole)
        start = max(len(_shared(self._hello, closed)), shared.rfind(asked["content"] or "\0"))
        ends = [] if self._is_open else list(self._special.finditer(shared, start))
        own = last = ends[-1] if ends else None
        if own is None:  # the past is printed otherwise, such as without thinking: find the end behind a word
            marks = [at.end() for at in re.finditer(_WORD, closed)]
            word = list(re.finditer(_WORD, whole))[len(marks) - 1 : len(marks)]
            ends = list(self._special.finditer(closed, marks[-1])) if marks else []
            theirs = list(self._special.finditer(whole, word[0].end())) if word else []
            number = len(ends) + self._is_open
            if not 0 < number <= len(theirs):
                return None
            last = theirs[number - 1]
            own = last if self._is_open else ends[-1]
        if last is None:
            return None
        ids, cut = self.ids(whole), len(self.ids(whole[: last.end()]))
        if ids[cut - 1] != self.tokenizer.convert_tokens_to_ids(last[0]):
            return None
        return Following(self.tokenizer.convert_tokens_to_ids(own[0]), ids[cut:])

    @cached_property
    def ending(self) -> int | None:
        """Return the token that ends a reply; None where no one token does."""
        return self._ends_with(_GOOD_DAY, user("Go on."))

    @cached_property
    def call_ending(self) -> int | None:
        """Return the token that ends a reply with a call; None where no one token does."""
        return self._ends_with(_calling("bash", f'{{"command": "{_WORD}"}}'), result("call00001", "Done."))

    def _ends_with(self, asked: Message, then: Message) -> int | None:
        try:
            follows = self.following(asked, [then])
        except RequestRefused:
            return None
        return follows.end if follows else None

    def prints_tool_names(self) -> bool:
        """Return whether a tool result is printed with its tool's name, which the result itself lacks."""
        answer = result("call00001", _WORD)
        try:
            one, two = (self.following(_calling(name, "{}"), [answer]) for name in ("bash", "read"))
        except RequestRefused:
            return False
        return one != two

    def _shows(self, *messages: Message) -> bool:
        try:
            return _WORD in self.text(messages, TOOLS)
        except RequestRefused:
            return False


def _shared(one: str, two: str) -> str:
    """Return the common beginning of two texts."""
    return next(
        (one[:n] for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(one, two, key=len)
    )


def _calling(name: str, arguments: str) -> Message:
    return reply("", None, ("call00001", name, arguments))


def prove(template: ChatTemplate, *, thinking: bool = False) -> bool:
    """Return whether the template provably preserves prefixes.

    What is appended to a conversation must never change the text before it, and must follow a reply with the
    same ids whatever came before. All conversations of `PROBES` that the template takes are tried, with and
    without tools, on text and on ids.

    The prompt of each turn must begin with that of the turn before, without its generation prompt, and end
    with a reply's end and `ChatTemplate.following` of the messages after it. Generation prompts and replies
    stay as they were sampled, however they are printed later.

    Args:
        thinking: Whether the template may drop or move the thinking of earlier replies.
    """
    if template.ending is None:
        return False
    for tools in (None, TOOLS):
        for name, probe in PROBES.items():
            conversation: Sequence[Message] = probe
            if name == INLINE_THINKING:
                continue
            if thinking:  # a reply stays as sampled, wherever the template prints its text beside calls
                conversation = [{**m, "content": ""} if m.get("tool_calls") else m for m in conversation]
            try:
                if not _preserves(template, conversation, tools, thinking):
                    return False
            except RequestRefused:
                if name == CHAT:
                    return False
    return True


def _preserves(template: ChatTemplate, conversation: Sequence[Message], tools: Tools, thinking: bool) -> bool:
    turns = [n for n, message in enumerate(conversation) if message["role"] == "assistant"]
    turns.append(len(conversation))
    for turn, next_turn in pairwise(turns):
        before = template.without_cue(conversation[:turn], tools)
        after = template.text(conversation[:next_turn], tools)
        if thinking:
            before = before or template.text(conversation[:turn], tools, prompt=False)
            before, past = _thoughtless(before), _thoughtless(after)
        else:
            past = after
        names = [call["function"]["name"] for call in conversation[turn].get("tool_calls", ())]
        messages = conversation[turn + 1 : next_turn]
        asked = _asked(names, messages)
        follows = asked and template.following(asked, messages)
        if before is None or not past.startswith(before) or not follows:
            return False
        if follows.end not in (template.ending, template.call_ending):
            return False
        if template.ids(after)[-len(follows.ids) :] != follows.ids:
            return False
    return True


def _thoughtless(text: str) -> str:
    """Return a conversation without thinking and white space."""
    return re.sub(r"\s+", "", _THOUGHTS.sub("", text))


def _asked(names: Sequence[str], messages: Sequence[Message]) -> Message | None:
    """Return a reply that `messages` may come after."""
    if any(message["role"] == "tool" for message in messages):
        return asking(names, messages, f'{{"command": "{_WORD}"}}')
    return _GOOD_DAY


class TemplateRenderer(Renderer):
    """A model's own chat template. Prompts are extended where it provably preserves prefixes.

    Args:
        template_kwargs: Its options, such as `enable_thinking`.
        calls: The notation of its calls; None takes that in which it prints past calls.
        guard: See `ChatTemplate`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        source: str,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
        calls: CallFormat | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, source, template_kwargs or {}, guard)
        calls = calls or recognise(partial(self._template.text, prompt=False))
        self._parser = ReplyParser(tokenizer, calls, source)
        self.proven = prove(self._template)
        self.extends = self.proven or prove(self._template, thinking=True)
        self._ends = (self._template.ending, self._template.call_ending)
        self._prints_names = self.extends and self._template.prints_tool_names()
        how = " (proven)" if self.proven else " (extended)" if self.extends else ""
        self.name = f"template{how}"
        self.how: Rendered = "template" if self.extends else "full"
        ends = (self._ends[0], self._ends[1] if self.extends else None, tokenizer.eos_token_id)
        self.stop_ids = frozenset(id_ for id_ in ends if isinstance(id_, int))
        self.streams = self._parser.streams
        self.marks = self._parser.marks | self.stop_ids
        self.splits = decodes_in_parts(tokenizer)
        self.finds_calls = self._parser.finds_calls

    def render(self, messages: Sequence[Message], tools: Tools, *, cue: bool = True) -> list[int]:
        return self._template.ids(self._template.text(messages, tools, prompt=cue))

    def extend(
        self, tail: Sequence[int], completion: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        if not self.extends:
            return None
        names = (
            [name for name, _, _ in self.parse(completion, tail, tools).calls]
            if self._prints_names
            else ["any"]
        )
        asked = _asked(names, messages)
        try:
            follows = asked and self._template.following(asked, messages)
        except RequestRefused:
            return None
        if not follows or follows.end not in self._ends:
            return None
        if completion and completion[-1] == follows.end:
            return follows.ids
        if not self.stop_ids.isdisjoint(completion):
            return None
        return [follows.end, *follows.ids]

    def parse(
        self, completion: Sequence[int], tail: Sequence[int], tools: Tools, *, ended: bool = True
    ) -> Parsed:
        return self._parser.parse(until(completion, self.stop_ids), tail, tools, ended)

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))
