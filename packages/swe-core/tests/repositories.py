"""Repositories on the host that sandboxes get copies of, and the sandboxes that get them."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import pytest

from swe_core.api.grader import Grader
from swe_core.api.sandbox import Sandbox, SandboxProvider, SandboxSpec
from swe_core.builtin import local
from swe_core.builtin.local import bwrap
from swe_core.builtin.swe import SweGraderConfig, swe_graders
from swe_core.sandboxing.repository.patch import export_patch, record_base


def slow_but(fast: Collection[Any], cases: Collection[Any]) -> list[Any]:
    """Return all `cases` of a parametrised test; those that are not `fast` are slow."""
    assert set(fast) <= set(cases), "no such case"
    return [case if case in fast else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def swe_grader(**settings: Any) -> Grader:
    """Return a new grader "swe"."""
    (component,) = swe_graders()
    return component.create(SweGraderConfig(**settings))


class Repo:
    """A git repository on the host that sandboxes get copies of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(exist_ok=True)
        self.sh("git init -q && git config user.name T && git config user.email t@example.org")

    def sh(self, script: str) -> str:
        """Run a bash script in it and return what it printed."""
        argv = ["bash", "-euc", script]
        done = subprocess.run(argv, cwd=self.path, stdout=subprocess.PIPE, check=True)
        return done.stdout.decode()

    def commit(self, **files: str) -> None:
        """Write files (`sub__a_py="…"` is `sub/a.py`) and commit everything."""
        for name, content in files.items():
            path = self.path / name.replace("__", "/").replace("_py", ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        self.sh("git add -A && git commit -q --allow-empty -m change")

    def diff(self, script: str) -> str:
        """Return the changes of a script as a patch of a data set; reset the repository."""
        self.sh(script)
        patch = self.sh("git add -A && git diff --cached --no-color")
        self.sh("git reset -q --hard && git clean -fdq")
        return patch

    async def patch_by(self, script: str, provider: SandboxProvider) -> bytes:
        """Return the exported changes of a bash script in a sandbox with a copy of the repository."""
        async with provider.open(self.spec) as sandbox:
            base = await record_base(sandbox)
            done = await sandbox.exec(["bash", "-euc", script])
            assert done.exit_code == 0, done.stderr
            return await export_patch(sandbox, base)

    @property
    def head(self) -> str:
        return self.sh("git rev-parse HEAD").strip()

    @property
    def spec(self) -> SandboxSpec:
        """The spec of a sandbox with a copy of it."""
        return SandboxSpec(repository=self.path, network="none")


async def sh(sandbox: Sandbox, script: str) -> str:
    """Run a script in a sandbox and return what it printed."""
    done = await sandbox.exec(["sh", "-euc", script], timeout=60)
    assert done.exit_code == 0, done.stdout.decode() + done.stderr.decode()
    return done.text


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


@pytest.fixture(scope="session", params=["local"])
def provider(request: pytest.FixtureRequest) -> SandboxProvider:
    """A provider that accepts a repository directory."""
    if (obstacle := bwrap.why_not(bwrap.find_bwrap())) is not None:
        pytest.skip(obstacle)
    component = next(c for c in local.swe_sandboxes() if c.name == request.param)
    return component.create(component.config())


@pytest.fixture(scope="module")
async def sandbox(provider: SandboxProvider) -> AsyncIterator[Sandbox]:
    """A sandbox without a repository, for all tests of a file."""
    async with provider.open(SandboxSpec(network="none", disk_mb=512)) as opened:
        yield opened
