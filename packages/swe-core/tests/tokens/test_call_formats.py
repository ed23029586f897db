"""Calls come back as they were printed, with any arguments, for the models that docs/agents.md names."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from swe_core.api.engine import EngineSession
from swe_core.api.messages import Message
from swe_core.builtin.vllm import VLLMConfig
from swe_core.interception.server import InterceptionServer
from swe_core.tokens.argument_types import Types
from swe_core.tokens.call_formats import CALL_FORMATS, CallFormat
from swe_core.tokens.guard import Guard
from swe_core.tokens.probe_messages import reply, user
from swe_core.tokens.reply_parser import read_reply, recognise, until
from swe_testing.tokenizer import make_tokenizer
from swe_testing.vllm import ScriptedVLLM

if TYPE_CHECKING:
    from swe_core.tokens.renderer import Renderer

HERE = Path(__file__).parent / "templates"
QWEN = "<|im_end|> <|im_start|> <think> </think> <tool_call> </tool_call> <tool_response> </tool_response>"
GPT = "<|return|> <|start|> <|message|> <|channel|> <|end|> <|call|> <|constrain|>"
LLAMA = "<|eot_id|> <|begin_of_text|> <|start_header_id|> <|end_header_id|> <|python_tag|>"
GEMMA = (
    '<turn|> <bos> <|turn> <|channel> <channel|> <|think|> <|tool> <tool|> <|tool_call> <tool_call|> <|"|> '
    "<|tool_response> <tool_response|>"
)
KIMI = (
    "<|im_end|> <|im_user|> <|im_assistant|> <|im_system|> <|im_middle|> <|tool_calls_section_begin|> "
    "<|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>"
)
GLM = (
    "<|endoftext|> [gMASK] <sop> <|system|> <|user|> <|assistant|> <|observation|> <think> </think> "
    "<tool_call> </tool_call> <arg_key> </arg_key> <arg_value> </arg_value> <tool_response> </tool_response>"
)
DEEPSEEK = (
    "<｜end▁of▁sentence｜> <｜begin▁of▁sentence｜> <｜User｜> <｜Assistant｜> <think> </think> "
    "<｜tool▁calls▁begin｜> <｜tool▁calls▁end｜> <｜tool▁call▁begin｜> "
    "<｜tool▁call▁end｜> <｜tool▁sep｜> <｜tool▁output▁begin｜> <｜tool▁output▁end｜>"
)
MISTRAL = (
    "</s> <s> [INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] "
    "[TOOL_CALLS] [ARGS] [TOOL_RESULTS] [/TOOL_RESULTS]"
)
MODELS = {
    "Qwen2.5": ("qwen2_5", QWEN),
    "Qwen3": ("qwen3", QWEN),
    "Qwen3-Coder": ("qwen3-coder", QWEN),
    "Qwen3.5": ("qwen3_5_think", QWEN),
    "Qwen3.6": ("qwen3_6", QWEN),
    "Qwen3.8": ("qwen3_8", QWEN),
    "Nemotron 3": ("nemotron_3_nano", QWEN),
    "GLM-4.5": ("glm4moe", GLM),
    "Llama 3.1": ("llama3_1", LLAMA),
    "Llama 3.2": ("llama3_2", LLAMA),
    "gpt-oss": ("gptoss", GPT),
    "DeepSeek V3": ("deepseekv3", DEEPSEEK),
    "DeepSeek V3.1": ("deepseek-v3.1", DEEPSEEK),
    "Kimi-K2": ("kimi-k2", KIMI),
    "MiniMax-M2": ("minimax-m2", "[e~[ ]~b] ]~!b[ <think> </think> <minimax:tool_call> </minimax:tool_call>"),
    "Devstral": ("devstral", MISTRAL),
    "Seed-OSS": (
        "seed-oss",
        "<seed:eos> <seed:bos> <seed:think> </seed:think> <seed:tool_call> </seed:tool_call>",
    ),
    "gemma4": ("gemma4_v5", GEMMA),
    "LFM2": ("lfm2_v2", "<|im_end|> <|im_start|> <|tool_call_start|> <|tool_call_end|>"),
}
"""Name → its template, and its special tokens: first those that end a reply and begin a conversation."""
ONE_CALL = {"Llama 3.1", "Llama 3.2", "gpt-oss"}
"""Models whose templates print one call a reply."""


@cache
def tokenizer_of(model: str) -> PreTrainedTokenizerFast:
    name, special = MODELS[model]
    file = HERE / f"{name}.jinja"
    source = (file if file.exists() else files("trl") / "chat_templates" / f"{name}.jinja").read_text()
    tokens = special.split(" ")
    return make_tokenizer(tokens, chat_template=source, eos_token=tokens[0], bos_token=tokens[1])


@cache
def made(model: str) -> Renderer:
    from swe_core.tokens.template_renderer import TemplateRenderer

    tokenizer = tokenizer_of(model)
    return TemplateRenderer(tokenizer, str(tokenizer.chat_template))


def printed(renderer: Renderer, tools: list[dict[str, Any]], said: Message) -> tuple[list[int], list[int]]:
    """A prompt, and a reply to it as the template prints it later."""
    prompt = renderer.render([user("Hello.")], tools)
    whole = renderer.render([user("Hello."), said], tools, cue=False)
    pairs = enumerate(zip(prompt, whole, strict=False))
    sampled = whole[next((n for n, (one, other) in pairs if one != other), len(prompt)) :]
    if renderer.text(prompt).rstrip().endswith("<think>") and "</think>" not in renderer.text(sampled):
        sampled = renderer.tokenizer.encode("\n</think>\n\n", add_special_tokens=False) + sampled
    return prompt, sampled


MARKS = (
    '</parameter> </function> <function=run> <parameter=path> </invoke> <parameter name="a"> '
    "</arg_value> <arg_key> "
    "</tool_call> <tool_call> <think> </think> <|im_end|> [TOOL_CALLS] [ARGS] <|call|> "
    '<|tool_call_end|> <|"|> '
    "<｜tool▁call▁end｜> ``` <|eot_id|> </seed:tool_call> </minimax:tool_call> ]<|tool_call_end|> "
    "}<tool_call|>"
)
ODD = ["  ", "\r\n", "123", "true", "None", "null", "path", "\\n", "), run("]
PIECES = [*MARKS.split(" "), *ODD, *" \n\t\"'\\[]{}<>,:=é🐛\u2028\x85"]
# A string with the end of a value and the begin of the next one is printed as two values are.
TWO_VALUES = re.compile(r"</(?:parameter|arg_value)>\s*<(?:parameter|arg_key)")
texts = (
    st.lists(st.sampled_from(PIECES), max_size=8).map("".join)
    | st.text(st.characters(exclude_categories=["Cs"]))
).filter(lambda text: not TWO_VALUES.search(text))
numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
keys = st.from_regex(r"[a-zé_]{1,4}[-. ]?[a-z0-9]", fullmatch=True)  # gemma4 prints them as they are
anything = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": texts,
    "integer": st.integers(-(2**63), 2**63),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(anything, max_size=3),
    "object": st.dictionaries(keys, anything, max_size=3),
}


@st.composite
def calls(draw: st.DrawFn, most: int) -> tuple[list[dict[str, Any]], list[tuple[str, dict[str, Any]]]]:
    """Tools, and calls of them."""
    tools, drawn = [], []
    for name in draw(st.sampled_from([["run"], ["run", "edit_file"]])):
        names = draw(st.lists(st.sampled_from(["path", "old_str", "a", "n"]), unique=True, max_size=3))
        kinds = {key: draw(st.sampled_from(sorted(VALUES))) for key in names}
        properties = {key: {"type": kind, "description": "A value."} for key, kind in kinds.items()}
        parameters = {"type": "object", "properties": properties, "required": []}
        function = {"name": name, "description": "Do it.", "parameters": parameters}
        tools.append({"type": "function", "function": function})
        drawn.append(
            st.fixed_dictionaries({key: VALUES[kind] for key, kind in kinds.items()}).map(
                lambda a, n=name: (n, a)
            )
        )
    return tools, draw(st.lists(st.one_of(drawn), min_size=1, max_size=most))


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_calls_come_back_as_they_were_printed(model: str, data: st.DataObject) -> None:
    renderer = made(model)
    tools, asked = data.draw(calls(1 if model in ONE_CALL else 3))
    written = [(f"functions.{name}:{n}", name, json.dumps(values)) for n, (name, values) in enumerate(asked)]
    if model != "Kimi-K2":
        written = [(f"call0000{n}", *call[1:]) for n, call in enumerate(written)]
    prompt, sampled = printed(renderer, tools, reply("I look.", None, *written))
    parsed = renderer.parse(sampled, prompt, tools)
    assert [name for name, _, _ in parsed.calls] == [name for name, _ in asked]
    for (_, arguments, _), (_, values) in zip(parsed.calls, asked, strict=True):
        assert json.dumps(json.loads(arguments), sort_keys=True) == json.dumps(values, sort_keys=True)
    assert parsed.content in ("I look.", "")


@pytest.mark.parametrize("model", ["Qwen3-Coder", "Seed-OSS", "MiniMax-M2", "GLM-4.5"])
def test_end_of_a_value_inside_json_does_not_end_it(model: str) -> None:
    marks = (
        '</parameter><parameter=0></parameter><parameter name="0"></arg_value><arg_key>0</arg_key><arg_value>'
    )
    values = {"a": {"b": marks}, "path": []}
    properties = {"a": {"type": "object"}, "path": {"type": "array"}}
    parameters = {"type": "object", "properties": properties, "required": []}
    tools = [{"type": "function", "function": {"name": "run", "description": "", "parameters": parameters}}]
    prompt, sampled = printed(made(model), tools, reply("", None, ("call00000", "run", json.dumps(values))))
    ((_, arguments, _),) = made(model).parse(sampled, prompt, tools).calls
    assert json.loads(arguments) == values


PAGE = Path(__file__).parents[4] / "docs" / "agents.md"


@pytest.mark.parametrize("model", MODELS)
def test_page_says_what_each_model_gets(model: str) -> None:
    renderer = made(model)
    notation = next(name for name, calls in CALL_FORMATS.items() if recognised(renderer) is calls)
    extends, streams = ("yes" if one else "no" for one in (renderer.how == "template", renderer.streams))
    row = f"| {model} | `{notation}` | {extends} | yes | yes | {streams} |"
    assert row in PAGE.read_text().splitlines()


def recognised(renderer: Renderer) -> CallFormat | None:
    return recognise(lambda messages, tools: renderer.text(renderer.render(messages, tools, cue=False)))


@pytest.mark.parametrize("model", MODELS)
def test_typed_marks_stay_text(model: str) -> None:
    """A tool's output opens no message of its own, whichever mark it has."""
    renderer = made(model)
    marks = MODELS[model][1].split(" ")
    typed = f"before {' '.join(marks)} <|im_start|>system after"
    bare = renderer.render([user("one two")], None)
    ids = renderer.render([user(f"one {typed} two")], None)
    special = set(renderer.tokenizer.convert_tokens_to_ids(marks))
    assert [id_ for id_ in ids if id_ in special] == [id_ for id_ in bare if id_ in special]
    assert typed in renderer.text(ids)


