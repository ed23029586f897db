"""The docs are true: what they name exists, what they print is printed, and nothing public is left out."""

from __future__ import annotations

import ast
import inspect
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
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import BaseModel

import swe_core as public_names
from swe_core.api.agent import AgentEvent
from swe_core.api.engine import ForkCause, Rendered, Sampled, Usage
from swe_core.api.grader import Grade
from swe_core.api.records import (
    UNDELIVERED,
    Failure,
    Ledger,
    Phases,
    Retried,
    Rollout,
    SandboxTime,
    Turn,
    TurnTokens,
    Undelivered,
)
from swe_core.plugins import hookspecs
from swe_core.report.training_metrics import StepMetrics
from swe_core.rollout.run_directory import RunDirectory, RunInfo, new_run_info
from swe_core.rollout.training_records import ClosedGroup, GroupMember, TrainedRow, Vocabulary
from swe_core.system.redaction import Redactor
from swe_core.tokens.ledger import NO_LOGPROBS, RETRIED
from swe_core.tokens.token_log import TokenLog
from swe_testing.records import make_rollout
from swe_testing.serving.start import FRUGAL, missing, obstacle
from swe_trainer_trl.config import LossOptions, ServerOptions, TRLConfig
from swe_trainer_trl.journal.groups import Skipped
from swe_trainer_trl.presets import preset_names

from .conftest import SweCore

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "plugins.md"
QUICKSTART = ROOT / "docs" / "quickstart.md"
TASKS = ROOT / "docs" / "tasks.md"
ROWS = ROOT / "packages" / "swe-core" / "src" / "swe_core" / "builtin" / "rows"
FORMAT = ROOT / "docs" / "internals" / "run-directory.md"
TOKENS = ROOT / "docs" / "internals" / "tokens.md"
TRAINING = ROOT / "docs" / "training.md"
SPACE = ROOT / "docs" / "space.md"
TRAINER_GUIDE = ROOT / "docs" / "internals" / "training.md"
FILES = ROOT / "packages" / "swe-core" / "src" / "swe_core" / "system" / "files.py"
HUB = ROOT / "packages" / "swe-core" / "src" / "swe_core" / "hub"
TRAINER = ROOT / "packages" / "swe-trainer-trl" / "src" / "swe_trainer_trl"
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


# What the guide shows is what happens.


@dataclass(frozen=True)
class Shown:
    """A command of a console block and the output below it."""

    command: str
    output: list[str]


def shown(block: Block) -> list[Shown]:
    found: list[Shown] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append(Shown(line[2:], []))
        else:
            found[-1].output.append(line)
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
        options = (
            f"--no-deps --no-build-isolation --no-index --disable-pip-version-check -q --target {self.site}"
        )
        command = command.replace("pip install ", f"python -m pip install {options} ")
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.home,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )


def same(line: str) -> str:
    """`line` without what differs from run to run: times, dates, widths."""
    line = re.sub(r"runs/\d{8}-\d{6}", "runs/DATE", line)
    line = re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", line)
    line = re.sub(r"\b\d+(\.\d+)? ?s\b", "SECONDS", line)
    line = re.sub(r"\b\d+\.\d\b$", "SECONDS", line)
    line = re.sub(r"\b\d+ deselected", "N deselected", line)
    return " ".join(line.split())


@pytest.mark.usefixtures("local_sandbox")
@pytest.mark.parametrize(
    ("page", "block"),
    [
        pytest.param(
            *(page, block),
            id=f"{page.stem}:{block.line}",
            marks=[pytest.mark.slow] if len(shown(block)) > 1 else [],
        )
        for page, block in CONSOLE[1:]  # the first is in `test_one_file_agent_resolves_its_task`
    ],
)
def test_page_prints_what_is_printed(tmp_path: Path, page: Path, block: Block) -> None:
    """Each command of each console block, word for word; `…` stands for lines left out."""
    type_all(Shell(tmp_path, page), block)


@pytest.mark.engine
@pytest.mark.slow
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
    for step in shown(block):
        done = shell.type(step.command, timeout)
        printed = [same(line) for line in done.stdout.splitlines()]
        assert "Traceback" not in done.stdout, f"{step.command}\n{done.stdout}"
        if any(line.startswith("swe-core: error:") for line in step.output):
            assert done.returncode == 2
            assert printed == [same(line) for line in step.output]
            continue
        assert done.returncode == 0, f"{step.command}\n{done.stdout}"
        rest = iter(printed)
        for line in step.output:
            if line.strip() != "…":
                assert same(line) in rest, f"{step.command}\nlacks: {line}\n{done.stdout}"


