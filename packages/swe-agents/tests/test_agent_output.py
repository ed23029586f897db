"""What agents print and how they end: recorded output, lines that no agent should print, and exits."""

from __future__ import annotations

import json
from itertools import product, zip_longest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swe_agents.aider import Aider
from swe_agents.claude_code import ClaudeCode
from swe_agents.codex import Codex
from swe_agents.gemini_cli import GeminiCli
from swe_agents.kimi_code import KimiCode
from swe_agents.mini_swe_agent import MiniSweAgent
from swe_agents.opencode import OpenCode
from swe_agents.openhands import OpenHands
from swe_agents.qwen_code import QwenCode
from swe_core import AgentEvent, AgentExit, AgentSpec

from .trials import parsed

BUNDLED = (ClaudeCode(), Codex(), GeminiCli(), KimiCode(), OpenCode(), QwenCode())
PYTHON = (Aider(), MiniSweAgent(), OpenHands())
AGENTS = {agent.name: agent for agent in (*BUNDLED, *PYTHON)}
each = pytest.mark.parametrize("name", AGENTS)

# Each event as `KIND(TOOL)! TEXT`, where `!` is fatal; a text may be given by its beginning and "…".
PARSED = {
    "claude-code": r"""
reasoning Let me think.
text I look.
tool_call(Bash) {"command": "echo hi; exit 3"}
tool_result Exit code 3\nhi
tool_call(Bash) {"__unparsedToolInput"…
tool_result <tool_use_error>InputValidationError: Bash was called with…
tool_call(browse) {}
tool_result <tool_use_error>Error: No such tool available: browse</tool_use_error>
info retry 1 of 1: 500
info [Your previous response had no visible output.…
text Done.
error API Error: 410 gone
error! API Error: 410 gone
text half
info Output token limit hit.…
text half
info Output token limit hit.…
text half
info Output token limit hit.…
text half
error API Error: Claude's response exceeded the 8192 output token maximum.…
error! API Error: Claude's response exceeded the 8192 output token maximum.…
""",
    "codex": r"""
info Model metadata for `policy` not found.…
reasoning I think.
text I look.
tool_call(exec_command) /bin/bash -c 'echo hi; exit 3'
tool_result(exec_command) hi\n
tool_call(apply_patch) add /testbed/b.txt
tool_result(apply_patch) completed
text Done.
info Model metadata for `policy` not found.…
error no such thing
error! no such thing
info Model metadata for `policy` not found.…
text half
error Incomplete response returned, reason: max_output_tokens
error! Incomplete response returned, reason: max_output_tokens
""",
    "gemini-cli": r"""
text I look.
tool_call(run_shell_command) {"command": "echo hi; exit 3"}
tool_result(run_shell_command) hi
tool_call(browse) {}
tool_result(browse) Tool "browse" not found.…
text Done.
error! [API Error: {"error":{"code":410,"message":"gone","status":"INVALID_ARGUMENT"}}]
error The model returned an empty response with no text or thoughts.…
""",
    "kimi-code": r"""
text I look.
tool_call(Bash) {"command":"echo hi; exit 3"}
tool_result hi\nCommand failed with exit code: 3.
tool_call(browse) {}
tool_result Tool "browse" not found
text Done.
""",
    "opencode": r"""
reasoning Let me think.
text I look.
tool_call(bash) {"command": "echo hi; exit 3"}
tool_result(bash) hi\n
tool_call(invalid) {"tool": "bash"…
tool_result(invalid) The arguments provided to the tool are invalid…
tool_call(read) {"filePath": "/no/such"}
tool_result(read) File not found: /no/such
text half
info the reply was cut off at its token limit
error! gone
""",
    "qwen-code": r"""
reasoning Let me think.
text I look.
tool_call(run_shell_command) {"command": "echo hi; exit 3"}
tool_result Command: echo hi; exit 3\nDirectory: (root)\nOutput: hi\nError: (none)\nExit Code: 3…
tool_call(browse) {}
tool_result Tool "browse" not found in registry.…
text Done.
text [API Error: 410 gone]
error! [API Error: 410 gone]
text [API Error: Model stream ended with empty response text.]
error [API Error: Model stream ended with empty response text.]
""",
    "mini-swe-agent": r"""
reasoning Hm.
text I look.
tool_call(bash) {"command": "echo hi; false"}
tool_result(bash) {\n  "returncode": 1,\n  "output": "hi\n"\n}
tool_call(browse) {}
info Tool call error:\n\n<error>\nUnknown tool 'browse'.…
info Tool call error:\n\n<error>\nNo tool calls found in the response.…
error! litellm.BadRequestError: OpenAIException - the rollout is over
""",
    "aider": r"""
text The file pkg/a.py needs a change.
info Tokens: …
info pkg/a.py
reasoning Hm.
text pkg/a.py\n```\ndef f():\n    return 2\n```\n
info Tokens: …
info Applied edit to pkg/a.py
reasoning Hm.
text The file pkg/a.py needs a change.
info Tokens: …
info pkg/a.py
error! litellm.BadRequestError: OpenAIException - the rollout is over
info litellm.BadRequestError: OpenAIException - the rollout is over
""",
    "openhands": r"""
reasoning Hm.
text I look.
tool_call(terminal) {"command": "echo hi; false"}
tool_result(terminal) hi\n[The command completed with exit code 1.]
tool_call(browse) {}
tool_result(browse) Tool 'browse' not found. Available: ['terminal', 'file_editor', 'task_tracker', …
error! LLMBadRequestError: litellm.BadRequestError: OpenAIException - the rollout is over
""",
}


