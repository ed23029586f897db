"""TemplateRenderer: proofs about chat templates, and the prompts extended on their ground."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.tokens.probe_messages import TOOLS, reply, user
from swe_core.tokens.template_renderer import ChatTemplate, TemplateRenderer, prove
from swe_testing.tokenizer import make_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
CALLS = "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
THOUGHT = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
BODY = "<|im_start|>{{ m.role }}\n" + THOUGHT + "{{ m.content }}" + CALLS + "<|im_end|>\n"
CUE = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
LISTED = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"


def chat(body: str = BODY, before: str = LISTED, after: str = CUE) -> str:
    return before + "{% for m in messages %}" + body + "{% endfor %}" + after


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(SPECIAL, eos_token="<|im_end|>")


def renderer(source: str, **options: object) -> TemplateRenderer:
    return TemplateRenderer(tokenizer(), source, **options)


_made = cache(renderer)
PROVEN = {
    "plain": chat(),
    "no generation prompt after results": chat(
        after="{% if messages[-1].role != 'tool' %}" + CUE + "{% endif %}"
    ),
    "thinking opened by the prompt": chat(after=CUE.replace("{% endif %}", "<think>\n{% endif %}")),
    "an end of its own after the last message": chat(
        after=CUE.replace("{% endif %}", "{% else %}<|endoftext|>{% endif %}")
    ),
    "the next message as the end": chat(BODY.replace("<|im_end|>\n", "")),
    "another end after calls": chat(
        BODY.replace("<|im_end|>", "{% if m.tool_calls %}<|endoftext|>{% else %}<|im_end|>{% endif %}")
    ),
}
EXTENDED = {
    "thinking dropped before the last user message": chat(
        BODY.replace(
            THOUGHT,
            "{% if loop.index > messages|map(attribute='role')|list|length - 2 %}" + THOUGHT + "{% endif %}",
        )
    ),
}
"""Templates that change nothing but thinking."""
NOT_PROVEN = {
    "the last message printed otherwise": chat("{% if loop.last %}<|im_start|>{% endif %}" + BODY),
    "the number of messages at the beginning": chat(before="{{ messages | length }} messages\n"),
    "tools before the last user message": chat(
        "{% if loop.last and tools %}{{ tools | tojson }}{% endif %}" + BODY, before=""
    ),
    "replies without an end": chat(BODY.replace("<|im_end|>\n", "{{ '\\n' }}")),
    "what follows depends on the tools": chat(BODY.replace("\n" + THOUGHT, "{{ '!' if tools }}\n" + THOUGHT)),
    "a conversation of one message only": chat("{{ raise_exception('one only') if loop.index > 1 }}" + BODY),
}


def test_prefix_preserving_templates_are_proven() -> None:
    for what, source in {**PROVEN, **EXTENDED}.items():
        proven = what in PROVEN
        assert prove(ChatTemplate(tokenizer(), source, {})) is proven, what
        made = renderer(source)
        assert (made.how, made.name) == ("template", f"template ({'proven' if proven else 'extended'})"), what


def test_templates_that_change_the_past_are_not_proven() -> None:
    prompt = tokenizer().encode("<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n")
    for what, source in NOT_PROVEN.items():
        made = renderer(source)
        assert (made.how, made.name) == ("full", "template"), what
        assert made.extend(prompt, tokenizer().encode("Hi.<|im_end|>"), [user("Go on.")], None) is None, what


@pytest.mark.parametrize(
    ("arguments", "given_", "printed"),
    [
        ("{{ c.function.arguments | tojson }}", '{"a":1}', '{"a": 1}'),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}", '{"a":1}', "a=1;"),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}", '{"a":', "()"),
        ("{{ '' + c.function.arguments }}", '{"a":1}', '{"a":1}'),
        ("{{ '' + c.function.arguments }}", '{"a":', '{"a":'),
    ],
)
def test_arguments_have_the_type_that_the_template_takes(arguments: str, given_: str, printed: str) -> None:
    body = BODY.replace(CALLS, "{% for c in m.tool_calls or [] %}(" + arguments + "){% endfor %}")
    messages = [user("Hi."), reply("", None, ("1", "a", given_))]
    text = ChatTemplate(tokenizer(), chat(body), {}).text(messages, None)
    assert printed in text


def test_content_is_split_where_the_template_wants_parts() -> None:
    body = BODY.replace("{{ m.content }}", "{% for part in m.content %}{{ part.text }}{% endfor %}")
    assert "Hello." in ChatTemplate(tokenizer(), chat(body), {}).text([user("Hello.")], None)
    assert "Hello." in ChatTemplate(tokenizer(), chat(), {}).text([user("Hello.")], None)


def test_options_reach_the_template() -> None:
    source = chat(after=CUE + "{% if enable_thinking is false %}<think></think>{% endif %}")
    made = renderer(source, template_kwargs={"enable_thinking": False})
    assert made.text(made.render([user("Hello.")], None)).endswith("<think></think>")


CALL = '<tool_call>\n{"name": "bash", "arguments": {"é": 1}}\n</tool_call>'


def test_template_replies_are_parsed() -> None:
    """Malformed calls stay text."""
    made = renderer(chat())
    tail = made.render([user("Hello.")], None)
    broken = '<tool_call>\n{"name": "bash", "argu\n</tool_call>'
    for sampled, content, reasoning, calls in (
        ("Done.", "Done.", None, ()),
        ("<think>\nWhy?\n</think>\n\nDone.", "Done.", "Why?", ()),
        (f"On it.\n{CALL}", "On it.", None, (("bash", '{"é": 1}', None),)),
        (broken, broken, None, ()),
    ):
        parsed = made.parse(tokenizer().encode(sampled + "<|im_end|>"), tail, TOOLS)
        assert (parsed.content, parsed.reasoning, parsed.calls) == (content, reasoning, calls)


def test_thinking_opened_by_the_prompt_is_parsed() -> None:
    made = renderer(PROVEN["thinking opened by the prompt"])
    prompt = made.render([user("Hello.")], None)
    parsed = made.parse(tokenizer().encode("Why?\n</think>\nDone.<|im_end|>"), prompt, None)
    assert (parsed.content, parsed.reasoning) == ("Done.", "Why?")


@settings(max_examples=50, deadline=None)
@given(st.deferred(lambda: st.lists(st.integers(0, len(tokenizer()) - 1), max_size=12)))
def test_template_never_retracts_plain_text(completion: list[int]) -> None:
    made = _made(chat())
    assert made.streams
    whole = made.parse(completion, [], None)
    for n in range(len(completion) + 1):
        assert whole.content.startswith(made.parse(completion[:n], [], None, ended=False).content)
