"""FamilyRenderer: every chat format of `renderers` that needs no download, on any ids."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swe_core.api.messages import Message
from swe_core.errors import ConfigError
from swe_core.tokens.family_renderer import FAMILIES, FamilyRenderer
from swe_core.tokens.probe_messages import TOOLS, reply, result, user
from swe_core.tokens.renderer import TAIL, Parsed
from swe_core.tokens.reply_reader import ReplyReader
from swe_testing.tokenizer import family_tokens, make_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

FRAGMENTS = [
    "Hello wörld ",
    " \n\n",
    "\u3000",
    "naïve 🎉",
    "assistant\n",
    "<think>\n",
    "</think>",
    "<tool_call>",
    '\n{"name": "bash", "arguments": {"command": "ls"}}\n',
    '{"name": 5, "arguments": {}}',
    '{"name": "bash", "argum',
    '{"name": "bash", "parameters": {}}',
    "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>\n",
    '<invoke name="bash">\n<parameter name="command">ls</parameter>\n</invoke>\n',
    "functions.bash:0",
    "call:bash{command:ls}",
    "function",
    "bash\n",
    "thought\n",
    "analysis",
    "[" * 3,
]
NEXT: list[list[Message]] = [
    [user("Go on.")],
    [result("functions.bash:0", "one line")],
    [result("functions.bash:0", "one line"), result("functions.bash:1", "another")],
    [result("functions.bash:0", "one line"), user("Go on.")],
]
MADE = sorted(FAMILIES - {"gpt-oss"})  # whose vocabulary would be downloaded
WHOLE = frozenset({"deepseek-v4", "gemma4", "inkling", "llama-3"})
"""Families in which text may turn into a call: they do not stream."""
KINDS = frozenset({"deepseek-v3", "gemma4", "glm-4.5", "qwen3"})
"""Calls as JSON and in tags, with and without streaming. The other families are breadth."""


def each(families: Iterable[str]) -> list[Any]:
    """A test's cases, one a family."""
    return [pytest.param(one, marks=() if one in KINDS else pytest.mark.slow) for one in sorted(families)]


@cache
def tokenizer_of(family: str) -> PreTrainedTokenizerFast:
    return make_tokenizer(family_tokens(family))


@cache
def made(family: str) -> FamilyRenderer:
    return FamilyRenderer(tokenizer_of(family), family)


@st.composite
def completions(draw: st.DrawFn, family: str) -> list[int]:
    """Ids that mean something to the family, and some that mean nothing."""
    tokenizer = tokenizer_of(family)
    special = tokenizer.convert_tokens_to_ids(list(family_tokens(family)))
    piece = st.one_of(
        st.sampled_from([[id_] for id_ in special]),
        st.sampled_from([tokenizer.encode(text) for text in FRAGMENTS]),
        st.integers(0, len(tokenizer) - 1).map(lambda id_: [id_]),
    )
    ids = [id_ for ids in draw(st.lists(piece, max_size=8)) for id_ in ids]
    return ids + draw(st.sampled_from([[], *([id_] for id_ in sorted(made(family).stop_ids))]))


@st.composite
def prompts(draw: st.DrawFn, family: str) -> list[int]:
    """Prompts that are longer than their tail, with a special token's name here and there in their text."""
    name = draw(st.sampled_from(["", *family_tokens(family)]))
    text = draw(st.sampled_from(["short", "word " * 300 + name, name + "word " * 300, name]))
    asked = reply("I look.", "Why?", ("functions.bash:0", "bash", '{"command": "ls"}'))
    conversation = [user(text), asked, result("functions.bash:0", text)]
    return made(family).render(conversation[: draw(st.sampled_from([1, 3]))], TOOLS)


@pytest.mark.parametrize("family", each(MADE))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_prompt_tail_suffices_to_extend_and_parse(family: str, data: st.DataObject) -> None:
    renderer = made(family)
    prompt, completion = data.draw(prompts(family)), data.draw(completions(family))
    messages = data.draw(st.sampled_from(NEXT))
    assert renderer.extend(prompt[-TAIL:], completion, messages, TOOLS) == renderer.extend(
        prompt, completion, messages, TOOLS
    )
    assert renderer.parse(completion, prompt[-TAIL:], TOOLS) == renderer.parse(completion, prompt, TOOLS)


@pytest.mark.parametrize("family", each({*MADE} - WHOLE))
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_text_is_never_retracted(family: str, data: st.DataObject) -> None:
    """Neither where all is parsed after each id, nor where a growing reply is read in parts."""
    renderer = made(family)
    tail, completion = data.draw(prompts(family))[-TAIL:], data.draw(completions(family))
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    ids: list[int] = []
    reader, sampled, read = ReplyReader(renderer, ids, tail, TOOLS), iter(completion), [("", "")]
    for size in cycle(sizes):
        if not (more := list(islice(sampled, size))):
            break
        ids += more
        if reader.may_tell():
            read.append(reader.read())
    parsed = [renderer.parse(completion[:n], tail, TOOLS, ended=False) for n in range(len(completion) + 1)]
    whole = renderer.parse(completion, tail, TOOLS)
    for seen in ([*read, told(whole)], [*map(told, parsed), told(whole)]):
        for before, after in pairwise(seen):
            assert after[0].startswith(before[0])
            assert after[1].startswith(before[1])