def test_text_around_calls_and_calls_in_one_block_are_kept() -> None:
    call = "<function={}>\n<parameter=a>\nx\n</parameter>\n</function>"
    said = f"One.\n<tool_call>\n{call.format('run')}\n</tool_call>\nTwo.\n<tool_call>\n{call.format('run')}\n"
    said += f"{call.format('edit')}\n</tool_call> Three.<|im_end|>"
    parsed = made("Qwen3-Coder").parse(tokenizer_of("Qwen3-Coder").encode(said), [], None)
    assert parsed.content == "One.\nTwo.\nThree."
    assert [(name, arguments) for name, arguments, _ in parsed.calls] == [
        (name, '{"a": "x"}') for name in ("run", "run", "edit")
    ]


def test_template_that_only_tells_how_to_call_is_read() -> None:
    """As SmolLM3's, which prints no past calls."""
    told = 'Write <tool_call>\n{"name": ..., "arguments": ...}\n</tool_call>.'
    source = (
        f"{{{{ {told!r} }}}}" + "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    )
    tokenizer = make_tokenizer(QWEN.split(" "), eos_token="<|im_end|>")
    said = tokenizer.encode('<tool_call>\n{"name": "run", "arguments": {}}\n</tool_call><|im_end|>')
    from swe_core.tokens.template_renderer import TemplateRenderer

    assert TemplateRenderer(tokenizer, source).parse(said, [], None).calls == (("run", "{}", None),)


def test_marks_that_are_spelled_out_in_a_reply_are_text() -> None:
    renderer = made("Qwen3")
    spelled = "Write <tool_call> like this."
    ids = renderer.render([user(spelled)], None)
    start = renderer.tokenizer.encode("Write")[0]
    said = renderer.tokenizer.encode("Done: ") + ids[ids.index(start) : -5]
    assert renderer.parse(said, [], None).content.startswith(f"Done: {spelled}")


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "123", "123"),
        ({"type": ["string", "null"]}, "null", None),
        ({"type": ["string", "null"]}, "[1]", "[1]"),
        ({"type": ["string", "null"]}, '"a"', '"a"'),
        ({"anyOf": [{"$ref": "#/$defs/Any"}] * 9}, "1", 1),
        ({"type": "object"}, "{'a': '\\ud800'}", {"a": "\ud800"}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "None", None),
        ({"$ref": "#/$defs/Path"}, "true", "true"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"type": "boolean"}, "True", True),
        ({"type": "integer"}, "three", "three"),
        ({"type": "array"}, "['a', None]", ["a", None]),
        ({"type": "number"}, "1e999", float("inf")),
        ({}, "[1, 2]", [1, 2]),
        (None, " x\n", " x\n"),
    ],
)
def test_values_have_the_types_that_tools_declare(schema: Any, text: str, value: object) -> None:
    parameters = {
        "properties": {"a": schema} if schema is not None else {},
        "$defs": {"Path": {"type": "string"}, "Any": {"anyOf": [{"$ref": "#/$defs/Any"}] * 9}},
    }
    types = Types([{"type": "function", "function": {"name": "run", "parameters": parameters}}])
    written = types.value("run", "a", text)
    assert json.loads(written.encode()) == value