@each
def test_recorded_output_is_parsed(name: str) -> None:
    for event, wanted in zip_longest(parsed(AGENTS[name]), PARSED[name].strip().splitlines()):
        tool = f"({event.tool})" if event.tool else ""
        shown = f"{event.kind}{tool}{'!' * event.fatal} {event.text}".replace("\n", "\\n")
        begins = wanted.removesuffix("…")
        assert shown == wanted or (begins != wanted and shown.startswith(begins)), (shown, wanted)


ODD = (
    "", "  ", "no JSON", "[1]", "{}", '{"type": 1}', '{"role": []}', '{"type": ["message"]}', "[" * 10**5,
)  # fmt: skip


def test_odd_lines_are_shown_as_they_are() -> None:
    for agent in AGENTS.values():
        found = {event.kind for line in ODD for event in agent.parse_event(line)}
        assert found == {"info"} or (found == set() and agent in PYTHON), agent.name


def check_line(agent: AgentSpec, line: str) -> None:
    for event in agent.parse_event(line):
        assert AgentEvent.model_validate_json(event.model_dump_json()) == event


SHAPES = {
    '{"type": "KIND", "message": VALUE, "is_error": 1, "subtype": "api_retry"}': (
        ("assistant", "user", "result", "system", "brand_new"),
        ("{}", "1", '{"content": "text"}', '{"content": [1, {}, {"type": "text"}]}'),
    ),
    '{"type": "KIND", "item": VALUE, "message": VALUE, "error": 1}': (
        ("item.started", "item.completed", "error", "turn.failed", "brand.new"),
        ("{}", "[]", '{"type": "file_change"}', '{"type": "file_change", "changes": [1]}'),
    ),
    '{"type": "KIND", "part": VALUE, "error": VALUE}': (
        ("text", "reasoning", "tool_use", "step_finish", "error", "brand_new"),
        ("{}", "1", '{"state": 1}', '{"reason": []}', '{"text": ["x"]}'),
    ),
}


def test_no_event_of_odd_shape_raises() -> None:
    for agent, (line, (kinds, values)) in product(BUNDLED, SHAPES.items()):
        for kind, value in product(kinds, values):
            check_line(agent, line.replace("KIND", kind).replace("VALUE", value))


KEYS = st.sampled_from(
    ("role", "kind", "type", "text", "content", "extra", "tool_calls", "function", "thought", "tool_name")
)
VALUES = st.sampled_from(("assistant", "tool", "exit", "text", "error", "ActionEvent", "End", "\ud83d"))
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | VALUES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=20,
)


