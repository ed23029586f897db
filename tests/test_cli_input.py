"""Wrong input on the command line: one sentence, exit code 2, nothing started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from swe_core.plugins.builtins import KNOWN_COMMANDS, KNOWN_DISTRIBUTIONS
from swe_core.plugins.manager import PluginSet
from swe_testing.hf import LocalHF

from .conftest import Command, SweCore

URL = ("--engine-url", "http://127.0.0.1:9/v1", "--model", "m")
HANDED_OVER = ("--mode", "black-box", "--network", "full", "--agent-key-env", "PATH", "--model", "m")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--plugins", "nonsense"], "unknown plugin 'nonsense'"),
        (["--plugins", "oracle,nop"], "'oracle'.*'nop'.*--agent"),
        (["--agent", "orakle"], "unknown agent 'orakle' (did you mean 'oracle'?)"),
        (["--sandbox", "nonsense"], "unknown sandbox 'nonsense'"),
        (["-p", "./none.py"], "no such file"),
        (["--tasks", "none.jsonl"], "neither a file nor a data set OWNER/NAME nor a task source"),
        (["--tasks", "dmo"], "did you mean 'demo'?"),
        (["--task", "nonsense"], "--task 'nonsense': no such task"),
        (["--attempts", "0"], "'--attempts': 0 is not in the range"),
        (["--set", "run.attempts=0"], "run.attempts"),
        (["--concurrency", "0"], "'--concurrency': 0 is not in the range"),
        (["--limit", "0"], "'--limit': 0 is not in the range"),
        (["--engine", "openai"], "--engine-url"),
        (["--engine", "openai", "--engine-url", "http://127.0.0.1:9/v1"], "--model"),
        (["--engine", "replay", *URL], "takes no --engine-url"),
        (["--recording", "none.jsonl"], "none.jsonl"),
        (["--mode", "black-box", *URL], "--network full"),
        (["--mode", "black-box", "--network", "full", *URL], "--agent-key-env"),
        (["--mode", "black-box", "--network", "full", *URL, "--agent-key-env", "SWE_NO_SUCH"], "SWE_NO_SUCH"),
        ([*HANDED_OVER, "--engine-url", "notaurl"], "not a base URL"),
        ([*HANDED_OVER, "--engine-url", "http://user:passw0rd@127.0.0.1:9/v1"], "has a user or password"),
        (["--plugins", "hf", "--set", "sandbox.hf.flavour=x"], "did you mean 'flavor'?"),
        (["-p", "no:local"], "'local' is blocked by -p no:local"),
        (["--agent-key-env", "PATH", *URL], "--agent-key-env is for --mode black-box"),
        (["--agent", "oracle", *URL], "'oracle' makes no LLM calls: leave out --model and --engine-url"),
        (["--agent", "nop", "--mode", "black-box"], "'nop' makes no LLM calls: leave out --mode"),
        (["--recording", "r.jsonl", "--record", "./r.jsonl"], "--record and --recording name the same file"),
        (["--attempts", "2", "--set", "run.attempts=3"], "another option sets 'run.attempts' to a different"),
        (["--split", "dev"], "takes no --split: leave it out"),
        (["--resume", "nowhere"], "there is no run 'nowhere'"),
        (["--agnet", "pi"], "no such option '--agnet'; did you mean '--agent'?"),
        (["--attempts", "x"], "invalid value for '--attempts': 'x' is not a whole number; see `swe-core run"),
        (["--mode", "white"], "run.mode"),
        (["--network", "some"], "resources.network"),
        (["--set", "sandbox.locl.x=1"], "did you mean 'local'?"),
        (["--set", "sandbox.local.nonsense=1"], "unknown setting 'nonsense'"),
        (["--config", "none.toml"], "cannot read the settings file"),
        (["--sandbox", "local", "--attempts", "x"], "--attempts"),
    ],
)
def test_one_sentence_and_exit_code_2(swe_core: SweCore, args: list[str], says: str) -> None:
    done = swe_core(*args)
    assert done.code == 2, done.stderr
    for part in says.split(".*"):
        assert part in done.stderr
    assert "passw0rd" not in done.stderr
    assert not done.out.exists()


def test_task_file_with_a_bad_row(swe_core: SweCore, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    row = {"instance_id": "a__b-1", "repo": "a/b",
           "base_commit": "0" * 40, "problem_statement": "p", "patch": "",
           "test_patch": "", "FAIL_TO_PASS": "not a list", "PASS_TO_PASS": []}  # fmt: skip
    file.write_text(json.dumps(row))
    done = swe_core("--tasks", str(file), *URL)
    assert done.code == 2
    assert "FAIL_TO_PASS" in done.stderr
    assert "a__b-1" in done.stderr


def test_used_run_directory(swe_core: SweCore, tmp_path: Path) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "file").write_text("")
    done = swe_core("--agent", "nop")
    assert done.out == tmp_path / "run-1"
    assert done.code == 2
    assert "not empty" in done.stderr


def test_full_disk_behind_the_output_is_one_sentence() -> None:
    script = "import sys; from swe_core.cli import main; sys.argv = ['swe-core', 'plugins']; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", script], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "swe-core: error: the output cannot be written: No space left on device\n"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "no sandbox for the agents: "),
        (("--network", "none"), "no sandbox for the agents: "),
        (("--network", "full"), "no sandbox for the tests: "),  # which are run without any
        (("--sandbox-retries", "3", "--attempts", "9"), "no sandbox for the agents: "),
    ],
)
def test_network_that_the_sandbox_cannot_deny_is_refused_once(
    swe_core: SweCore, threaded_hf: LocalHF, args: tuple[str, ...], says: str
) -> None:
    done = swe_core("--plugins", "hf", "--agent", "nop", *args, env=threaded_hf.environment())
    assert done.code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"swe-core: error: {says}")
    assert "set sandbox.hf.internet = true to accept it" in line
    assert done.stdout == ""
    assert not done.out.exists()
    assert not threaded_hf.calls


def test_limits_that_the_service_cannot_give_are_refused_once(
    swe_core: SweCore, threaded_hf: LocalHF
) -> None:
    """Which only the service knows, so it is asked, and for nothing else."""
    args = ("--plugins", "hf", "--agent", "nop", "--set", "sandbox.hf.internet=true")
    done = swe_core(*args, "--set", "resources.memory_mb=20000", env=threaded_hf.environment())
    assert done.code == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("swe-core: error: no sandbox for the agents: the flavor 'cpu-basic'")
    assert not done.out.exists()
    assert not threaded_hf.jobs.running()


@pytest.mark.parametrize("name", ["tasks verify", "regrade"])
def test_network_that_the_sandbox_cannot_deny_is_refused_before_anything_is_graded(
    swe_core: SweCore, threaded_hf: LocalHF, command: Command, name: str
) -> None:
    args = ["--plugins", "hf"]
    if name == "regrade":
        graded = swe_core("--agent", "oracle", "--task", "demo__memofn-1")
        info = json.loads((graded.out / "run.json").read_text())
        info["settings"]["run"]["sandbox"] = "hf"
        (graded.out / "run.json").write_text(json.dumps(info))
        args = [str(graded.out)]
    done = command(*name.split(), *args, env=threaded_hf.environment())
    assert done.code == 2, done.stderr
    assert "no sandbox for the tests: " in done.stderr.splitlines()[-1]
    assert done.stdout == ""
    assert not threaded_hf.calls


def test_report_refuses_what_it_would_ignore(swe_core: SweCore, command: Command) -> None:
    done = swe_core("--agent", "oracle", "--task", "demo__memofn-1")
    for option in ("--json", "--csv", "--html"):
        value = [] if option == "--json" else [str(done.out / "file")]
        refused = command("report", str(done.out), "--all", option, *value)
        assert (refused.code, refused.stdout) == (2, "")
        assert refused.stderr.startswith("swe-core: error: --all is for the printed tables")


def test_help_lists_commands_of_known_plugins_as_they_describe_themselves() -> None:
    """Without loading them: what it says is written down in the core."""
    known = PluginSet(allow=list(KNOWN_DISTRIBUTIONS))
    if missing := {"openenv", "trl"} - known.plugins.keys():
        pytest.skip(f"{missing} are not installed")
    group = click.Group()
    assert known.notify("swe_commands", cli=group) == []
    described = {name: one.get_short_help_str(1000) for name, one in group.commands.items()}
    assert described == {name: text for name, (_, text) in KNOWN_COMMANDS.items()}


HELP = """
import sys
from swe_core.cli import main
sys.argv = ["swe-core", "--help"]
try:
    main()
