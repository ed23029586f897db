"""Conversation: which turn a history extends, and the ids of its prompt."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import anyio
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_core.api.engine import Sampled
from swe_core.api.messages import Message, message_key
from swe_core.errors import ContextOverflow
from swe_core.tokens.conversation import Conversation, Prompt
from swe_core.tokens.counting import counted
from swe_core.tokens.renderer import TAIL, Parsed, Renderer, Tools
from swe_testing.waiting import until

from ..token_turns import all_ids, make_sampled

STOP, THINK, AB, LONG = 1, 2, 3, 4
ROLES = {"system": 10, "user": 11, "assistant": 12, "tool": 13}
TOOLS = [{"type": "function", "function": {"name": "bash"}}]


class Toy(Renderer):
    """A format of one id per character, and one for "ab".

    A full render leaves the reasoning out, as many templates do. It cannot extend by a message with "?".
    """

    name = "toy"
    how = "bridge"
    stop_ids = frozenset({STOP})
    streams = True
    finds_calls = True

    def __init__(self, *, extends: bool = True, closes: bool = True) -> None:
        self.extends, self.closes = extends, closes
        self.rendered = 0

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        self.rendered += 1
        head = [9, *map(ord, orjson.dumps(tools).decode())]
        return [*head, *(token for message in messages for token in self._one(message)), ROLES["assistant"]]

    def extend(
        self, tail: Sequence[int], completion: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        assert messages
        assert all(message["role"] != "assistant" for message in messages)
        assert tail[-1] == ROLES["assistant"]
        cut = completion[-1] != STOP
        if not self.extends or (cut and not self.closes) or any("?" in m["content"] for m in messages):
            return None
        new = [token for message in messages for token in self._one(message)]
        return [*([STOP] if cut else []), *new, ROLES["assistant"]]

    def parse(self, completion: Sequence[int], tail: Sequence[int], tools: Tools) -> Parsed:
        raise NotImplementedError

    def text(self, ids: Sequence[int]) -> str:
        return "".join("ab" if token == AB else chr(token) for token in ids)

    def _one(self, message: Message) -> list[int]:
        return [ROLES[message["role"]], *self.encode(message["content"]), STOP]

    def encode(self, text: str) -> list[int]:
        return [AB if char == "\0" else ord(char) for char in text.replace("ab", "\0")]


def say(role: str, content: str, **more: str) -> Message:
    return {"role": role, "content": content, **more}


def sampled(prompt: Prompt, ids: Sequence[int]) -> Sampled:
    return make_sampled(prompt.new_ids, ids, prompt.extends, rendered=prompt.rendered, cause=prompt.cause)


def prompt_ids(prompt: Prompt) -> list[int]:
    ids = [*all_ids(prompt.extends), *prompt.new_ids.tolist()]
    assert orjson.loads(b"[%b]" % prompt.json) == ids
    assert prompt.length == len(ids)
    assert prompt.tail == ids[-TAIL:]
    assert (prompt.cause is None) == (prompt.extends is not None)
    return ids


class Talk:
    """One rollout: what a client asks, and what the policy samples."""

    def __init__(self, renderer: Toy | None = None) -> None:
        self.renderer = renderer or Toy()
        self.conversation = Conversation(self.renderer)
        self.prompts: list[Prompt] = []

    def prepare(self, history: Sequence[Message], tools: Tools) -> Prompt:
        """Without an event loop, which a short history does not need."""
        with pytest.raises(StopIteration) as done:
            self.conversation.prepare(history, tools).send(None)
        return cast(Prompt, done.value.value)

    def ask(
        self,
        history: Sequence[Message],
        reply: str = "ok",
        *,
        thought: str = "",
        cut: bool = False,
        split: bool = False,
        tools: Tools = TOOLS,
    ) -> tuple[Prompt, Sampled, Message]:
        prompt = self.prepare(history, tools)
        prompt_ids(prompt)
        self.prompts.append(prompt)
        visible = [ord(c) for c in reply] if split else self.renderer.encode(reply)
        ids = [*([THINK, *map(ord, thought), THINK] if thought else []), *visible]
        ids += [] if cut and ids else [STOP]  # a turn has one id at least
        tokens = sampled(prompt, ids)
        message = say("assistant", reply, **({"reasoning_content": thought} if thought else {}))
        self.conversation.add(prompt, tokens, message)
        return prompt, tokens, message

    def say(self, history: Sequence[Message], message: Message) -> Sampled:
        """A turn whose reply is `message`."""
        prompt = self.prepare(history, TOOLS)
        tokens = sampled(prompt, [len(self.prompts), STOP])
        self.prompts.append(prompt)
        self.conversation.add(prompt, tokens, message)
        return tokens


USER = say("user", "fix it")


def test_turn_extends_the_previous_by_new_messages_only() -> None:
    talk = Talk()
    _, first, reply = talk.ask([USER], "run", thought="long thought")
    prompt, _, _ = talk.ask([USER, {"role": "assistant", "content": " run\n"}, say("tool", "done")])
    assert prompt.extends is first
    assert prompt.rendered == "bridge"
    assert prompt_ids(prompt)[len(all_ids(first)) :] == [13, *map(ord, "done"), STOP, 12]
    assert talk.renderer.rendered == 1
    assert reply["reasoning_content"] == "long thought"


def test_first_turn_of_each_agent_starts_a_chain() -> None:
    talk = Talk()
    first, _, _ = talk.ask([USER])
    other, _, _ = talk.ask([say("system", "you review"), USER])
    again, _, _ = talk.ask([USER])
    few_shot, _, _ = talk.ask([USER, say("assistant", "an example"), USER])
    assert [first.cause, other.cause, again.cause] == ["start", "start", "start"]
    assert few_shot.cause == "rewritten"  # it stands where our own reply stood


def test_interleaved_agents_keep_their_chains() -> None:
    talk = Talk()
    main, helper = [say("user", "main")], [say("user", "helper")]
    for number in range(3):
        for history in (main, helper):
            prompt, _, reply = talk.ask(history, f"step {number}")
            assert (prompt.cause == "start") == (number == 0)
            history += [reply, say("tool", f"result {number}")]
    assert talk.renderer.rendered == 2


def test_extended_history_can_be_extended_again() -> None:
    talk = Talk()
    _, first, reply = talk.ask([USER])
    branches = [talk.ask([USER, reply, say("tool", text)])[1] for text in ("a", "a", "bb")]
    assert [branch.extends for branch in branches] == [first, first, first]
    for branch in branches:  # each keeps its own ids, though they share the text of the first
        text = "bb" if branch is branches[2] else "a"
        prompt, _, _ = talk.ask([USER, reply, say("tool", text), say("assistant", "ok"), USER])
        assert prompt.extends in branches


def test_rewritten_message_forks() -> None:
    talk = Talk()
    history = [say("system", "s"), USER]
    _, _, reply = talk.ask(history, "first")
    longer = [*history, reply, say("tool", "result")]
    _, _, second = talk.ask(longer, "second")
    edited_user = [history[0], say("user", "fix all"), reply, say("tool", "result")]
    edited_reply = [*history, say("assistant", "what I never said"), say("tool", "result")]
    dropped_middle = [history[0], say("user", "summary"), second, say("tool", "more")]
    for rewritten in (edited_user, edited_reply, dropped_middle):
        prompt, _, _ = talk.ask(rewritten)
        assert prompt.cause == "rewritten"
    compacted, _, _ = talk.ask([history[0], say("user", "summary of it all")])
    assert compacted.cause == "start"


def test_changed_tools_fork() -> None:
    talk = Talk()
    _, _, reply = talk.ask([USER])
    history = [USER, reply, say("tool", "x")]
    assert talk.ask(history, tools=None)[0].cause == "rewritten"
    same = [{"function": {"name": "bash"}, "type": "function"}]
    assert talk.ask(history, tools=same)[0].cause is None


def test_foreign_reply_is_rendered_and_extends_matching_ids() -> None:
    talk = Talk()
    _, first, reply = talk.ask([USER])
    foreign = [USER, reply, say("tool", "x"), say("assistant", "not ours"), say("tool", "y")]
    prompt, _, _ = talk.ask(foreign)
    assert (prompt.extends, prompt.rendered) == (first, "full")
    _, _, thought = talk.ask([USER], "deep", thought="lost in a render")
    prompt, _, _ = talk.ask([USER, thought, *foreign[2:]])
    assert prompt.cause == "rewritten"


@pytest.mark.parametrize(
    ("settings", "reply", "cause", "extended"),
    [
        ({"extends": False}, {}, None, True),
        ({"extends": False}, {"thought": "dropped by a render"}, "template", False),
        ({"extends": False}, {"reply": "abc", "split": True}, "retokenised", False),
        ({"closes": False}, {"cut": True, "thought": "t"}, "truncated", False),
        ({"closes": False}, {"cut": True}, None, True),
        ({}, {"cut": True}, None, True),
    ],
)
def test_full_render_has_a_cause(
    settings: dict[str, Any], reply: dict[str, Any], cause: str | None, extended: bool
) -> None:
    talk = Talk(Toy(**settings))
    _, first, message = talk.ask([USER], **{"reply": "ok", **reply})
    prompt, _, _ = talk.ask([USER, message, say("tool", "x")])
    assert prompt.cause == cause
    assert (prompt.extends is first) == extended
    assert prompt.rendered == ("full" if settings else "bridge")


def test_reasoning_distinguishes_sibling_turns() -> None:
    talk = Talk()
    _, one, said_one = talk.ask([USER], "run", thought="one")
    _, two, said_two = talk.ask([USER], "run", thought="two")
    silent = say("assistant", "run")
    for reply, expected in ((said_one, one), (said_two, two), (silent, two)):
        assert talk.prepare([USER, reply, say("tool", "x")], TOOLS).extends is expected


def call(id_: str, arguments: str, thought: str = "") -> Message:
    function = {"name": "bash", "arguments": arguments}
    message = {"content": "", "tool_calls": [{"id": id_, "type": "function", "function": function}]}
    return {"role": "assistant", **message, **({"reasoning_content": thought} if thought else {})}


@pytest.mark.parametrize(
    ("one", "other", "sent_back"),
    [
        (call("1", "{}", "t"), call("2", "{}", "u"), call("1", "{}")),
        (call("1", "ls"), call("2", "rm -rf build"), call("1", "{}")),
        (
            call("1", '{"a": 9007199254740993}'),
            call("2", '{"a": 9007199254740992}'),
            call("1", '{"a": 9007199254740992}'),
        ),
        (call("1", "ls"), call("2", "rm -rf build"), call("3", "ls")),
        (call("1", "{}", "t"), call("1", "{}", "u"), call("1", "{}", "t")),
        (call("1", "ls", "t"), call("1", "rm", "u"), call("1", "ls", "u")),
    ],
    ids=[
        "id, reasoning dropped",
        "id, arguments emptied",
        "id, arguments of the other",
        "arguments, ids made anew",
        "reasoning",
        "arguments before reasoning",
    ],
)
def test_history_extends_the_turn_it_holds(one: Message, other: Message, sent_back: Message) -> None:
    talk = Talk()
    first, second = talk.say([USER], one), talk.say([USER], other)
    history = [USER, sent_back, say("tool", "x")]
    assert talk.prepare(history, TOOLS).extends is first
    assert talk.prepare([USER, other, say("tool", "x")], TOOLS).extends is second
    after = talk.say(history, say("assistant", "ok"))
    talk.say([USER, other, say("tool", "x")], say("assistant", "ok"))
    longer = talk.prepare([*history, say("assistant", "ok"), USER], TOOLS)
    assert longer.extends is after  # "ok" was said twice, but after the same call once


class Placed(Toy):
    """Notes whether it works in the event loop's thread."""

    def __init__(self, **settings: bool) -> None:
        super().__init__(**settings)
        self.loop = threading.get_ident()
        self.done: list[tuple[str, bool]] = []

    def render(self, messages: Sequence[Message], tools: Tools) -> list[int]:
        self.done.append(("render", threading.get_ident() == self.loop))
        return super().render(messages, tools)

    def extend(
        self, tail: Sequence[int], completion: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> list[int] | None:
        self.done.append(("extend", threading.get_ident() == self.loop))
        return super().extend(tail, completion, messages, tools)


LENGTHY = "x" * 30_000
CALL = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": LENGTHY}}


@pytest.mark.parametrize(
    ("new", "extends", "done"),
    [
        ([say("tool", "short")], True, [("extend", True)]),
        ([say("tool", LENGTHY)], True, [("extend", False)]),
        ([say("tool", LENGTHY)], False, [("extend", False), ("render", False)]),
        ([say("tool", "short")], False, [("extend", True), ("render", True)]),
        ([{**say("assistant", ""), "tool_calls": [CALL]}, say("tool", "")], True, [("render", False)]),
        ([say("assistant", "", reasoning_content=LENGTHY), say("user", "")], True, [("render", False)]),
        ([say("tool", "")] * 1000, True, [("extend", False)]),
    ],
)
@pytest.mark.anyio
async def test_long_messages_do_not_block_the_event_loop(
    new: list[Message], extends: bool, done: list[tuple[str, bool]]
) -> None:
    talk = Talk(Placed(extends=extends))
    _, _, reply = talk.ask([USER])
    renderer = cast(Placed, talk.renderer)
    renderer.done.clear()
    prompt = await talk.conversation.prepare([USER, reply, *new], TOOLS)
    prompt_ids(prompt)
    assert renderer.done == done


@pytest.mark.anyio
async def test_long_tools_do_not_block_the_event_loop() -> None:
    talk = Talk(Placed())
    tools = [{"type": "function", "function": {"name": LENGTHY}}]
    prompt_ids(await talk.conversation.prepare([USER], tools))
    assert cast(Placed, talk.renderer).done == [("render", False)]


class Counted(Placed):
    """Counts what it renders, as encoders do, and waits for `free` where that is a million characters."""

    def __init__(self) -> None:
        super().__init__()
        self.free = threading.Event()
        self.begun: list[str] = []

    def encode(self, text: str) -> list[int]:
        if len(text) > 1_000_000:
            self.begun.append(text[-1])
            assert self.free.wait(30)
        return counted(text, super().encode, len)


@pytest.mark.anyio
async def test_prompt_beyond_the_context_is_abandoned() -> None:
    talk = Talk(Counted())
    with pytest.raises(ContextOverflow, match=r"is 5000 tokens.* or more"):
        await talk.conversation.prepare([USER, say("tool", LENGTHY)], TOOLS, 5000)
    prompt_ids(await talk.conversation.prepare([USER, say("tool", LENGTHY)], TOOLS, 30_000))


@pytest.mark.anyio
async def test_huge_prompts_leave_threads_to_others() -> None:
    renderer, huge = Counted(), anyio.CapacityLimiter(1)
    rollouts = [Conversation(renderer, huge) for _ in range(3)]
    async with anyio.create_task_group() as group:
        for conversation, last in zip(rollouts[:2], "xy", strict=True):
            group.start_soon(conversation.prepare, [say("user", "." * 1_000_001 + last)], None)
        await until(lambda: renderer.begun and huge.statistics().tasks_waiting)
        try:
            with anyio.fail_after(20):
                await rollouts[2].prepare([say("user", LENGTHY)], None)
            assert len(renderer.begun) == 1
        finally:
            renderer.free.set()
    assert sorted(renderer.begun) == ["x", "y"]


@pytest.mark.anyio
async def test_long_prompts_of_a_rollout_take_one_thread() -> None:
    """Threads are shared: 60 prompts of one rollout made others wait for 43 seconds."""
    renderer = Counted()
    conversation = Conversation(renderer)
    async with anyio.create_task_group() as group:
        for last in "xyz":
            group.start_soon(conversation.prepare, [say("user", "." * 1_000_001 + last)], None)
        await until(lambda: renderer.begun and conversation._long.statistics().tasks_waiting == 2)
        renderer.free.set()
    assert sorted(renderer.begun) == ["x", "y", "z"]


def test_history_that_ends_with_a_reply_is_rendered() -> None:
    talk = Talk()
    _, _, reply = talk.ask([USER])
    prompt, _, _ = talk.ask([USER, reply])
    assert prompt.rendered == "full"


def test_concurrent_prompts_keep_their_own_ids() -> None:
    """Two calls in flight at once keep their ids apart."""
    talk = Talk()
    _, first, reply = talk.ask([USER])
    slow = talk.prepare([USER, reply, say("tool", "slow")], TOOLS)
    talk.ask([USER, reply, say("tool", "fast, and longer")])
    talk.conversation.add(slow, sampled(slow, [ord("z"), STOP]), say("assistant", "z"))
    after = talk.prepare([USER, reply, say("tool", "slow"), say("assistant", "z"), USER], TOOLS)
    assert after.extends is not None
    assert after.extends.extends is first
    prompt_ids(after)


words = st.text(alphabet="abc ?", max_size=4)
replies = st.fixed_dictionaries(
    {"reply": words, "thought": st.sampled_from(["", "t", "u"]), "cut": st.booleans(), "split": st.booleans()}
)
steps = st.lists(
    st.tuples(
        st.integers(min_value=0),  # the history to go on from
        st.lists(st.tuples(st.sampled_from(["user", "tool"]), words), min_size=1, max_size=2),
        st.sampled_from(["keep", "keep", "keep", "edit", "drop", "forget thought", "tools"]),
        st.integers(min_value=0),  # the message that is changed
        replies,
    ),
    max_size=12,
)


@given(steps, st.booleans(), st.booleans())
def test_any_tree_of_turns_has_correct_prompts(steps: list[Any], extends: bool, closes: bool) -> None:
    """A prompt is the ids of its chain and the rendered rest; it extends a turn whose history agrees."""
    renderer = Toy(extends=extends, closes=closes)
    talk = Talk(renderer)
    histories: list[list[Message]] = [[]]
    asked: dict[int, list[Message]] = {}
    for start, added, change, where, reply in steps:
        history = [dict(message) for message in histories[start % len(histories)]]
        if history and change != "keep":
            index = where % len(history)
            if change == "edit":
                history[index]["content"] += "c"
            elif change == "drop":
                del history[index]
            elif change == "forget thought":
                history[index].pop("reasoning_content", None)
        history += [say(role, content) for role, content in added]
        tools = None if change == "tools" else TOOLS
        prompt, tokens, message = talk.ask(history, tools=tools, **reply)
        asked[id(tokens)] = [*history, message]
        histories.append([*history, message])
        ids = prompt_ids(prompt)
        if prompt.rendered == "full":
            assert ids == renderer.render(history, tools)
        if prompt.extends is None:
            continue
        before = asked[id(prompt.extends)]
        assert [(m["role"], m["content"].strip()) for m in before] == [
            (m["role"], m["content"].strip()) for m in history[: len(before)]
        ]
        if prompt.rendered == "bridge":
            completion = prompt.extends.completion_ids.tolist()
            new = history[len(before) :]
            assert prompt.new_ids.tolist() == renderer.extend([12], completion, new, tools)


def test_long_conversation_stores_its_ids_once() -> None:
    """Turns share the text of their ids: memory grows with the ids, not with turns × ids."""
    talk = Talk()
    history: list[Message] = [USER]
    for number in range(50):
        _, _, reply = talk.ask(history, f"step {number}")
        history += [reply, say("tool", "x" * 500)]
    node = talk.conversation.find(history, TOOLS).turn
    assert node is not None
    last = talk.prepare(history, TOOLS)
    assert len(node.text) == len(last.json) - len(orjson.dumps(last.new_ids.tolist())) + 1
    assert talk.renderer.rendered == 1


def test_known_message_is_not_keyed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn costs what its new messages cost, although clients send copies of the old ones."""
    talk, keyed = Talk(), []
    monkeypatch.setattr(
        "swe_core.tokens.conversation.message_key",
        lambda message: keyed.append(message) or message_key(message),  # type: ignore[func-returns-value]  # None
    )
    history: list[Message] = [say("system", "help"), USER]
    for number in range(20):
        keyed.clear()
        _, _, reply = talk.ask(orjson.loads(orjson.dumps(history)), f"step {number}")
        assert len(keyed) <= 6
        history += [reply, say("tool", "done")]
    assert talk.renderer.rendered == 1


def test_agents_with_equal_later_messages_keep_their_chains() -> None:
    talk = Talk()
    turns = []
    for name in ("first", "second"):
        history = [say("user", name), say("user", "go")]
        _, tokens, reply = talk.ask(history, "done")
        turns.append((tokens, [*history, reply, USER]))
    for tokens, history in turns:
        assert talk.prepare(history, TOOLS).extends is tokens
