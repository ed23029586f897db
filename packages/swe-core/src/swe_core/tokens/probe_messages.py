"""Conversations that show how a chat template behaves."""

from __future__ import annotations

from typing import Any

from swe_core.api.messages import Message

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "string", "description": "What to do."}},
                "required": [],
            },
        },
    }
    for name, description in (("bash", "Run a command."), ("read", "Read a file."))
]


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def reply(text: str, reasoning: str | None = None, *calls: tuple[str, str, str]) -> Message:
    """Return an assistant message; `calls` are (id, name, arguments)."""
    message: Message = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
            for id_, name, arguments in calls
        ]
    return message


def result(id_: str, text: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": id_}


# Ids of nine letters and digits, as Mistral's templates require.
_LS = ("call00001", "bash", '{"command": "ls"}')
_CAT = ("call00002", "read", '{"command": "cat a.py"}')
_NONE = ("call00003", "bash", "{}")
_LAST = ("call00004", "bash", '{"command": "pytest"}')
_LINE, _OTHER = "one line of output", "another line of output"


def _calling(arguments: str) -> list[Message]:
    """Return a call with these arguments, and its result."""
    return [
        user("Fix the bug."),
        reply("", None, ("call00001", "bash", arguments)),
        result("call00001", _LINE),
    ]


THOUGHT = "What is there?"
CHAT = "chat"
TOOLS_WITH_THINKING = "tools with thinking"
INLINE_THINKING = "thinking inside text"
MALFORMED = "arguments that are no JSON"
PROBES: dict[str, list[Message]] = {
    CHAT: [
        user("First question?"),
        reply("First answer."),
        user("Second one?"),
        reply("Yes."),
        user("Third?"),
    ],
    "chat with thinking": [
        system("You are terse."),
        user("First question?"),
        reply("First answer.", "The first thought."),
        user("Second one?"),
        reply("Second answer.", "The second thought."),
        user("Third?"),
    ],
    "tools": [
        user("Fix the bug."),
        reply("I look around.", None, _LS),
        result("call00001", _LINE),
        reply("", None, _CAT),
        result("call00002", _OTHER),
        reply("It is fixed."),
        user("Thank you. Now run the tests."),
        reply("", None, _LAST),
        result("call00004", "all passed"),
    ],
    TOOLS_WITH_THINKING: [
        system("You fix bugs."),
        user("Fix the bug."),
        reply("I look around.", THOUGHT, _LS),
        result("call00001", _LINE),
        reply("", "I must read it.", _CAT),
        result("call00002", _OTHER),
        reply("It is fixed.", "That was it."),
        user("Thank you. Now run the tests."),
        reply("", "Let me see.", _LAST),
        result("call00004", "all passed"),
    ],
    "several calls at once": [
        user("Fix the bug."),
        reply("", None, _LS, _CAT),
        result("call00001", _LINE),
        result("call00002", _OTHER),
        reply("", None, _LAST),
        result("call00004", "all passed"),
    ],
    "a user message after results": [
        user("Fix the bug."),
        reply("I look around.", THOUGHT, _LS),
        result("call00001", _LINE),
        user("Wait, do something else."),
        reply("As you say.", "Another task."),
        user("Go on."),
    ],
    "empty arguments": [
        user("Fix the bug."),
        reply("", None, _NONE),
        result("call00003", _LINE),
        reply("Nothing to do."),
        user("Are you sure?"),
    ],
    "characters of many scripts": [
        user("Naïve façade: 修复 🐛?"),
        reply("Ja, größer — 好。", "Ωμέγα…", ("call00001", "bash", '{"command": "echo é 🎉"}')),
        result("call00001", "é 🎉\n\u2028ok"),
        reply("Готово 👩‍💻", "Да."),
        user("谢谢"),
    ],
    MALFORMED: [
        user("Fix the bug."),
        reply("", None, ("call00001", "bash", '{"command": "ls')),
        result("call00001", "error: the arguments are no JSON"),
        reply("", None, _LAST),
        result("call00004", "all passed"),
    ],
    "blank lines around text": [
        user("  Fix it.\n\n"),
        reply("\n\nI look around.\n", "\n\nWhat is there?\n\n", _LS),
        result("call00001", "\n  one line of output\n\n"),
        reply("\nDone.\n\n"),
        user("\n\nThank you.\n"),
    ],
    "blanks before text": [
        user("  Fix it."),
        reply("  I look around.", None, ("call00001", "bash", '{"command": "  ls ", "text": "\\n\\tx\\n"}')),
        result("call00001", "  one line of output"),
        reply(" Done."),
        user(" Thank you."),
    ],
    "booleans and nulls in calls": _calling('{"all": true, "deep": false, "limit": null}'),
    "numbers in calls": _calling(
        '{"n": 3, "less": -7, "part": 2.5, "whole": 1.0, "tiny": 1e-07, "many": 1e+16}'
    ),
    "nested values in calls": _calling(
        '{"edits": [{"old": "é <a> & \'b\'", "all": true, "lines": [1, 2.5, null]}], "none": {}, "empty": []}'
    ),
    INLINE_THINKING: [
        user("Fix the bug."),
        reply(f"<think>\n{THOUGHT}\n</think>\n\nI look around.", None, _LS),
        result("call00001", _LINE),
        reply("<think>That was it.</think> It is fixed."),
        user("Thank you."),
    ],
}
"""Each probe ends with what the agent sends, so that a prompt follows. Users see the names."""
