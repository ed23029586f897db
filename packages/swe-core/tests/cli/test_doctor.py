"""`swe-core doctor`: missing requirements with remedies, no secret, and isolated checks."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from swe_core.api.checks import Check, Finding
from swe_core.cli.doctor import checks as examination
from swe_core.cli.doctor import machine
from swe_core.cli.doctor.checks import PlannedCheck, look, secrets_of
from swe_core.cli.doctor.command import doctor
from swe_core.cli.doctor.endpoint import endpoint
from swe_core.plugins.manager import PluginSet
from swe_core.system.redaction import Redactor

SECRET = "sk-a-secret-never-to-be-shown"
SECRETS = {
    "OPENAI_API_KEY": SECRET,
    "HF_TOKEN": f"{SECRET}-hf",
    "MY_PASSWORD": f"{SECRET}-pw",
    "HTTPS_PROXY": f"http://me:{SECRET}-proxy@127.0.0.1:9",
}
PLUGIN = """
import os, time
from swe_core import Component, hookimpl
from swe_core.api.checks import Check, Finding

def raising():
    raise RuntimeError(f"cannot log in with {os.environ['OPENAI_API_KEY']} and {os.environ['MY_PASSWORD']}")

@hookimpl
def swe_checks():
    return [
        Check("a thing", "the test", lambda: Finding("%s", "is\\x1b[2J there", "Buy one.")),
        Check("a raising thing", "the test", raising),
    ]
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWE_PLUGINS", "")  # no plugin but the built-in ones
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "mine.py"
        path.write_text(text)
        return str(path)

    return write


def examined(*options: str) -> Result:
    return CliRunner().invoke(doctor, options, env={"COLUMNS": "200"})


def asked(name: str, look: Callable[[], Any], used: bool = True) -> PlannedCheck:
    return PlannedCheck("a", Check(name, "the test", look), used)


def test_missing_requirement_is_exit_code_1_and_no_secret_is_shown(file: Callable[[str], str]) -> None:
    url = f"http://me:{SECRET}@127.0.0.1:9/v1?key={SECRET}"
    asked = ("-p", file(PLUGIN % "missing"), "--engine-url", url)
    done, as_json = examined(*asked), examined(*asked, "--json")
    for one in (done, as_json):
        assert one.exit_code == 1
        assert "cannot log in with [redacted] and [redacted]" in one.output
        assert "127.0.0.1:9/v1" in one.output
        assert SECRET not in one.output
    assert "Buy one. Needed for: the test." in done.output
    assert "Missing: a thing (mine), a raising thing (mine)" in done.output
    assert "\x1b" not in done.output
    found = json.loads(as_json.output)
    assert found["ready"] is False
    (mine,) = (check for check in found["checks"] if check["name"] == "a thing")
    assert 0 <= mine.pop("seconds") < 20
    assert mine == {
        "plugin": "mine", "used": True, "name": "a thing", "needed_for": "the test", "state": "missing",
        "text": "is\x1b[2J there", "remedy": "Buy one.",
    }  # fmt: skip