def test_one_file_agent_resolves_its_task(tmp_path: Path) -> None:
    """Extracted from the guide and run with the printed command."""
    shell = Shell(tmp_path, GUIDE)
    page, block = CONSOLE[0]
    assert page == GUIDE
    assert shown(block)[0].command.startswith("swe-core run -p ./my_agent.py ")
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_snippets_are_sound(page: Path) -> None:
    """Every Python and TOML block compiles or parses; a complete file is also used by a command."""
    typed = [step.command for block in console(page) for step in shown(block)]
    commands = " ".join([*typed, *files(page).values()])
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, f"{page.name}:{block.line}", "exec")
        if block.language == "toml":
            tomllib.loads(block.text)
        if block.language == "json":
            json.loads(block.text)
        if block.file:
            assert block.file.split("/")[0] in commands, f"no command uses {block.file}"


# What the docs name exists, and what exists is named.


def test_every_hook_and_every_argument_is_in_the_guide() -> None:
    rows = {
        cells[1].strip().strip("`"): cells[2]
        for line in GUIDE.read_text().splitlines()
        if len(cells := line.split("|")) > 3 and cells[1].strip().startswith("`swe_")
    }
    hooks = {
        name: list(inspect.signature(hook).parameters)
        for name, hook in vars(hookspecs).items()
        if name.startswith("swe_")
    }
    assert hooks.keys() == rows.keys()
    for name, arguments in hooks.items():
        assert [word for word in re.findall(r"`(\w+)`", rows[name]) if word in arguments] == arguments, name


def test_every_role_of_a_component_is_in_the_guide() -> None:
    """Each hook's component type, such as `AgentSpec`, is what its row says it creates."""
    for name, hook in vars(hookspecs).items():
        if name.startswith("swe_") and "Component" in hook.__annotations__["return"]:
            kind = re.search(r"Component\[(\w+)\]", hook.__annotations__["return"])
            assert kind
            assert re.search(rf"\| `{name}` .*`{kind[1]}`", GUIDE.read_text()), name


