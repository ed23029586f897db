"""Real packages' bugs, from their releases on PyPI, verified and run in both sandboxes."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from swe_testing.registry import Registry, make_image

from .conftest import SweCore
from .sdist_tasks import NoIndex, make_tasks

pytestmark = pytest.mark.slow

PROGRAM = str(Path(sys.executable).parent / "swe-core")
CHEATS = "conftest-root,reports-patched,history-at-work,history-at-test"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return make_tasks(tmp_path_factory.mktemp("sdist"))
    except NoIndex as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def image_rows(rows: Path, docker_engine: str, docker_image: str) -> Iterator[Path]:
    """The same tasks as rows that name an image, with the repository and its later history inside."""
    import docker

    client = docker.APIClient(base_url=docker_engine, version="auto")
    made = []
    changed = []
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        image = f"swe-core-test-{row['instance_id'].lower()}:1"
        context = _context(docker_image, Path(row.pop("repository")))
        for step in client.build(fileobj=context, custom_context=True, tag=image, rm=True, decode=True):
            assert "error" not in step, step
        made.append(image)
        changed.append({**row, "image_name": image})
    path = rows.with_name("image-rows.jsonl")
    path.write_text("".join(f"{json.dumps(row)}\n" for row in changed))
    yield path
    for image in made:
        client.remove_image(image, force=True)
    client.close()


@pytest.fixture(scope="module")
def registry_rows(
    rows: Path, registry: Registry, demo_layout: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same as images of a registry, made without an engine."""
    changed = []
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        name = row["instance_id"].lower()
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as archive:
            archive.add(row.pop("repository"), "testbed", filter=_as_root)
        layout = make_image(tmp_path_factory.mktemp(name) / "layout", [layer.getvalue()], base=demo_layout)
        changed.append({**row, "image_name": registry.push(layout, f"{name}:1")})
    path = rows.with_name("registry-rows.jsonl")
    path.write_text("".join(f"{json.dumps(row)}\n" for row in changed))
    return path


def _context(base: str, repository: Path) -> io.BytesIO:
    """A build context: the base image with the repository in /testbed."""
    made = io.BytesIO()
    dockerfile = f"FROM {base}\nCOPY repository /testbed\n".encode()
    with tarfile.open(fileobj=made, mode="w") as archive:
        head = tarfile.TarInfo("Dockerfile")
        head.size = len(dockerfile)
        archive.addfile(head, io.BytesIO(dockerfile))
        archive.add(repository, "repository", filter=_as_root)
    made.seek(0)
    return made


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    return entry


def verified_and_run(
    tasks: Path, sandbox: str, swe_core: SweCore, tmp_path: Path, *, images: bool = True
) -> None:
    own = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state")}
    report = tmp_path / "report.jsonl"
    chosen = ["--tasks", str(tasks), "--sandbox", sandbox]
    done = subprocess.run(
        [PROGRAM, "tasks", "verify", *chosen, "--cheats", CHEATS, "--repeat", "2", "--out", str(report)],
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert {line["verdict"]: line["reason"] for line in lines} == {"usable": ""}, done.stdout + done.stderr
    assert done.returncode == 0
    assert len(lines) == 2
    for line in lines:
        checks = {check["name"]: check for check in line["checks"]}
        assert checks["history-at-work"]["patch_bytes"] == 0  # nothing was there to be taken
        assert checks["history-at-test"]["patch_bytes"] > 0
    *others, last = lines  # as if a tag had moved; sandboxes without an image have no ids
    moved = [*others, {**last, "image_id": last["image_id"] and "sha256:0"}]
    report.write_text("".join(json.dumps(line) + "\n" for line in moved))
    chosen += ["--verified", str(report)]
    gold = swe_core(*chosen, "--agent", "oracle", env=own)
    assert [rollout["reward"] for rollout in gold.rollouts] == [1.0, 1.0], gold.stdout
    said = " ".join(gold.stderr.split())
    assert said.count(" was verified in the image ") == images
    told = f"{last['task_id']!r} was verified in the image 'sha256:0' and graded in {last['image_id']!r}"
    assert (told in said) == images
    nothing = swe_core(*chosen, "--agent", "nop", env=own)
    assert [rollout["reward"] for rollout in nothing.rollouts] == [0.0, 0.0], nothing.stdout


def test_fix_is_in_the_history_that_the_sandboxes_are_given(rows: Path) -> None:
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        git = ["git", "-C", row["repository"]]
        later = subprocess.run([*git, "rev-list", "--all", "--not", "HEAD"], capture_output=True, text=True)
        assert len(later.stdout.split()) == 1
        assert row["FAIL_TO_PASS"]
        assert len(row["PASS_TO_PASS"]) > 20


@pytest.mark.usefixtures("local_sandbox")
def test_in_the_local_sandbox(rows: Path, swe_core: SweCore, tmp_path: Path) -> None:
    verified_and_run(rows, "local", swe_core, tmp_path, images=False)


@pytest.mark.usefixtures("local_sandbox")
def test_in_the_local_sandbox_with_images(registry_rows: Path, swe_core: SweCore, tmp_path: Path) -> None:
    verified_and_run(registry_rows, "local", swe_core, tmp_path)


@pytest.mark.long
@pytest.mark.docker
def test_in_containers(image_rows: Path, swe_core: SweCore, tmp_path: Path) -> None:
    verified_and_run(image_rows, "docker", swe_core, tmp_path)
