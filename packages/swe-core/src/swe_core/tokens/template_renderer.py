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
from swe_core.tokens.counting import counted
from swe_core.tokens.encoder import decodes_in_parts, takes_characters_back
from swe_core.tokens.probe_messages import CHAT, INLINE_THINKING, PROBES, TOOLS, reply, result, user
from swe_core.tokens.renderer import Parsed, Renderer, Tools
from swe_core.tokens.reply_parsers import Parser, plain_parser
from swe_core.tokens.wire_messages import asking, listed, settled, with_arguments

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

_WORD = "Kaleidoscope"
_HELLO = user("Hello.")
_GOOD_DAY = reply("Good day.")


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
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, source: str, kwargs: Mapping[str, Any]) -> None:
        self.tokenizer = tokenizer
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
        conversation = [with_arguments(message, self._objects, self._texts) for message in messages]
        if self._parts:
            conversation = [{**m, "content": [{"type": "text", "text": m["content"]}]} for m in conversation]
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    conversation,
                    tools=listed(tools),
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
        return list(self._encoded(text)["input_ids"])

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
    def _cue(self) -> str:
        return self._hello[len(_shared(self._hello, self.text([_HELLO], None, prompt=False))) :]

    def following(self, asked: Message, messages: Sequence[Message]) -> Following | None:
        """Return what follows the reply `asked` when `messages` come next, in a conversation of these alone.

        None where no special token ends the reply, or the tokenizer gives no offsets.

        Raises:
            RequestRefused: The template refuses that conversation.
        """
        if not self.tokenizer.is_fast:
            return None
        closed = self.text([_HELLO, asked], None, prompt=False)
        whole = self.text([_HELLO, asked, *messages], None)
        shared = _shared(closed, whole)
        start = max(len(_shared(self._hello, closed)), shared.rfind(asked["content"] or "\0"))
        ends = list(self._special.finditer(shared, start))
        if not ends:
            return None
        last = ends[-1]
        found = self._encoded(whole, return_offsets_mapping=True)
        ids, offsets = found["input_ids"], found["offset_mapping"]
        cut = next((n for n, (begin, _) in enumerate(offsets) if begin >= last.end()), len(ids))
        if ids[cut - 1] != self.tokenizer.convert_tokens_to_ids(last[0]):
            return None
        return Following(ids[cut - 1], list(ids[cut:]))

    @cached_property
    def ending(self) -> int | None:
        """Return the token that ends a reply; None where no one token does."""
        try:
            follows = self.following(_GOOD_DAY, [user("Go on.")])
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

    def _encoded(self, text: str, **options: bool) -> BatchEncoding:
        encode = partial(self.tokenizer, add_special_tokens=False, verbose=False, **options)
        return counted(text, encode, lambda encoded: len(encoded["input_ids"]))

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


def prove_prefix_preserving(template: ChatTemplate) -> bool:
    """Return whether the template provably preserves prefixes.

    What is appended to a conversation must never change the text before it, and must follow a reply with the
    same ids whatever came before. All conversations of `PROBES` that the template takes are tried, with and
    without tools, on text and on ids.

    The prompt of each turn must begin with that of the turn before, without its generation prompt, and end
    with a reply's end and `ChatTemplate.following` of the messages after it. Generation prompts and replies
    stay as they were sampled, however they are printed later.
    """
    if (end := template.ending) is None:
        return False
    for tools in (None, TOOLS):
        for name, conversation in PROBES.items():
            if name == INLINE_THINKING:
                continue
            try:
                if not _preserves(template, conversation, tools, end):
                    return False
            except RequestRefused:
                if name == CHAT:
                    return False
    return True


def _preserves(template: ChatTemplate, conversation: Sequence[Message], tools: Tools, end: int) -> bool:
    turns = [n for n, message in enumerate(conversation) if message["role"] == "assistant"]
    turns.append(len(conversation))
    for turn, next_turn in pairwise(turns):
        before = template.without_cue(conversation[:turn], tools)
        after = template.text(conversation[:next_turn], tools)
        names = [call["function"]["name"] for call in conversation[turn].get("tool_calls", ())]
        messages = conversation[turn + 1 : next_turn]
        asked = _asked(names, messages)
        follows = asked and template.following(asked, messages)
        if before is None or not after.startswith(before) or not follows or follows.end != end:
            return False
        if template.ids(after)[-1 - len(follows.ids) :] != [end, *follows.ids]:
            return False
    return True


def _asked(names: Sequence[str], messages: Sequence[Message]) -> Message | None:
    """Return a reply that `messages` may come after."""
    if any(message["role"] == "tool" for message in messages):
        return asking(names, messages)
    return _GOOD_DAY


class TemplateRenderer(Renderer):
    """A model's own chat template. Prompts are extended where it provably preserves prefixes.

    Args:
        kind: Its kind, for reports.
        template_kwargs: Its options, such as `enable_thinking`.
        parser: Finds reasoning and calls in replies; with None a reply is text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        source: str,
        *,
        kind: str = "template",
        template_kwargs: Mapping[str, Any] | None = None,
        parser: Parser | None = None,
    ) -> None:
        self.source = source
        self.tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, source, template_kwargs or {})
        self._parser = parser or plain_parser(tokenizer)
        self.proven = prove_prefix_preserving(self._template)
        self._end = self._template.ending
        self._prints_names = self.proven and self._template.prints_tool_names()
        self.name = f"{kind} (proven)" if self.proven else kind
        self.how: Rendered = "template" if self.proven else "full"
        self.stop_ids = frozenset(id_ for id_ in (self._end, tokenizer.eos_token_id) if isinstance(id_, int))
        self.streams = parser is None and not takes_characters_back(tokenizer)
        self.marks = self.stop_ids  # only text is streamed, up to its end
        self.splits = decodes_in_parts(tokenizer)
        self.finds_calls = parser is not None

    def render(self, messages: Sequence[Message], tools: Tools, *, cue: bool = True) -> list[int]:
        return self._template.ids(self._template.text(messages, tools, prompt=cue))

    def extend(
        self, tail: Sequence[int], completion: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        if not self.proven:
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
        if not follows or follows.end != self._end:
            return None
        if completion and completion[-1] == follows.end:
            return follows.ids
        if not self.stop_ids.isdisjoint(completion):
            return None
        return [follows.end, *follows.ids]

    def parse(
        self, completion: Sequence[int], tail: Sequence[int], tools: Tools, *, ended: bool = True
    ) -> Parsed:
        stop = next((n for n, id_ in enumerate(completion) if id_ in self.stop_ids), len(completion))
        found = self._parser(completion[:stop], tail, tools)
        return Parsed(
            settled(found.content, ended), settled(found.reasoning or "", ended) or None, found.calls
        )

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))