finally:
    print("loaded:", *(name for name in sys.modules if name.startswith(("swe_trainer", "pydantic", "rich"))))
"""


@pytest.mark.parametrize(("allowed", "commands"), [("trl", ["job", "restore", "space"]), ("", [])])
def test_help_loads_no_plugin(allowed: str, commands: list[str]) -> None:
    env = {**os.environ, "SWE_PLUGINS": allowed}
    done = subprocess.run([sys.executable, "-c", HELP], env=env, capture_output=True, text=True, check=True)
    *lines, loaded = done.stdout.splitlines()
    assert loaded == "loaded:"
    after = lines[lines.index(next(line for line in lines if line.startswith("  config "))) + 1 :]
    assert [line.split()[0] for line in after] == commands


COMMANDS = ("space", "job", "restore")
ABSENT = f"""
import sys
from swe_core.plugins import manager
from swe_core.cli import main
manager._installed = lambda: set()
for command in {COMMANDS!r}:
    sys.argv = ["swe-core", command]
    try:
        main()
    except SystemExit as end:
        print(end.code)
"""


def test_command_of_a_missing_package_names_the_package(command: Command) -> None:
    """A plugin that may not be loaded is the same to the command line, and its sentence says which it is."""
    for name in COMMANDS:
        done = command(name, "--help", env={"SWE_PLUGINS": ""})
        assert (done.code, done.stdout) == (2, "")
        told = "is installed but not in SWE_PLUGINS: add it there or unset it"
        assert done.stderr == f"swe-core: error: the plugin 'trl' {told}\n"
    absent = subprocess.run(
        [sys.executable, "-c", ABSENT],
        env={**os.environ, "SWE_PLUGINS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert absent.stdout == "2\n" * len(COMMANDS)
    told = "swe-core: error: the plugin 'trl' is not installed: pip install swe-trainer-trl\n"
    assert absent.stderr == told * len(COMMANDS)
