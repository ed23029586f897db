"""What becomes of a conversation with our prompts, and with prompts that are rendered anew."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import pytest

from swe_core.api.messages import Message
from swe_core.drift.measure import Drift, measure
from swe_core.drift.recorded import RecordedConversation, RecordedTurn
from swe_core.tokens.family_renderer import FamilyRenderer
from swe_core.tokens.probe_messages import TOOLS, reply, result, user
from swe_core.tokens.template_renderer import ChatTemplate, TemplateRenderer
from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer

pytest.importorskip("trl", reason="the chat templates are in TRL")


@cache
def qwen3() -> tuple[FamilyRenderer, ChatTemplate]:
    source = (files("trl") / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    tokenizer = make_tokenizer(QWEN3_TOKENS, chat_template=source, eos_token="<|im_end|>")
    return FamilyRenderer(tokenizer, "qwen3"), ChatTemplate(tokenizer, source, {})


def session(*messages: Message, sampled: dict[int, list[int]] | None = None) -> list[RecordedTurn]:
    """Each reply is a turn, whose request is all before it."""
    places = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    known = sampled or {}
    return [RecordedTurn(messages[:at], TOOLS, messages[at], known.get(n)) for n, at in enumerate(places)]


def drift(*turns: RecordedTurn) -> Drift:
    return measure(RecordedConversation("c", turns), *qwen3())


CALL = ("call00001", "bash", '{"command": "ls"}')
WORK = [
    user("Fix it."),
    reply("I look.", "Where is it?", CALL),
    result("call00001", "one.py"),
    reply("Done.", "It was easy."),
]


def test_measure_of_a_session_in_one_row() -> None:
    found = drift(*session(*WORK))
    assert (found.turns, found.exact, found.refused, found.difference) == (2, 0, None, None)
    assert found.ours == found.anew
    assert (found.ours.rows, found.ours.extended, found.ours.forks, found.ours.lost) == (1, 1, [], 0)
    assert found.sampled > 20


def test_measure_names_thinking_that_is_dropped_after_a_user_message() -> None:
    """Qwen3's template drops the thinking of earlier replies, our prompts keep it."""
    found = drift(*session(*WORK, user("And the tests?"), reply("They pass.", "Let me see.")))
    assert (found.ours.rows, found.ours.broken, found.ours.lost) == (1, 0, 0)
    assert (found.anew.rows, found.anew.broken, found.anew.causes) == (2, 1, {"template": 1})
    difference = found.difference
    assert difference is not None
    assert (difference.turn, difference.message, difference.role) == (2, 1, "assistant")
    assert difference.before.startswith("<think>\nWhere is it?")
    assert difference.after.startswith("I look.")
    thinking = [qwen3()[1].ids(f"<think>\n{text}\n</think>\n\n") for text in ("Where is it?", "It was easy.")]
    assert found.anew.lost == sum(map(len, thinking)), "the rest of both replies stays as it was sampled"
    assert found.anew.repeated > found.sampled


def test_measure_takes_sampled_ids_from_the_record() -> None:
    template = qwen3()[1]
    single = [id_ for letter in "Done." for id_ in template.ids(letter)]
    sampled = {0: [*single, template.ids("<|im_end|>")[0]]}
    found = drift(*session(user("Fix it."), reply("Done."), user("Sure?"), reply("Yes."), sampled=sampled))
    assert found.exact == 1
    assert (found.ours.rows, found.ours.lost) == (1, 0)
    assert found.anew.causes == {"retokenised": 1}
    assert 0 < found.anew.lost <= len(single)
    assert found.difference is not None
    assert (found.difference.turn, found.difference.message) == (1, 1)
    other = drift(*session(*WORK, sampled={0: [5, 6, 7]}))  # of another tokenizer
    assert (other.exact, other.ours.rows) == (0, 1)


def test_measure_says_what_the_template_refuses() -> None:
    renderer, _ = qwen3()
    strict = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
    source = strict + "<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    tokenizer = make_tokenizer(QWEN3_TOKENS, chat_template=source, eos_token="<|im_end|>")
    found = measure(RecordedConversation("c", session(*WORK)), renderer, ChatTemplate(tokenizer, source, {}))
    assert (found.turns, found.skipped) == (1, 1)
    assert found.refused is not None
    assert found.refused.startswith("turn 1: ")
    assert "no tools" in found.refused


def test_measure_of_a_template_that_never_extends() -> None:
    """Our prompts are then rendered anew too, and both sides are the same."""
    source = "{{ messages | length }}" + (files("trl") / "chat_templates" / "qwen3.jinja").read_text("utf-8")
    tokenizer = make_tokenizer(QWEN3_TOKENS, chat_template=source, eos_token="<|im_end|>")
    renderer = TemplateRenderer(tokenizer, source)
    assert renderer.how == "full"
    found = measure(RecordedConversation("c", session(*WORK)), renderer, ChatTemplate(tokenizer, source, {}))
    assert (found.ours.broken, found.anew.broken) == (1, 1)
    assert found.ours.causes == found.anew.causes
