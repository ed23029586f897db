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
from swe_core.tokens.template_renderer import ChatTemplate
from swe_testing.tokenizer import QWEN3_TOKENS, make_tokenizer

pytest.importorskip("trl")


@cache
def qwen3() -> tuple[FamilyRenderer, ChatTemplate]:
    source = (files("trl") / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    tokenizer = make_tokenizer(QWEN3_TOKENS, chat_template=source, eos_token="<|im_end|>")
    return FamilyRenderer(tokenizer, "qwen3"), ChatTemplate(tokenizer, source, {})


def session(*messages: Message, sampled: dict[int, list[int]] | None = None) -> list[RecordedTurn]:
    """Each reply is a turn, whose request is all before it."""
    places = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    known = sampled or {}
    return [
        RecordedTurn(messages[:at], TOOLS, messages[at], known.get(number))
        for number, at in enumerate(places)
    ]


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
    assert (found.turns, found.exact, found.refused) == (2, 0, None)
    assert (found.ours.rows, found.ours.breaks, found.ours.lost) == (1, [], 0)
    assert found.forks == {}
    assert found.sampled > 20


def test_measure_names_thinking_that_is_dropped_after_a_user_message() -> None:
    """Qwen3's template drops the thinking of earlier replies, our prompts keep it."""
    found = drift(*session(*WORK, user("And the tests?"), reply("They pass.", "Let me see.")))
    assert (found.ours.rows, found.ours.lost) == (1, 0)
    (broken,) = found.rendered.breaks
    assert (broken.turn, broken.cause) == (2, "rendered")
    assert "Where is it?" in broken.before
    assert broken.after.startswith("I look.")
    assert found.rendered.rows == 2
    first = drift(*session(*WORK))
    assert found.rendered.lost == first.sampled, "both replies are printed without their thinking"
    assert found.rendered.repeated > first.sampled


def test_measure_takes_sampled_ids_from_the_record() -> None:
    """Ids that the tokenizer would not give for the same text are lost once the text is tokenised again."""
    renderer, template = qwen3()
    single = [id_ for letter in "Done." for id_ in template.ids(letter)]
    stop = min(renderer.stop_ids)
    turns = session(
        user("Fix it."), reply("Done."), user("Sure?"), reply("Yes."), sampled={0: [*single, stop]}
    )
    found = drift(*turns)
    assert found.exact == 1
    assert (found.ours.rows, found.ours.lost) == (1, 0)
    assert found.rendered.lost == len(single) + 1
    assert found.rendered.breaks[0].turn == 1


ANOTHER = session(user("Fix it."), reply("Another."))[0]
NEXT = session(*WORK, user("A"), reply("B"))[-1]
COMPACTED = session(user("Sum up."), reply("I look.", None, CALL), result("call00001", "x"), reply("E"))[-1]


@pytest.mark.parametrize(
    ("then", "forks", "rows"),
    [
        (ANOTHER, {}, 2),
        (NEXT, {}, 1),
        (COMPACTED, {"rewritten": 1}, 2),
    ],
    ids=["a new conversation", "the next turn", "a rewritten history"],
)
def test_measure_counts_rows_as_the_ledger_does(then: RecordedTurn, forks: dict[str, int], rows: int) -> None:
    found = drift(*session(*WORK), then)
    assert (found.ours.rows, found.forks) == (rows, forks)


def test_measure_counts_a_branch() -> None:
    other = session(*WORK, user("C"), reply("D"))[-1]
    found = drift(*session(*WORK), NEXT, other)
    assert (found.ours.rows, found.forks) == (2, {"branch": 1})
    assert found.ours.repeated > 0


def test_measure_says_what_the_template_refuses() -> None:
    renderer, _ = qwen3()
    strict = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    )
    source = strict + "<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    tokenizer = make_tokenizer(QWEN3_TOKENS, chat_template=source, eos_token="<|im_end|>")
    found = measure(RecordedConversation("c", session(*WORK)), renderer, ChatTemplate(tokenizer, source, {}))
    assert found.turns == 1
    assert found.refused is not None
    assert found.refused.startswith("turn 1: ")
    assert "no tools here" in found.refused


def test_measure_without_a_template_renders_by_the_format() -> None:
    found = measure(RecordedConversation("c", session(*WORK)), qwen3()[0])
    assert (found.ours.rows, found.rendered.rows, found.rendered.lost) == (1, 1, 0)