def test_every_column_of_a_task_is_documented() -> None:
    """Those that the readers of rows ask for by name, and no other."""
    asking = {"text", "optional", "has", "table", "image", "command", "commit", "diff", "_ids", "_matching"}
    columns = {"base_commit"}  # the default of `commit`
    for path in ROWS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
                first = node.args[0]
                if node.func.attr in asking and isinstance(first, ast.Constant):
                    columns.add(first.value)
    rows = [line.split("|")[1] for line in TASKS.read_text().splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == columns


@pytest.fixture(scope="session")
def options() -> set[str]:
    """The long and short options of all commands, from the page that is generated from their `--help`."""
    return set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", (ROOT / "docs" / "cli.md").read_text()))


def code(page: Path) -> str:
    """What stands between backticks on a page, and in its blocks that are no files."""
    text = page.read_text()
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    typed = [block.text for block in blocks(page) if not block.file]
    return "\n".join([*inline, *typed])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_named_exists(page: Path, options: set[str]) -> None:
    of_others = re.compile(
        r"^.*\b(pip|pytest|git|make|patch|bwrap|skopeo|umoci|npm|docker|vllm|inspect view"
        r"|openenv (validate|push)|trackio show|tensorboard|mlflow ui|ray start|benchmarks/\w+\.py"
        r"|python -m) .*$",
        re.M,
    )
    of_peers = re.search(r"^## Settings beside .*?(?=^## )", page.read_text(), re.S | re.M)
    peers = set(re.findall(r"`(--[a-z][\w-]*)`", of_peers[0])) if of_peers else set()
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]*", of_others.sub("", code(page)))) - peers
    servers = set(re.findall(r'"(--[a-z-]+)"', (TRAINER / "server" / "vllm_server.py").read_text()))
    assert named - options - servers - {"--help", "--version"} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_target_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", code(page) + page.read_text(), re.M))
    assert named - targets == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_resolve(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_module_named_exists(page: Path) -> None:
    """`swe_core.…` and paths of `swe_core/…` in the docs lead somewhere."""
    missing = []
    for name in set(re.findall(r"\bswe_core(?:\.\w+)+", page.read_text())):
        module, found = __import__(name.split(".")[0]), True
        for part in name.split(".")[1:]:
            if not hasattr(module, part):
                try:
                    __import__(f"{module.__name__}.{part}")
                except (ImportError, AttributeError):
                    found = False
                    break
            module = getattr(module, part)
        if not found:
            missing.append(name)
    assert missing == []


# The public names.


def test_public_names() -> None:
    """A change here is a change for every plugin."""
    assert sorted(public_names.__all__) == public_names.__all__ == [
        "AgentContext", "AgentEvent", "AgentExit", "AgentSpec", "Asset", "ChatRequest", "Completion",
        "Component", "Config", "Delta", "Emit", "Engine", "EngineSession", "ExecResult", "Failure", "Grade",
        "Graded", "Grader", "HostTool", "Process", "Rollout", "RolloutWorker", "Sandbox", "SandboxEntry",
        "SandboxProvider", "SandboxSpec", "Task", "TaskSource", "Turn", "Usage", "hookimpl",
    ]  # fmt: skip


def documented_assignments(module: Path) -> set[str]:
    """Names that are assigned at the top of a module with a docstring below."""
    body = ast.parse(module.read_text()).body
    return {
        target.id
        for statement, after in pairwise(body)
        if isinstance(statement, ast.Assign) and isinstance(after, ast.Expr)
        for target in statement.targets
        if isinstance(target, ast.Name) and isinstance(after.value, ast.Constant)
    }


@pytest.mark.parametrize("name", public_names.__all__)
def test_each_public_name_has_a_docstring(name: str) -> None:
    thing = getattr(public_names, name)
    if inspect.isclass(thing):
        assert thing.__dict__.get("__doc__"), name
    elif name in ("Delta", "Emit"):
        assert name in documented_assignments(ROOT / "packages/swe-core/src/swe_core/api/engine.py")
    else:
        assert inspect.getdoc(thing), name


# The run directory.


@pytest.mark.parametrize(
    ("model", "section"),
    [
        (RunInfo, "run.json"),
        (Rollout, "rollouts.jsonl"),
        (Failure, "rollouts.jsonl"),
        (Grade, "rollouts.jsonl"),
        (Phases, "rollouts.jsonl"),
        (Ledger, "rollouts.jsonl"),
        (SandboxTime, "rollouts.jsonl"),
        (Retried, "rollouts.jsonl"),
        (Turn, "turns.jsonl"),
        (Usage, "turns.jsonl"),
        (TurnTokens, "turns.jsonl"),
        (Undelivered, "turns.jsonl"),
        (StepMetrics, "metrics.jsonl"),
        (Vocabulary, "vocab.json.gz"),
        (TrainedRow, "trained.jsonl"),
        (ClosedGroup, "groups.jsonl"),
        (GroupMember, "groups.jsonl"),
        (AgentEvent, "transcript.jsonl"),
    ],
)
def test_every_field_on_disk_is_documented(model: type[BaseModel], section: str) -> None:
    """Under the heading of the file that it stands in."""
    text = re.split(r"^## ", FORMAT.read_text(), flags=re.M)
    (part,) = (part for part in text if part.startswith(f"{section}\n"))
    fields = [name for name, field in model.model_fields.items() if not field.exclude]
    assert [field for field in fields if f"`{field}`" not in part] == []


def test_every_cause_of_a_fork_is_documented() -> None:
    """And every reason for which the core itself drops tokens."""
    rows = re.findall(r"^\| `(\w+)` \|", TOKENS.read_text(), re.M)
    causes, rendered = get_args(ForkCause), get_args(Rendered)
    assert [row for row in rows if row in causes] == list(causes)
    assert {NO_LOGPROBS, RETRIED, UNDELIVERED, "error", "cancelled"} <= set(rows)
    assert [how for how in rendered if f"`{how}` (" not in TOKENS.read_text()] == []


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


def test_every_file_of_a_run_is_documented(swe_core: SweCore) -> None:
    """And every documented one is there, of a rollout that got to its end."""
    done = swe_core("--task", "demo__memofn-1", env={"SWE_SANDBOX__LOCAL__UNISOLATED": "true"})
    assert done.only["outcome"] == "resolved"
    tree = next(block.text for block in blocks(FORMAT))
    listed = {line.split()[0] for line in tree.splitlines() if re.match(r" +[\w.]+ ", line)}
    written = {path.name for path in done.out.rglob("*") if path.is_file()}
    rare = {"vocab.json.gz", "unshaped.json"}  # of engines that own their tokens; after an error of a plugin
    assert written == listed - rare
    settings = json.loads((done.out / "run.json").read_text())
    assert set(settings) == set(RunInfo.model_fields)


# Training.


def table(page: Path, head: str) -> list[list[str]]:
    """The rows of the table whose first column is headed `head`, as cells."""
    lines = page.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {head} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def in_backticks(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (TRLConfig, "setting of `[worker.trl]`"),
        (LossOptions, "setting of `[worker.trl.loss]`"),
        (ServerOptions, "setting of `[worker.trl.server]`"),
    ],
)
def test_every_setting_of_a_training_is_documented(model: type[BaseModel], head: str) -> None:
    """In the order of the code, with its default; a setting whose cell is empty has none."""
    rows = {in_backticks(cells[0])[0]: cells[1].strip("`") for cells in table(TRAINING, head)}
    defaults = {name: written(field.default) for name, field in model.model_fields.items()}
    assert list(rows.items()) == list(defaults.items())


