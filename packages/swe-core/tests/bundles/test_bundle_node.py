"""The node of a bundle: how it is found, and that it runs without anything of the image."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from swe_core.bundles import Node, Recipe, ensure_bundle, node, npm
from swe_core.bundles.loader import Missing, libraries_of, loader_of
from swe_core.bundles.node import find_node
from swe_core.errors import AgentError, ConfigError

LOWEST = (22, 19)
ASK = """
const { execFileSync } = require("node:child_process");
const { Worker } = require("node:worker_threads");
const child = execFileSync(process.execPath, [...process.execArgv, "-p", "6*7"]).toString().trim();
const { execPath, execArgv, argv, env } = process;
const maps = require("node:fs").readFileSync("/proc/self/maps", "utf8");
new Worker("require('worker_threads').parentPort.postMessage(process.execPath)", { eval: true })
  .on("message", (worker) => {
    console.log(JSON.stringify({ execPath, execArgv, argv, env, maps, child, worker }));
  });
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_bundle(Recipe("some", (Node(),)), tmp_path_factory.mktemp("bundles")).path


def ask(program: Path | str, cwd: Path, script: Path) -> dict[str, Any]:
    script.write_text(ASK)
    command = [program, script, "argument"]
    answer: dict[str, Any] = json.loads(subprocess.check_output(command, cwd=cwd, env={"A": "1"}))
    return answer


def test_node_and_its_children_see_a_plain_node(bundle: Path, tmp_path: Path) -> None:
    """They run with the bundle's libraries, start themselves again by `process.execPath`, and find nothing of
    the loader."""
    program, script = bundle / "bin/node", tmp_path / "ask.js"
    said = ask(program, tmp_path, script)
    env = {name: value for name, value in said.pop("env").items() if name not in ("PWD", "SHLVL", "_")}
    assert env == {"A": "1"}
    libraries = {line.split()[-1] for line in said.pop("maps").splitlines() if ".so" in line}
    assert len(libraries) >= 3
    assert {Path(path).parent for path in libraries} == {bundle / "runtime/node"}
    assert said == {
        "execPath": str(program), "execArgv": [], "argv": [str(program), str(script), "argument"],
        "child": "42", "worker": str(program),
    }  # fmt: skip


def test_node_is_found_through_links_and_relative_paths(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(bundle / "bin/node")
    (tmp_path / "assets").symlink_to(bundle)
    for program in ("./link", "./assets/bin/../bin/node"):
        assert ask(program, tmp_path, tmp_path / "ask.js")["child"] == "42"


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("", "does not run as a node"),
        ("[]", "does not run as a node"),
        ('{"version": "20.19.2", "path": "/x", "shared": false}', r"is node 20\.19\.2, .* too old"),
        ('{"version": "22.19.0", "path": "/x", "shared": true}', "not self-contained"),
    ],
)
def test_configured_node_that_does_not_fit_is_refused(tmp_path: Path, says: str, why: str) -> None:
    """But a script around one that fits is seen through."""
    real = find_node("some", LOWEST)
    assert find_node("some", LOWEST, script(tmp_path / "around", f'exec "{real}" "$@"')) == real
    with pytest.raises(ConfigError, match=rf"^agent\.some\.node: .*{why}.*22\.19 .* or leave it unset"):
        find_node("some", LOWEST, script(tmp_path / "node", f"echo '{says}'"))


def test_node_of_path_is_examined_without_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "wheel_file", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AgentError, match="'some' needs a node to bundle, but there is none: install"):
        find_node("some", LOWEST)
    script(tmp_path / "node", """echo '{"version": "18.1.0", "path": "/x", "shared": false}'""")
    with pytest.raises(AgentError, match=r"but '.*/node' is node 18\.1\.0, which is too old: 22\.19 is the"):
        find_node("some", LOWEST)


def test_node_without_libraries_cannot_be_bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    static = tmp_path / "node"
    static.write_bytes(b"\x7fELF\x02\x01" + bytes(58))
    monkeypatch.setattr(node, "find_node", lambda *_: static)
    with pytest.raises(AgentError, match=r"cannot bundle the node '.*/node': .* no dynamic program"):
        Node().resolve("some")


def test_library_that_the_host_lacks_is_named(tmp_path: Path) -> None:
    """As the loader says it."""
    loader = script(tmp_path / "ld.so", "printf '\\tlibgone.so.1 => not found\\n'")
    with pytest.raises(Missing, match=r"'/bin/true' needs the library 'libgone\.so\.1', which this"):
        libraries_of(loader, Path("/bin/true"))
    assert os.access(loader_of(Path("/bin/true").resolve()), os.X_OK)
    assert npm.wheel_file("absent") is None
