"""The docs are true: links lead somewhere, snippets run as printed, generated pages are current."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from swe_core.api.agent import AgentEvent
from swe_core.api.engine import Sampled
from swe_core.api.records import Rollout, Turn
from swe_core.rollout.run_directory import RunDirectory, new_run_info
from swe_core.system.redaction import Redactor
from swe_core.tokens.token_log import TokenLog
from swe_testing.records import make_rollout
from swe_testing.serving.start import FRUGAL, missing, obstacle

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
GUIDE, QUICKSTART, TASKS, TRAINING = (
    DOCS / f"{name}.md" for name in ("plugins", "quickstart", "tasks", "training")
)
TOKENS = DOCS / "internals" / "tokens.md"
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "examples" / "README.md",
    *sorted(ROOT.glob("packages/*/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Block:
    """One fenced block of a page: its language, the file that it is (`file=NAME`), its text, its line."""

    language: str
    file: str | None
    text: str
    line: int


@cache
def blocks(page: Path) -> list[Block]:
    found, start, info, lines = [], 0, "", list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            if start:
                language, _, file = info.partition(" file=")
                found.append(Block(language, file or None, "\n".join(lines) + "\n", start))
                start = 0
            else:
                start, info, lines = number, line[3:].strip(), []
        elif start:
            lines.append(line)
    assert not start, f"{page.name}:{start}: a block that nobody closes"
    return found


def files(page: Path) -> dict[str, str]:
    """The complete files of a page, by name."""
    return {block.file: block.text for block in blocks(page) if block.file}


def shown(block: Block) -> list[tuple[str, list[str]]]:
    """The commands of a console block, each with the output below it."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return found


def console(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language == "console"]


CONSOLE = [(page, block) for page in (GUIDE, QUICKSTART, TASKS) for block in console(page)]


class Shell:
    """A directory with a page's files in it, where its commands are typed."""

    def __init__(self, home: Path, page: Path) -> None:
        self.home = home
        self.site = home / "site"
        for name, text in files(page).items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def type(self, command: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        """Run one command. `pip install` goes to a folder of its own, without an index."""
        env = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
        env |= {
            "PATH": f"{BIN}{os.pathsep}{env['PATH']}",
            "PYTHONPATH": str(self.site),
            "COLUMNS": "250",
            # Has no effect where the machine can isolate.
            "SWE_SANDBOX__LOCAL__UNISOLATED": "true",
            **FRUGAL,
        }
        options = f"--no-deps --no-build-isolation --no-index --disable-pip-version-check -q -t {self.site}"
        command = command.replace("pip install ", f"python -m pip install {options} ")
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.home,
            env=env,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )


def same(line: str) -> str:
    """`line` without what differs from run to run: times, dates, widths."""
    line = re.sub(r"runs/\d{8}-\d{6}", "runs/DATE", line)
    line = re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", line)
    line = re.sub(r"\b\d+(\.\d+)? ?s\b", "SECONDS", line)
    line = re.sub(r"\b\d+\.\d\b$", "SECONDS", line)
    line = re.sub(r"\b\d+ deselected", "N deselected", line)
    return " ".join(line.split())


@pytest.mark.long
@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.parametrize(
    ("page", "block"),  # the first is in `test_one_file_agent_resolves_its_task`
    [pytest.param(page, block, id=f"{page.stem}:{block.line}") for page, block in CONSOLE[1:]],
)
def test_page_prints_what_is_printed(tmp_path: Path, page: Path, block: Block) -> None:
    """Each command of each console block, word for word; `…` stands for lines left out."""
    type_all(Shell(tmp_path, page), block)


@pytest.mark.engine
@pytest.mark.long
@pytest.mark.usefixtures("local_sandbox")
def test_first_training_prints_what_is_printed(tmp_path: Path) -> None:
    """The page's own commands: a model, a server, two steps, and the curves of them."""
    why = missing() or obstacle()
    if why is not None:
        pytest.skip(why)
    (block,) = console(TRAINING)
    shell = Shell(tmp_path, TRAINING)
    type_all(shell, block, timeout=600)
    run = shell.home / "first"
    summary = json.loads((run / "training.json").read_text())
    assert summary["steps"] == 2
    assert summary["tokens"]["trained"] > 0
    assert summary["tokens"]["unaccounted"] == 0
    assert (run / "model" / "config.json").exists()


def type_all(shell: Shell, block: Block, timeout: float = 400) -> None:
    for command, output in shown(block):
        done = shell.type(command, timeout)
        printed = [same(line) for line in done.stdout.splitlines()]
        assert "Traceback" not in done.stdout, f"{command}\n{done.stdout}"
        if any(line.startswith("swe-core: error:") for line in output):
            assert done.returncode == 2
            assert printed == [same(line) for line in output]
            continue
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        rest = iter(printed)
        for line in output:
            if line.strip() != "…":
                assert same(line) in rest, f"{command}\nlacks: {line}\n{done.stdout}"