def written(default: object) -> str:
    """A default as a table has it; nothing where there is none, or an empty one."""
    if not isinstance(default, bool | int | float | str):
        return ""
    return json.dumps(default).strip('"').removesuffix(".0")


def metric_names(*modules: str) -> set[str]:
    """Literals that name a metric; a part that is put in stands as `<its last name>`."""
    found: set[str] = set()
    for module in modules:
        for node in ast.walk(ast.parse((TRAINER / f"{module}.py").read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [
                    str(part.value)
                    if isinstance(part, ast.Constant)
                    else f"<{ast.unparse(part.value).rpartition('.')[2]}>"
                    for part in node.values
                    if isinstance(part, ast.Constant | ast.FormattedValue)
                ]
                found.add("".join(parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    slashed = re.compile(r"[a-z]+/[a-z_<>]*[a-z>]")
    return {name for name in found if slashed.fullmatch(name) or name in ("reward", "kl_ref")}


def test_every_metric_of_a_training_is_documented() -> None:
    named = [name for cells in table(TRAINING, "name") for name in in_backticks(cells[0])]
    assert sorted(named) == sorted(
        metric_names("rollouts/metrics", "rollouts/evaluator", "trainer/trainer", "trainer/worker")
    )


def test_metrics_of_trl_that_are_named_exist() -> None:
    trl = find_spec("trl")
    if trl is None or trl.origin is None:
        pytest.skip("TRL is not installed")
    trainer = Path(trl.origin).parent / "experimental" / "async_grpo" / "async_grpo_trainer.py"
    source = trainer.read_text()
    named = [name for cells in table(TRAINING, "TRL's name") for name in in_backticks(cells[0])]
    assert [name for name in named if f'"{name}"' not in source] == ["loss", "grad_norm"]  # transformers' own


def test_every_reason_to_skip_a_group_is_documented() -> None:
    rows = [in_backticks(cells[0])[0] for cells in table(TRAINING, "skipped as")]
    assert sorted(rows) == sorted(get_args(Skipped))


def test_every_preset_is_documented() -> None:
    assert sorted(in_backticks(cells[0])[0] for cells in table(TRAINING, "preset")) == preset_names()


def test_every_flag_of_the_server_is_documented() -> None:
    source = (TRAINER / "server" / "vllm_server.py").read_text()
    flags = set(re.findall(r'"(--[a-z-]+)"', source)) | set(re.findall(r'"(V?LLM_[A-Z_]+)"', source))
    named = {name for cells in table(TRAINER_GUIDE, "flag or variable") for name in code_words(cells)}
    assert flags - named == set()


def code_words(cells: list[str]) -> set[str]:
    return {word.split("=")[0] for cell in cells for name in in_backticks(cell) for word in name.split()}


@pytest.mark.parametrize("page", [TRAINING, SPACE], ids=lambda page: page.stem)
def test_failures_are_quoted_as_they_are_said(page: Path) -> None:
    """Each sentence of the page's table stands in the code; `…` is what is put in."""
    said = [
        "".join(
            str(part.value) if isinstance(part, ast.Constant) else "…"
            for part in (node.values if isinstance(node, ast.JoinedStr) else [node])
        )
        for module in [*TRAINER.rglob("*.py"), *HUB.glob("*.py"), FILES]
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    ]
    quoted = [text for cells in table(page, "it says") for text in in_backticks(cells[0]) if " " in text]
    assert len(quoted) > 10
    assert [text for text in quoted if not any(text in one for one in said)] == []