def told(parsed: Parsed) -> tuple[str, str]:
    return parsed.reasoning or "", parsed.content


def test_all_families_except_known_ones_stream() -> None:
    assert {family for family in MADE if not made(family).streams} == WHOLE


def test_thinking_marked_in_plain_text_does_not_stream() -> None:
    """The first characters of a marker would be taken for text."""
    special = [token for token in family_tokens("deepseek-v3") if "think" not in token]
    assert not FamilyRenderer(make_tokenizer(special), "deepseek-v3").streams
    assert made("deepseek-v3").streams


def test_bridge_that_disagrees_with_its_format_is_not_used() -> None:
    """In renderers 0.1.12 these two leave out the line's end after `</assistant>`."""
    assert {family for family in MADE if made(family).how == "full"} == {"laguna-m.1", "laguna-xs.2"}
    tokenizer = tokenizer_of("laguna-m.1")
    renderer = made("laguna-m.1")
    sampled = tokenizer.encode("</think>Done.</assistant>")
    assert renderer.extend(renderer.render([user("Go.")], None), sampled, [user("Go on.")], None) is None


REPLIES = json.loads((Path(__file__).parent / "qwen3_replies.json").read_text())
"""What is sampled, its text, its reasoning, and the names and arguments of its calls."""
NESTED = '{"a": ' * 600 + "1" + "}" * 600
DEEP = '<tool_call>\n{"name": "bash", "arguments": ' + "[" * 2_000


@pytest.mark.parametrize(
    ("sampled", "content", "reasoning", "calls"),
    [
        *(pytest.param(*row, id=name) for name, row in REPLIES.items()),
        pytest.param(
            f'<tool_call>\n{{"name": "bash", "arguments": {NESTED}}}\n</tool_call>',
            *("", None, [["bash", NESTED]]),
            id="nested",
        ),
        pytest.param(
            f"<think>\nWhy?\n</think>\n\n{DEEP}</tool_call><|im_end|>",
            f"{DEEP}</tool_call>",
            "Why?",
            [],
            id="nested too deep",
        ),
    ],
)
def test_qwen3_replies(sampled: str, content: str, reasoning: str | None, calls: list[list[str]]) -> None:
    renderer = made("qwen3")
    ids = tokenizer_of("qwen3").encode(sampled)
    parsed = renderer.parse(ids, renderer.render([user("Go.")], None), None)
    assert (parsed.content, parsed.reasoning) == (content, reasoning)
    assert parsed.calls == tuple((name, arguments, None) for name, arguments in calls)


def test_unfinished_call_is_not_text() -> None:
    renderer = made("qwen3")
    ids = tokenizer_of("qwen3").encode('Look: \n<tool_call>\n{"name": "ba')
    assert renderer.parse(ids, [], None, ended=False).content == "Look:"


def test_qwen3_reply_is_extended_unless_ids_follow_the_stop_token() -> None:
    renderer, new = made("qwen3"), "\n<|im_start|>user\nNaïve 🎉?<|im_end|>\n<|im_start|>assistant\n"
    prompt = renderer.render([user("Go.")], None)
    for completion, text in (
        ("Done.<|im_end|>", new),
        ("Do", f"<|im_end|>{new}"),
        ("Done.<|im_end|> and more", None),
    ):
        more = renderer.extend(prompt, tokenizer_of("qwen3").encode(completion), [user("Naïve 🎉?")], None)
        assert (None if more is None else renderer.text(more)) == text


def test_tool_results_carry_names_where_the_format_prints_them() -> None:
    renderer = made("gemma4")
    tokenizer = tokenizer_of("gemma4")
    prompt = renderer.render([user("Go.")], TOOLS)
    calls = "<|tool_call>call:bash{}<tool_call|><|tool_call>call:read{}<tool_call|><|tool_response>"
    both = [result("1", "one"), result("2", "two")]
    more = renderer.text(renderer.extend(prompt, tokenizer.encode(calls), both, TOOLS) or [])
    assert more.startswith("response:bash{")
    assert "response:read{" in more
    assert renderer.extend(prompt, tokenizer.encode(calls), both[:1], TOOLS) is None


def test_tokenizer_without_the_tokens_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"'qwen3' .* does not fit .*<\|im_start\|>.* not found"):
        FamilyRenderer(make_tokenizer(), "qwen3")


def test_unknown_format_option_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"enable_thinkin.*Allowed: enable_thinking"):
        FamilyRenderer(tokenizer_of("qwen3"), "qwen3", {"enable_thinkin": False})


def test_option_for_thinking_in_history_wins() -> None:
    tokenizer = tokenizer_of("glm-5")
    sampled = tokenizer.encode("</think>Done.<|user|>")
    for clear, extends in ((True, False), (False, True)):
        renderer = FamilyRenderer(tokenizer, "glm-5", {"clear_thinking": clear})
        prompt = renderer.render([user("Go.")], None)
        assert (renderer.extend(prompt, sampled, [user("Go on.")], None) is not None) is extends
    assert FamilyRenderer(tokenizer, "glm-5").extend(prompt, sampled, [user("Go on.")], None) is not None