def test_one_file_agent_resolves_its_task(tmp_path: Path) -> None:
    """Extracted from the guide and run with the printed command."""
    shell = Shell(tmp_path, GUIDE)
    page, block = CONSOLE[0]
    assert page == GUIDE
    assert shown(block)[0][0].startswith("swe-core run -p ./my_agent.py ")
    assert len(files(GUIDE)["my_agent.py"].splitlines()) < 70
    type_all(shell, block)
    (run,) = (shell.home / "runs").iterdir()
    rollout = Rollout.model_validate_json((run / "rollouts.jsonl").read_text())
    assert (rollout.agent, rollout.sandbox, rollout.outcome) == ("mine", "local", "resolved")
    assert rollout.turns > 1
    assert rollout.patch_bytes > 0
    transcript = (run / "rollouts" / rollout.id / "transcript.jsonl").read_text()
    events = [AgentEvent.model_validate_json(line) for line in transcript.splitlines()]
    assert {event.kind for event in events} == {"text", "tool_call", "tool_result"}


def test_snippets_are_sound() -> None:
    """Every Python and TOML block compiles or parses; a complete file is also used by a command."""
    parsers = {"toml": tomllib.loads, "json": json.loads}
    for page in PAGES:
        typed = [command for block in console(page) for command, _ in shown(block)]
        commands = " ".join([*typed, *files(page).values()])
        for block in blocks(page):
            if block.language == "python":
                compile(block.text, f"{page.name}:{block.line}", "exec")
            parsers.get(block.language, str)(block.text)
            if block.file:
                assert block.file.split("/")[0] in commands, f"no command uses {block.file}"


def test_relative_links_resolve() -> None:
    found = [
        (page, link)
        for page in PAGES
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        if "://" not in link
    ]
    assert [(page.name, link) for page, link in found if not (page.parent / link).exists()] == []


def test_rows_are_loaded_as_the_page_says(tmp_path: Path) -> None:
    """The block of the page, run on a rollout with a verdict and one without."""
    (block,) = (block for block in blocks(TOKENS) if block.language == "python")
    run = RunDirectory.create(tmp_path, new_run_info({}, {}, 2, []), Redactor())
    now = datetime.now(UTC)
    for name, outcome in (("good", "resolved"), ("bad", "error")):
        first = Sampled(
            None, ids(1, 2), ids(3, 4), floats(-1, math.nan), ids(7, 8), rendered="full", cause="start"
        )
        second = Sampled(first, ids(5), ids(6), floats(-2), ids(9), rendered="bridge", cause=None)
        book, folder = TokenLog(), run.folder(name)
        for index, sampled in enumerate((first, second)):
            tokens = book.add(index, sampled)
            known = {"seconds": 0, "kept": 0, "messages": [], "params": {}, "reply": None}
            folder.add_turn(Turn(index=index, started_at=now, tokens=tokens, **known))
        folder.close()
        run.append(make_rollout(id=name, outcome=outcome))
    names: dict[str, Any] = {}
    exec(compile(block.text, TOKENS.name, "exec"), names)
    (row,) = names["rows"](RunDirectory.open(tmp_path))
    assert {key: getattr(value, "dtype", None) for key, value in row.items()} == {
        "input_ids": np.int64,
        "completion_mask": np.int64,
        "old_log_probs": np.float32,
        "model_version": None,
        "reward": None,
    }
    assert row["input_ids"].tolist() == [1, 2, 3, 4, 5, 6]
    assert row["completion_mask"].tolist() == [0, 0, 1, 0, 0, 1]
    assert row["old_log_probs"].tolist() == [0, 0, -1, 0, 0, -2]
    assert (row["model_version"], row["reward"]) == (7, 1.0)


def ids(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def floats(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


PLUGINS = {"codex", "docker", "hf", "openenv", "pi", "trl"}


@pytest.mark.parametrize("name", ["cli", "settings"])
def test_generated_page_is_current(name: str) -> None:
    """In another process: options of plugins are added to a command once, for all plugins there are."""
    if absent := PLUGINS - {point.name for point in entry_points(group="swe_core")}:
        pytest.skip(f"the page covers all plugins of this repository, and {absent} are not installed")
    generator = DOCS / f"generate_{name}.py"
    env = {**os.environ, "COLUMNS": "40"}  # the page's width is its own
    command = [sys.executable, str(generator), "--print"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (DOCS / f"{name}.md").read_text(), f"run python {generator}"