@pytest.mark.parametrize("agent", PYTHON, ids=lambda agent: agent.name)
@given(line=st.text() | JSON.map(json.dumps))
@pytest.mark.slow
def test_no_line_raises_and_every_event_can_be_written(agent: AgentSpec, line: str) -> None:
    check_line(agent, line)


def test_opencode_reply_that_it_does_not_understand_is_an_error() -> None:
    (event,) = OpenCode().parse_event('{"type": "step_finish", "part": {"reason": "unknown"}}')
    assert event == AgentEvent(kind="error", text="a reply ended as 'unknown'", fatal=True)


def ended(text: str, fatal: bool = True) -> AgentEvent:
    return AgentEvent(kind="error", text=text, fatal=fatal)


CLAUDE_CUT = (
    "API Error: Claude's response exceeded the 8192 output token maximum. To configure this behavior, set "
    "the CLAUDE_CODE_MAX_OUTPUT_TOKENS environment variable."
)
GEMINI_EMPTY = (
    "The model returned an empty response with no text or thoughts. This may be a transient API issue; "
)
KIMI_SAYS = "error: failed to run prompt: {}\nSee log: x\n"
KIMI_EMPTY = KIMI_SAYS.format(
    "provider.api_error: The API returned an empty response (no content, no tool calls). Provider stop "
    "details: finishReason=completed, rawFinishReason=stop."
)
QWEN_LOOPED = "Loop detection halted the run (consecutive_identical_tool_calls: the model repeated the same)"
GONE = ended("gone")


ENDS: list[tuple[str, int, AgentEvent | None, str, str | None]] = [
    *((name, 0, None, "", None) for name in AGENTS if name != "opencode"),
    ("claude-code", 1, ended(CLAUDE_CUT), "", None),
    ("claude-code", 1, GONE, "", "Claude Code exited with code 1: gone"),
    ("claude-code", 1, None, "used as root", "Claude Code exited with code 1: used as root"),
    ("codex", 1, ended("Incomplete response returned, reason: max_output_tokens"), "", None),
    ("codex", 1, GONE, "", "Codex exited with code 1: gone"),
    ("codex", 1, None, "bad config.toml", "Codex exited with code 1: bad config.toml"),
    ("gemini-cli", 0, ended(GEMINI_EMPTY, fatal=False), "", None),
    ("gemini-cli", 0, ended("cut"), "", "Gemini CLI ended with an error: cut"),
    # After a refused call its exit code is HTTP's status modulo 256, which looks like a signal.
    ("gemini-cli", 154, GONE, "", "Gemini CLI ended with an error: gone"),
    ("gemini-cli", 41, None, "Invalid auth", "Gemini CLI exited with code 41: Invalid auth"),
    ("gemini-cli", 137, None, "", "Gemini CLI was killed by SIGKILL (out of memory, or killed from"),
    ("kimi-code", 1, None, KIMI_EMPTY, None),
    ("kimi-code", 1, None, KIMI_SAYS.format("410 gone"), "Kimi Code ended with an error: 410 gone"),
    ("kimi-code", 1, None, "SyntaxError", "Kimi Code exited with code 1: SyntaxError"),
    ("kimi-code", 127, None, "sh: node", "Kimi Code could not be started in the sandbox (exit code 127"),
    ("opencode", 0, GONE, "", "OpenCode ended with an error: gone"),
    ("qwen-code", 1, ended(QWEN_LOOPED, fatal=False), "", None),
    ("qwen-code", 1, GONE, "", "Qwen Code ended with an error: gone"),
    ("qwen-code", 1, None, "no such model", "Qwen Code exited with code 1: no such model"),
]


def test_failure_is_told_from_the_end() -> None:
    """An agent is failed by errors, and not by replies of the policy that are empty or cut."""
    for name, code, error, stderr, failure in ENDS:
        said = AGENTS[name].failure(AgentExit(code, error, stderr))
        assert (said or "").startswith(failure or ""), name
        assert (said is None) is (failure is None), (name, said)
