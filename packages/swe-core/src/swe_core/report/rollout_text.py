"""The parts of one rollout as text. All text from a sandbox goes through `printable`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from swe_core.api.agent import AgentEvent, EventKind
from swe_core.api.records import NODE_LOST, Rollout, Turn
from swe_core.api.task import TestStatus
from swe_core.report.facts import notes_of, why
from swe_core.report.failing_tests import TestFailure, by_test, failures_of
from swe_core.report.text import STYLE, Uncut
from swe_core.rollout.run_directory import FOLDERS, RunDirectory
from swe_core.system.plural import counted
from swe_core.system.printable import one_line, printable

Part = Literal["head", "transcript", "diff", "tests", "turns"]
PARTS: tuple[Part, ...] = ("head", "transcript", "diff", "tests")
"""The parts that are shown by default."""
_MAX_LINES: Mapping[Part, int] = {"transcript": 30, "diff": 1000}
"""Lines shown of one event's text and of a patch, without `--full`."""
_MAX_HIGHLIGHTED = 1_000_000
"""Length of the longest patch that is coloured, characters: a million takes seconds."""
_CAUSE_LINES = 8
"""Lines shown of one failing test, without `--full`."""
_EVENTS: Mapping[EventKind, tuple[str, str]] = {
    "text": ("says", "bold"),
    "reasoning": ("thinks", "dim italic"),
    "tool_call": ("calls", "cyan"),
    "tool_result": ("gets", ""),
    "error": ("error", "bold red"),
    "info": ("info", "dim"),
}
"""Kind → word and style."""
_TESTS: Mapping[TestStatus, str] = {
    "PASSED": "green",
    "XFAIL": "green",
    "SKIPPED": "yellow",
    "XPASS": "yellow",
    "FAILED": "red",
    "ERROR": "red",
    "MISSING": "red",
}