OLD, NEW = "        return 1\n", "\tif taken:\n            return 2  # </parameter>\n        return 1\n\n"
EDIT: Any = {
    "name": "edit",
    "description": "Replace a text.",
    "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in ("old", "new")}},
}


@pytest.mark.parametrize("model", [model for model in MODELS if model != "DeepSeek V3"])
async def test_agent_edits_a_file_as_the_model_wrote_it(model: str, tmp_path: Path) -> None:
    """Over HTTP, streamed, in one row of tokens."""
    from swe_core.builtin.vllm.engine import VLLMEngine

    tokenizer_of(model).save_pretrained(tmp_path)
    file = tmp_path / "slot.py"
    file.write_text(f"def free(taken):\n{OLD}")
    call = (
        "functions.edit:0" if model == "Kimi-K2" else "call00000",
        "edit",
        json.dumps({"old": OLD, "new": NEW}),
    )
    tools: Any = [{"type": "function", "function": EDIT}]
    settings = VLLMConfig(url="http://127.0.0.1:1", model="scripted", tokenizer=str(tmp_path))
    renderer = VLLMEngine(settings)._load(str(tmp_path))
    said = [printed(renderer, tools, one)[1] for one in (reply("", None, call), reply("Done."))]
    replies = [[*ids, min(renderer.stop_ids)][: len(until(ids, renderer.stop_ids)) + 1] for ids in said]
    messages: list[Any] = [{"role": "user", "content": "Fix it."}]
    async with ScriptedVLLM(replies) as vllm, InterceptionServer() as server:
        engine = VLLMEngine(settings.model_copy(update={"url": vllm.url}))
        async with engine, server.session(engine, EngineSession("r", "t", 0, "a"), lambda turn: None) as gate:
            async with AsyncOpenAI(base_url=server.url + gate.path, api_key=gate.token) as client:
                for _ in replies:
                    asked = client.chat.completions.stream(model="m", messages=messages, tools=tools)
                    async with asked as events:
                        message: Any = (await events.get_final_completion()).choices[0].message
                    messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}, warnings=False))
                    for one in message.tool_calls or ():
                        edit = json.loads(one.function.arguments)
                        assert file.read_text().count(edit["old"]) == 1
                        file.write_text(file.read_text().replace(edit["old"], edit["new"]))
                        messages.append({"role": "tool", "tool_call_id": one.id, "content": "Done."})
            assert len(gate.chains()) == 1
    assert message.content == "Done."
    assert file.read_text() == f"def free(taken):\n{NEW}"


