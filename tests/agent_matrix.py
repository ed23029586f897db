"""What each agent does with a scripted model: the rows of docs/agents.md, and the policy behind them."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from swe_core.api.agent import AgentSpec
from swe_core.api.records import Turn, requests_of
from swe_core.api.sandbox import Asset
from swe_core.api.shell_call import shell_call
from swe_core.api.task import Task
from swe_core.drift.measure import measure
from swe_core.drift.recorded import RecordedConversation, RecordedTurn
from swe_core.errors import ConfigError
from swe_core.interception.dialects.base import Target
from swe_core.interception.dialects.chat import ChatCompletions
from swe_core.rollout.run_directory import RunDirectory
from swe_core.run.components import load_plugins, resolve_component
from swe_core.run.settings import RunOptions, load_settings
from swe_core.tokens.family_renderer import FAMILIES, FamilyRenderer
from swe_testing.tokenizer import family_tokens, make_tokenizer
from swe_testing.vllm import tool_call

from .conftest import fix

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NAMES = ("pi", "codex", "claude-code", "opencode", "qwen-code", "gemini-cli", "kimi-code", "mini-swe-agent")
AGENTS: dict[str, tuple[str, ...]] = dict.fromkeys((*_NAMES, "aider", "openhands"), ())
AGENTS["claude-code"] = ("agent.claude-code.accept_license=true",)
"""Agent → settings that it needs."""
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The command with which mini-swe-agent submits."""
SETUP = "export PATH=/envs/testbed/bin:$PATH PROJECT='set up'"
"""Set-up lines of the task."""
_IF_SET_UP = "&& ".join(
    f"""{shell} 'test "$PROJECT" = "set up" && echo "$PATH" | grep -q /envs/testbed/bin' """
    for shell in ("eval", "bash -c", "bash -lc", "sh -c", "sh -lc")
)
ENDED = "The bug is fixed. I checked the change by running the tests of the module."
_TOOLS = re.compile(r"<tools>\n({.*?})\n</tools>", re.DOTALL)
_CHAT = ChatCompletions()
_REPLY = "<|im_start|>assistant\n"


def policy(tokenizer: PreTrainedTokenizerBase, agent: str, task: Task) -> Callable[..., list[int]]:
    """Return a model that looks, applies the gold patch, and ends, by the tools in its prompt.

    Its place in the work is the number of its replies in the prompt, so that each conversation of the agent
    has a place of its own. Without tools it gives a title, or edits files as text where the agent does so.
    """

    def reply(prompt: Sequence[int]) -> list[int]:
        text = said(str(tokenizer.decode(prompt)))
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    edits = iter([whole_files(task)] * 2)  # upon the first one it adds the files, and asks again

    def said(prompt: str) -> str:
        found = _TOOLS.search(prompt)
        tools = [json.loads(line) for line in found[1].split("\n")] if found else []
        place = prompt.count(_REPLY) - 1
        if agent == "aider":  # its examples are replies too
            return next(edits, ENDED)
        commands = ["git log --oneline | head -n 3; ls", f"{_IF_SET_UP} && {fix(task)}"]
        if agent == "mini-swe-agent":
            commands.append(SUBMIT)
        if not tools or place >= len(commands):
            return ENDED if tools else "Fix a bug"
        call = shell_call(tools, commands[place])
        if call is None:
            return ENDED
        return ("A look first." if place == 0 else "") + tool_call(call[0], **json.loads(call[1]))

    return reply