class Shown:
    """The text of one rollout.

    Args:
        rollout: Its record; None before it is finished.
        full: Whether long texts are shown whole, and passed tests too.
    """

    def __init__(self, run: RunDirectory, name: str, rollout: Rollout | None, full: bool) -> None:
        self._run = run
        self._name = name
        self._rollout = rollout
        self._full = full

    def part(self, part: Part) -> RenderableType:
        """Return one part.

        Raises:
            UsageError: Its file is damaged.
        """
        lines = {
            "head": self._head,
            "transcript": self._transcript,
            "diff": self._diff,
            "tests": self._tests,
            "turns": self._turns,
        }[part]()
        title = [] if part == "head" else [Text(part.capitalize(), style="bold underline")]
        return Group(*title, *lines, Text())

    def _head(self) -> Iterator[RenderableType]:
        rollout = self._rollout
        if rollout is None:
            yield Text(f"{self._name}: not finished", style="bold")
            yield Text(f"Files: {self._run.path / FOLDERS / self._name}", style="dim")
            return
        reward = "" if rollout.reward is None else f", reward {rollout.reward:g}"
        if rollout.unshaped_reward not in (None, rollout.reward):
            reward += f" (unshaped {rollout.unshaped_reward:g})"
        yield Text(f"{rollout.id}: {rollout.outcome}{reward}", style=f"bold {STYLE[rollout.outcome]}")
        if text := why(rollout):
            yield Text(printable(text))
        node = "" if rollout.node is None else f", node {printable(rollout.node)}"
        yield Text(
            f"Agent {rollout.agent}, sandbox {rollout.sandbox}, engine {rollout.engine}, "
            f"model {rollout.model}{node}; {counted(rollout.turns, 'turn')}, "
            f"{rollout.usage.prompt_tokens:,} tokens in, {rollout.usage.completion_tokens:,} out"
        )
        phases = ", ".join(f"{name} {took:.1f} s" for name, took in rollout.phases if took is not None)
        yield Text(f"{rollout.seconds:.1f} s{f': {phases}' if phases else ''}")
        if rollout.sandboxes:
            used = ", ".join(
                f"{one.seconds:.1f} s {one.purpose}{f' on {one.flavor}' if one.flavor else ''}"
                for one in rollout.sandboxes
            )
            yield Text(one_line(f"Sandboxes open: {used}"))
        for one in rollout.retried:
            if one.failure.type == NODE_LOST:
                where = "with all its files"
            else:
                where = f"its files are in {one.folder}" if one.folder else "only its grading was run again"
            yield Text(
                one_line(f"Lost a try of {one.seconds:.1f} s, {where}: {one.failure.message}"), "yellow"
            )
        for done in rollout.grade.tampering if rollout.grade else ():
            where = f" {one_line(done.path)}" if done.path else ""
            yield Text(f"Tampering, {done.kind}{where}: {one_line(done.done)}", style="yellow")
        for found in rollout.grade.suspicious if rollout.grade else ():
            where = f"{found.path}:{found.line}"
            yield Text(one_line(f"Suspicious, {found.kind}: {found.name} at {where}"), "yellow")
        for note in notes_of(rollout):
            yield Text(one_line(note), "yellow")
        yield Text(f"Files: {self._run.path / FOLDERS / self._name}", style="dim")

    def _transcript(self) -> Iterator[RenderableType]:
        events = self._run.events(self._name)
        if not events:
            yield Text("The agent has none.", style="dim")
        for event in events:
            yield from self._event(event)

    def _event(self, event: AgentEvent) -> Iterator[RenderableType]:
        word, style = _EVENTS[event.kind]
        tool = f" {one_line(event.tool)}" if event.tool else ""
        yield Text(f"{word}{tool}{' (fatal)' if event.fatal else ''}:", style=style or "cyan")
        yield Text(self._cut(printable(event.text).strip("\n"), "transcript", "  "), style=style)

    def _diff(self) -> Iterator[RenderableType]:
        patch = self._run.patch(self._name)
        if not patch:
            yield Text("There is no patch.", style="dim")
            return
        text = self._cut(printable(patch.decode(errors="replace")).rstrip("\n"), "diff", "")
        if len(text) > _MAX_HIGHLIGHTED:
            yield Text(text)
        else:
            highlighted = Syntax("", "diff", theme="ansi_dark", background_color="default").highlight(text)
            highlighted.rstrip()
            yield highlighted

    def _tests(self) -> Iterator[RenderableType]:
        grade = self._rollout.grade if self._rollout else None
        if grade is None:
            yield Text("There is no grade.", style="dim")
            return
        if not grade.fail_to_pass and not grade.pass_to_pass:
            yield Text("No test ran.", style="dim")
        all_tests = {**grade.pass_to_pass, **grade.fail_to_pass}
        causes = self._causes([test for test, status in all_tests.items() if _TESTS[status] == "red"])
        for name, statuses in (("fail to pass", grade.fail_to_pass), ("pass to pass", grade.pass_to_pass)):
            if not statuses:
                continue
            counts = ", ".join(f"{count:,} {status}" for status, count in Counter(statuses.values()).items())
            yield Text(f"{name}: {counts}")
            for test, status in statuses.items():
                if self._full or status != "PASSED" or name == "fail to pass":
                    yield Text.assemble("  ", (f"{status:<8}", _TESTS[status]), one_line(test, 1000))
                    if test in causes:
                        yield from self._cause(causes[test])
        if grade.channel is not None:
            yield Text(
                f"From the {grade.channel}, exit code {grade.test_exit_code}, {grade.test_seconds:.1f} s",
                style="dim",
            )

    def _causes(self, failed: Sequence[str]) -> Mapping[str, TestFailure]:
        """Return what the test log says of failed tests, by their id."""
        log = self._run.test_log(self._name) if failed else None
        return by_test(failures_of(log.decode(errors="replace")), failed) if log else {}

    def _cause(self, failure: TestFailure) -> Iterator[RenderableType]:
        if failure.file is not None:
            line = "" if failure.line is None else f":{failure.line}"
            yield Text(f"          {one_line(failure.file)}{line}", style="cyan")
        lines = failure.lines if self._full else failure.lines[:_CAUSE_LINES]
        for line in lines:
            yield Text(f"          {line}", style="dim" if line.startswith(">") else "red")
        if left_out := len(failure.lines) - len(lines):
            yield Text(f"          … {counted(left_out, 'more line')}: --full", style="dim")

    def _turns(self) -> Iterator[RenderableType]:
        turns = self._run.turns(self._name)
        if not turns:
            yield Text("The host answered no LLM call.", style="dim")
            return
        table = Table(box=None, header_style="bold", pad_edge=False)
        for column in ("turn", "seconds", "tokens in", "out", "new messages"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("ended by", no_wrap=True)
        for turn in turns:
            table.add_row(
                str(turn.index),
                f"{turn.seconds:.1f}",
                f"{turn.usage.prompt_tokens:,}",
                f"{turn.usage.completion_tokens:,}",
                str(len(turn.messages)),
                _end(turn),
            )
        yield Uncut(table)

    def _cut(self, text: str, part: Part, indent: str) -> str:
        """Indent the lines of `text`, and cut those beyond the maximum of the part."""
        lines = text.split("\n")
        if not self._full and len(lines) > _MAX_LINES[part]:
            left_out = len(lines) - _MAX_LINES[part]
            lines[_MAX_LINES[part] :] = [f"… {counted(left_out, 'more line')}: --full"]
        return "\n".join(f"{indent}{line}" for line in lines)


def _end(turn: Turn) -> Text:
    if turn.error is not None:
        return Text(one_line(turn.error), style="red")
    cause = turn.tokens.cause if turn.tokens else None
    begins = f", begins a chain ({cause})" if cause else ""
    return Text(f"{one_line(turn.finish_reason or '-')}{begins}")