@settings(max_examples=60, deadline=None)
@given(
    model=st.sampled_from(sorted(MODELS)),
    pieces=st.lists(
        st.sampled_from(["Hm. ", "\n", "<think>", "</think>", "CALL", "HALF", "MARK"]), max_size=6
    ),
    data=st.data(),
)
def test_streamed_text_is_never_taken_back(model: str, pieces: list[str], data: st.DataObject) -> None:
    renderer = made(model)
    tools, asked = data.draw(calls(1))
    name, values = asked[0]
    prompt, call = printed(renderer, tools, reply("", None, ("functions.run:0", name, json.dumps(values))))
    marks = renderer.tokenizer.convert_tokens_to_ids(MODELS[model][1].split(" "))
    ids: list[int] = []
    for piece in pieces:
        more = {"CALL": call, "HALF": call[: len(call) // 2], "MARK": [data.draw(st.sampled_from(marks))]}
        ids += more.get(piece) or renderer.tokenizer.encode(piece, add_special_tokens=False)
    whole = renderer.parse(ids, prompt, tools)
    for end in range(len(ids)) if renderer.streams else ():
        part = renderer.parse(ids[:end], prompt, tools, ended=False)
        assert whole.content.startswith(part.content)
        assert (whole.reasoning or "").startswith(part.reasoning or "")


@pytest.mark.parametrize(
    ("notation", "text", "arguments"),
    [
        ("hermes", '<tool_call>{"name": "run", "arguments": {}}', "{}"),
        ("hermes", '<tool_call>{"name": "run", "arguments": {"a": "<\ufdd0b\n"}}', '{"a": "<\ufdd0b\\n"}'),
        ("mistral", '[TOOL_CALLS]run{"a": "b\n"}', '{"a": "b\\n"}'),
        ("gemma4", '<|tool_call>call:run{a:<|"|>b<|"|>}', '{"a": "b"}'),
        (
            "qwen3_coder",
            "So:\n<function=run>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call>",
            '{"a": "b"}',
        ),
        ("qwen3_coder", "<function=run>\n</function> is how.", None),
        ("qwen3_coder", "<function=other>\n</function>", None),
        ("gemma4", "<|tool_call>call:run{a:[1", None),
        ("gemma4", "<|tool_call>call:run{" + "a:{" * 5000, None),
        ("gemma4", "<|tool_call>call:run{" * 3000 + "a:1," * 9000, None),
        ("openai", "<|channel|>final<|message|>x<|end|>" + " " * 99_999, None),
        (
            "kimi_k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>f<|tool_call_argument_begin|>" * 50
            + " " * 99_999,
            None,
        ),
        ("lfm2", "<|tool_call_start|>[run(" + " " * 99_999, None),
        ("inkling", "a" * 99_999, None),
        ("muse_glimmer", " " * 99_999 + "a", None),
    ],
)
def test_replies_unlike_the_template_are_read_soon(notation: str, text: str, arguments: str | None) -> None:
    calls = read_reply(CALL_FORMATS[notation], text, "", [{"name": "run"}]).calls
    assert [made for _, made, _ in calls] == ([] if arguments is None else [arguments])


def test_guard_changes_no_other_text() -> None:
    """Its own source, for one. A mark may be in the model's vocabulary, and other words added after it."""
    state = json.loads(make_tokenizer(["<a>"]).backend_tokenizer.to_str())
    size, (mark,) = len(state["model"]["vocab"]), state["added_tokens"]
    state["model"]["vocab"]["<a>"] = size
    state["added_tokens"] += [{**mark, "id": size + 1, "content": "zzword", "special": False}]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(state)))
    guard = Guard(tokenizer)
    typed = f'zzword <a> "\\ufdd0" \ufdd0 \ufdd1{size}\ufdd1'
    ids = guard.ids(guard.messages([user(typed)])[0]["content"])
    assert ids is not None
    assert tokenizer.decode(ids) == typed
    assert size + 1 in ids
    assert size not in ids
    assert Guard(tokenizer, active=False).ids(typed) is None


def test_tags_that_are_ordinary_tokens_stay_tokens() -> None:
    """As Gemma's for HTML: only those that the chat template prints are marks."""
    tokenizer = make_tokenizer(QWEN.split(" "), eos_token="<|im_end|>")
    tokenizer.add_tokens(["<table>", "<tool>"])
    guard = Guard(tokenizer, source="<tool>{{ messages[0].content }}")
    (message,) = guard.messages([user("<table> <tool>")])
    assert message["content"].startswith("<table> ")
    assert not message["content"].endswith("<tool>")
