"""TemplateRenderer: proofs about chat templates, and the prompts extended on their ground."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.errors import ConfigError, RequestRefused
from swe_core.tokens.probe_messages import TOOLS, reply, result, system, user
from swe_core.tokens.renderer import TAIL, Parsed
from swe_core.tokens.reply_parsers import named_parser, response_parser
from swe_core.tokens.template_renderer import ChatTemplate, TemplateRenderer, prove_prefix_preserving
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
}
NOT_PROVEN = {
    "thinking dropped before the last user message": chat(
        BODY.replace(
            THOUGHT,
            "{% if loop.index > messages|map(attribute='role')|list|length - 2 %}" + THOUGHT + "{% endif %}",
        )
    ),
    "the last message printed otherwise": chat("{% if loop.last %}<|im_start|>{% endif %}" + BODY),
    "the number of messages at the beginning": chat(before="{{ messages | length }} messages\n"),
    "tools before the last user message": chat(
        "{% if loop.last and tools %}{{ tools | tojson }}{% endif %}" + BODY, before=""
    ),
    "replies without an end": chat(BODY.replace("<|im_end|>\n", "\n")),
    "another end after calls": chat(
        BODY.replace("<|im_end|>", "{% if m.tool_calls %}<|endoftext|>{% else %}<|im_end|>{% endif %}")
    ),
    "what follows depends on the tools": chat(BODY.replace("\n" + THOUGHT, "{{ '!' if tools }}\n" + THOUGHT)),
    "a conversation of one message only": chat("{{ raise_exception('one only') if loop.index > 1 }}" + BODY),
}


def test_prefix_preserving_templates_are_proven() -> None:
    for what, source in PROVEN.items():
        assert prove_prefix_preserving(ChatTemplate(tokenizer(), source, {})), what
        made = renderer(source)
        assert (made.how, made.name) == ("template", "template (proven)"), what


def test_templates_that_change_the_past_are_not_proven() -> None:
    prompt = tokenizer().encode("<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n")
    for what, source in NOT_PROVEN.items():
        made = renderer(source)
        assert (made.how, made.name) == ("full", "template"), what
        assert made.extend(prompt, tokenizer().encode("Hi.<|im_end|>"), [user("Go on.")], None) is None, what


def test_nothing_is_proven_without_token_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.is_fast", False)
    assert renderer(chat()).how == "full"


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


@settings(deadline=None)
@given(
    source=st.sampled_from(sorted(PROVEN.values())),
    said=texts,
    given_=texts,
    tools=st.sampled_from([None, TOOLS]),
    kind=st.sampled_from(["user", "tool", "both"]),
)
def test_extended_prompt_is_whole(source: str, said: str, given_: str, tools: list | None, kind: str) -> None:
    """Id by id, for any text."""
    made = _made(source)
    answers = [result("call00001", given_), result("call00002", given_)] if kind != "user" else []
    messages = answers + ([user(given_)] if kind != "tool" else [])
    calls = [("call00001", "bash", "{}"), ("call00002", "read", "{}")] if answers else []
    asked = reply(said, None, *calls)
    before = [system("Be terse."), user("Hello.")]
    prompt = made.render(before, tools)
    whole = made.render([*before, asked, *messages], tools)
    completion = tokenizer().encode(said + "<|im_end|>")  # as sampled, which the template may print otherwise
    more = made.extend(prompt[-TAIL:], completion, messages, tools)
    assert more
    assert whole[-len(more) - 1 :] == [completion[-1], *more]


def test_cut_reply_is_closed_and_ids_after_the_end_are_not_extended() -> None:
    made = renderer(chat())
    prompt = made.render([user("Hello.")], None)
    more = made.extend(prompt, tokenizer().encode("I am cut he"), [user("Go on.")], None)
    assert made.text(more or []) == "<|im_end|>\n<|im_start|>user\nGo on.<|im_end|>\n<|im_start|>assistant\n"
    for sampled in ("Done.<|im_end|> and more", "<|im_end|><|im_end|> x"):
        assert made.extend(prompt, tokenizer().encode(sampled), [user("Go on.")], None) is None


def test_token_that_absorbs_following_space_is_extended() -> None:
    """Phi's `<|end|>` takes the line's end along: text cut there would give other ids."""
    source = (files("trl") / "chat_templates" / "phi3.jinja").read_text(encoding="utf-8")
    special = ("<|user|>", "<|assistant|>", "<|system|>", "<|endoftext|>")
    phi = make_tokenizer(special, eos_token="<|endoftext|>")
    from tokenizers import AddedToken

    phi.add_tokens([AddedToken("<|end|>", special=True, normalized=False, rstrip=True)], special_tokens=True)
    made = TemplateRenderer(phi, source)
    assert made.proven
    before = [user("Hello.")]
    whole = made.render([*before, reply("Hi."), user("Go on.")], None)
    completion = phi.encode("Hi.<|end|>", add_special_tokens=False)
    more = made.extend([], completion, [user("Go on.")], None) or []
    assert made.render(before, None) + completion + more == whole


def test_tool_results_carry_names_where_the_template_prints_them() -> None:
    """The name is that of the call, which is known where the reply's calls are."""
    body = BODY.replace(
        "{{ m.content }}",
        "{% if m.role == 'tool' %}{% for o in messages %}{% for c in o.tool_calls or [] %}"
        "{% if c.id == m.tool_call_id %}{{ c.function.name }}: {% endif %}{% endfor %}{% endfor %}{% endif %}"
        "{{ m.content }}",
    )
    made = renderer(chat(body), parser=named_parser(tokenizer(), "qwen3", None))
    assert made.proven
    prompt = made.render([user("Hello.")], None)
    sampled = '<tool_call>{"name": "read", "arguments": {}}</tool_call><|im_end|>'
    more = made.extend(prompt, tokenizer().encode(sampled), [result("1", "text")], None)
    assert "read: text" in made.text(more or [])
    assert made.extend(prompt, tokenizer().encode("Hm.<|im_end|>"), [result("1", "text")], None) is None