def test_unselected_plugins_may_lack_requirements(file: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swe_core.builtin.vllm._missing", lambda: ["renderers"])
    monkeypatch.setattr("swe_core.builtin.local.checks.why_not", lambda _: None)
    text = (PLUGIN % "ok").replace("    raise RuntimeError", "    return Finding('info', 'x') or str")
    done = examined("-p", file(text))
    assert done.exit_code == 0
    assert "Nothing is missing for a run with these plugins." in done.output
    for said in ("git", "memory", "processors", "disk for runs", "GPUs", "bubblewrap", "OPENAI_API_KEY",
                 "pip install 'swe-core[vllm]'", "(not chosen)"):  # fmt: skip
        assert said in done.output
    chosen = examined("--plugins", "vllm")
    assert chosen.exit_code == 1
    assert "Missing: libraries (vllm)" in chosen.output


@pytest.mark.parametrize(
    ("value", "why"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("['x']", "expected Checks, and one is 'x'")],
)
def test_failing_check_hook_is_reported(file: Callable[[str], str], value: str, why: str) -> None:
    path = file(f"from swe_core import hookimpl\n@hookimpl\ndef swe_checks():\n    return {value}\n")
    done = examined("-p", path)
    assert done.exit_code == 1
    assert f"it failed in swe_checks: {why}" in done.output
    assert "Python" in done.output


def test_broken_plugin_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    plugins = PluginSet(allow=())
    plugins.plugins["mini"].error = "it is broken"
    (one,) = (one for one in examination.asked_of(plugins) if one.plugin == "mini")
    assert one.used
    assert one.check.look().text == "it is broken"


def test_hanging_check_is_one_line() -> None:
    held = threading.Event()
    checks = [asked("hangs", held.wait), asked("answers", lambda: Finding("ok", "yes"))]
    hangs, answers = look(checks, Redactor(), patience=1.0)
    held.set()
    assert (hangs.finding.state, hangs.finding.text) == ("missing", "gave no answer within 1 s")
    assert answers.finding.text == "yes"


def test_hanging_check_does_not_block_the_exit(file: Callable[[str], str]) -> None:
    path = file(
        "import time\nfrom swe_core import hookimpl\nfrom swe_core.api.checks import Check\n"
        "@hookimpl\ndef swe_checks():\n    return [Check('sleeper', 'x', lambda: time.sleep(1000))]\n"
    )
    program = (
        "import sys; from swe_core.cli.doctor import checks; checks.look.__defaults__ = (0.1,)\n"
        f"from swe_core.cli import main; sys.argv = ['swe-core', 'doctor', '-p', {path!r}]; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.returncode == 1, done.stderr
    assert "gave no answer within 0.1 s" in done.stdout
    assert done.stderr == ""


def test_check_result_of_another_type_is_reported() -> None:
    for given in (None, Finding("fine", "")):
        (result,) = look([asked("odd", lambda given=given: given)], Redactor())
        assert result.finding.text == f"its check returned {given!r}, expected a Finding"
        assert result.blocks


def test_results_keep_the_order_of_the_checks_and_one_may_exit() -> None:
    first = threading.Event()
    checks = [
        asked("late", lambda: Finding("ok", str(first.wait(10)))),
        asked("early", lambda: first.set() or Finding("ok", "")),
        asked("leaves", lambda: sys.exit(3)),
    ]
    results = look(checks, Redactor())
    assert [result.asked.check.name for result in results] == ["late", "early", "leaves"]
    assert results[2].finding.text == "SystemExit: 3"


def test_secrets_come_from_the_environment() -> None:
    redactor = secrets_of({**SECRETS, "HOME": "/home/user"})
    for value in (*SECRETS.values(), "/home/user"):
        assert SECRET not in redactor.text(f"the text {value}")
    assert redactor.text("/home/user") == "/home/user"


def test_low_disk_space_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    found = machine.disk(tmp_path / "file" / "runs", "give another place with --out")
    assert (found.state, found.remedy) == ("missing", "Give another place with --out.")
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(2**29))
    found = machine.disk(tmp_path / "not" / "there", "give another place with --out")
    assert found == Finding(
        "missing", f"0.5 GiB free in '{tmp_path}/not/there'", "Make room, or give another place with --out."
    )


def test_git_memory_and_gpus_are_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    available, total = machine._available_memory()
    assert 0 < available <= total
    checks = {check.name: check.look for check in machine.machine_checks()}
    monkeypatch.setattr(machine, "_available_memory", lambda: (2**29, 2**34))
    memory = checks["memory"]()
    assert memory.text == "0.5 GiB available of 16.0 GiB"
    assert "--concurrency 1" in memory.remedy
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = Finding("missing", "there is none that runs", "Install your system's package 'git'.")
    assert checks["git"]() == absent
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    program.write_text("#!/bin/sh\necho 'NVIDIA H100, 81559 MiB, 560.35.03'\n")
    program.chmod(0o755)
    assert checks["GPUs"]() == Finding("ok", "NVIDIA H100, 81559 MiB, 560.35.03")
    program.write_text("#!/bin/sh\nexit 9\n")
    assert checks["GPUs"]().state == "missing"
    program.unlink()
    assert checks["GPUs"]().state == "info"


def test_missing_user_namespaces_name_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swe_core.builtin.local.checks.why_not", lambda _: "bubblewrap cannot; allow it")
    done = examined()
    assert done.exit_code == 1
    assert "bubblewrap cannot; allow it" in done.output
    assert "--set sandbox.local.unisolated=true" in done.output


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What answers requests in place of a server: path → status and body."""
    served = SimpleNamespace(replies={}, keys=[])

    def handle(_: object, request: httpx.Request) -> httpx.Response:
        served.keys.append(request.headers.get("Authorization"))
        status, body = served.replies.get(request.url.path, (404, b"{}"))
        return httpx.Response(status, content=body)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle)
    return served


URL = "http://127.0.0.1:9/v1"


def models(*names: str) -> tuple[int, bytes]:
    return 200, json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()


def test_endpoint_lists_its_models(served: Any) -> None:
    served.replies = {"/v1/models": models(*"abcdefg")}
    for url in (URL, URL.removesuffix("v1")):
        found = endpoint(url, "OPENAI_API_KEY", "the-key")
        assert found.state == "ok"
        assert found.text.endswith("serves 'a', 'b', 'c', 'd', 'e', … (7 in all)")
        assert served.keys[-1] == "Bearer the-key"
    endpoint(URL, None, None)
    assert served.keys[-1] is None


def test_unusable_endpoint_is_missing(served: Any) -> None:
    for reply, words, remedy in (
        ((401, b"no"), "answers, and wants another key", "Set OPENAI_API_KEY to a key that it takes."),
        ((200, b"<html>"), "answers with status 200 and no list of models", "OpenAI-compatible"),
    ):
        served.replies = {"/v1/models": reply}
        found = endpoint(URL, "OPENAI_API_KEY", "a-key")
        assert (found.state, words in found.text, remedy in found.remedy) == ("missing", True, True)


def test_secrets_in_a_url_are_not_shown_and_an_invalid_one_is_reported() -> None:
    found = endpoint("http://me:pass-word@127.0.0.1:9/v1?key=query-word", None, None)
    assert found.text.startswith("http://127.0.0.1:9/v1 does not answer")
    assert "word" not in found.text
    for given in ("nonsense", "ftp://host/v1", "http://", "http://[::1", "http://h:99999999"):
        assert endpoint(given, None, None).text == "is no http or https URL"


def test_engine_url_option_is_checked(served: Any) -> None:
    served.replies = {"/v1/models": models("my-model")}
    assert "serves 'my-model'" in examined("--engine-url", URL).output
    assert served.keys == [f"Bearer {SECRET}"]  # as a run would ask it