def whole_files(task: Task) -> str:
    """Return the files of the gold patch, patched, as aider reads whole files from a text."""
    assert task.repository is not None
    names = re.findall(r"^\+\+\+ b/(.+)$", task.patch, re.MULTILINE)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            copy = Path(scratch, name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((task.repository / name).read_bytes())
        subprocess.run(["git", "apply", "-"], cwd=scratch, input=task.patch.encode(), check=True)
        files = [f"{name}\n```\n{Path(scratch, name).read_text()}```\n" for name in names]
    return "I fix the bug.\n\n" + "\n".join(files)


@dataclass(frozen=True)
class Row:
    """One agent of the matrix.

    Args:
        auxiliary: What calls are for that are not the policy's work → their number.
        first_call: Seconds from the open sandbox to the agent's first LLM call.
        bundle: Size of what is mounted, MB.
        families: Template families on which its conversation stays in one row.
    """

    agent: str
    version: str
    dialect: str
    streamed: bool
    turns: int
    auxiliary: dict[str, int]
    chains: int
    forks: dict[str, int]
    sampled: int
    trainable: int
    dropped: dict[str, int]
    first_call: float
    bundle: float
    families: tuple[str, ...]


def row(run: RunDirectory) -> Row:
    """Return the row of a finished run of one rollout."""
    (rollout,) = run.rollouts()
    turns, ledger = run.turns(rollout.id), rollout.ledger
    assert ledger is not None
    (dialect,) = {turn.dialect for turn in turns}
    streams = [bool(body.get("stream")) for body in requests_of(turns)]
    spec = spec_of(rollout.agent)
    return Row(
        agent=rollout.agent,
        version=spec.version,
        dialect=dialect,
        streamed=all(streams),
        turns=len(turns),
        auxiliary=dict(Counter(turn.auxiliary for turn in turns if turn.auxiliary)),
        chains=ledger.chains,
        forks={str(cause): count for cause, count in ledger.forks.items()},
        sampled=ledger.sampled,
        trainable=ledger.trainable,
        dropped=ledger.dropped,
        first_call=(turns[0].started_at - rollout.started_at).total_seconds() - (rollout.phases.open or 0.0),
        bundle=sum(map(size_of, spec.assets())) / 1e6,
        families=families_in_one_row(turns),
    )


def spec_of(agent: str) -> AgentSpec:
    """Return the agent with the settings of its row."""
    plugins = load_plugins(RunOptions())
    settings = load_settings(None, AGENTS[agent], {})
    spec: AgentSpec = resolve_component(settings, plugins, "agent", agent).create()
    return spec


def size_of(asset: Asset) -> int:
    """Return the bytes of a bundle's files; a file with several names counts once."""
    files = {file.stat().st_ino: file.stat().st_size for file in asset.path.rglob("*") if file.is_file()}
    return sum(files.values())


def page(rows: Sequence[Row]) -> str:
    """Return docs/agents.md."""
    lines = [
        "# Agents",
        "",
        "`make test-slow` checks this page. Each agent solves the demo task `demo__memofn-1` in the",
        "sandbox `local`, with the engine `vllm` and a scripted server: its replies run two commands by",
        "the agent's own shell tool, and then end. The second one fails unless the shell, `bash -c`,",
        "`bash -lc`, `sh -c` and `sh -lc` have the variables of the task's set-up lines. Each ledger is",
        "balanced: `sampled == trainable + dropped`.",
        "",
        "```bash",
        "pip install swe-core swe-agents swe-sandbox-docker",
        "swe-core run --plugins codex,docker --tasks tasks.jsonl --engine-url URL --model NAME",
        "```",
        "",
        "| agent | version | dialect | streamed | calls | auxiliary | rows | forks | sampled | trainable "
        "| dropped |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        cells = [
            f"`{one.agent}`", one.version, one.dialect, "yes" if one.streamed else "no", one.turns,
            _counted(one.auxiliary), one.chains, _counted(one.forks), one.sampled, one.trainable,
            _counted(one.dropped),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += [
        "",
        "| agent | seconds to the first call | bundle, MB | one row on these template families |",
        "|---|---|---|---|",
    ]
    known = list(family_renderers())
    lines += [
        f"| `{one.agent}` | {one.first_call:.2f} | {one.bundle:.0f} | {_of(one.families, known)} |"
        for one in rows
    ]
    lines += ["", f"The {len(known)} families are {', '.join(known)}."]
    lines += ["", *_NOTES]
    return "\n".join(lines) + "\n"


def _of(families: Sequence[str], known: Sequence[str]) -> str:
    if len(families) == len(known):
        return f"all {len(known)}"
    missing = [family for family in known if family not in families]
    return f"all but {', '.join(missing)}" if len(missing) < len(families) else ", ".join(families) or "none"


def _counted(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.items()) or "0"


_NOTES = """\
`seconds to the first call` counts from the open sandbox; other tests ran at the same time. A bundle is built
once a host, and mounted or uploaded. `claude-code` is proprietary: it is fetched to your machine after
`--set agent.claude-code.accept_license=true`, under its own license.

`aider` shows the files anew in each call, so each of its calls is a row. All other agents extend their
history.

A family is a chat format of the package `renderers`. [`swe-core drift`](drift.md) says for your own tokenizer
and template which turns leave the row, and why. An agent that is not here: [wrap it](wrap-your-agent.md).
""".splitlines()


def families_in_one_row(turns: Sequence[Turn]) -> tuple[str, ...]:
    """Return the template families on which the policy's turns stay in one row."""
    recorded = []
    for turn, body in zip(turns, requests_of(turns), strict=True):
        if turn.auxiliary is None and turn.reply is not None:
            whole = orjson.dumps(shortened({**body, "messages": [*body["messages"], turn.reply]}))
            parsed = _CHAT.parse(whole, Target(_CHAT.routes[0]))
            recorded.append(RecordedTurn(parsed.messages[:-1], parsed.tools, parsed.messages[-1]))
    conversation = RecordedConversation("", recorded)
    found = {family: measure(conversation, renderer) for family, renderer in family_renderers().items()}
    return tuple(family for family, drift in found.items() if drift.refused is None and drift.ours.rows == 1)


def shortened(value: Any, most: int = 400) -> Any:
    """Return a request whose long texts are cut.

    A format prints them as they are, and the time of some renderers grows with the square of a prompt.
    """
    if isinstance(value, dict):
        return {key: one if key == "arguments" else shortened(one, most) for key, one in value.items()}
    if isinstance(value, list):
        return [shortened(one, most) for one in value]
    return value[:most] if isinstance(value, str) else value


@cache
def family_renderers() -> dict[str, FamilyRenderer]:
    """Return a renderer for each family whose tokens need no download."""
    found = {}
    for family in sorted(FAMILIES):
        with suppress(ConfigError):
            found[family] = FamilyRenderer(make_tokenizer(family_tokens(family)), family)
    return found