def test_template_exception_is_a_rejection_with_its_words() -> None:
    made = renderer(chat("{{ raise_exception('no system messages') if m.role == 'system' }}" + BODY))
    with pytest.raises(RequestRefused, match="no system messages"):
        made.render([system("Be terse."), user("Hello.")], None)
    assert made.proven  # for the conversations that it takes


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


def trl_parser() -> Callable[..., Parsed]:
    from trl.chat_template_utils import add_response_schema

    known = make_tokenizer(SPECIAL, eos_token="<|im_end|>")
    known.chat_template = (files("trl") / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    return response_parser(add_response_schema(known))


@pytest.mark.parametrize("parser", [trl_parser, lambda: named_parser(tokenizer(), "qwen3", "think")])
def test_template_replies_are_parsed(parser: Callable[[], Callable[..., Parsed]]) -> None:
    """Malformed calls, and those that no JSON can say, stay text."""
    made = renderer(chat(), parser=parser())
    assert not made.streams
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
    for broken in (CALL.replace("bash", "\\ud800"), CALL.replace("1", "1e999")):
        parsed = made.parse(tokenizer().encode(broken), tail, TOOLS)
        orjson.dumps([parsed.content, parsed.calls])
        assert [arguments for _, arguments, _ in parsed.calls if "Infinity" in arguments] == []
        assert broken in parsed.content or "1e999" in parsed.calls[0][1]


def test_thinking_opened_by_the_prompt_is_parsed() -> None:
    made = renderer(PROVEN["thinking opened by the prompt"], parser=named_parser(tokenizer(), None, "think"))
    prompt = made.render([user("Hello.")], None)
    parsed = made.parse(tokenizer().encode("Why?\n</think>\nDone.<|im_end|>"), prompt, None)
    assert (parsed.content, parsed.reasoning) == ("Done.", "Why?")


def test_unknown_parser_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"'hermes'.*qwen3"):
        named_parser(tokenizer(), "hermes", None)


@settings(max_examples=50, deadline=None)
@given(st.deferred(lambda: st.lists(st.integers(0, len(tokenizer()) - 1), max_size=12)))
def test_template_never_retracts_plain_text(completion: list[int]) -> None:
    made = _made(chat())
    assert made.streams
    whole = made.parse(completion, [], None)
    for n in range(len(completion) + 1):
        assert whole.content.startswith(made.parse(completion[:n], [], None, ended=False).content)
