"""A real registry on loopback, and images that need no container engine to be made. Pytest fixtures.

    pytest_plugins = ["swe_testing.registry"]  # in the root conftest.py

They need Debian's docker-registry, skopeo and umoci. Where one is missing, tests are skipped with the reason.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import pytest

_CONFIG = """
version: 0.1
storage: {{filesystem: {{rootdirectory: {root}}}}}
http: {{addr: "127.0.0.1:0"}}
"""
_LISTENS = re.compile(r"listening on (127\.0\.0\.1:\d+)")


@dataclass(frozen=True)
class Registry:
    """A registry that serves.

    Args:
        address: HOST:PORT, the beginning of the names of its images.
        log: What it has written, a line for each request.
    """

    address: str
    log: list[str] = field(default_factory=list)

    def push(self, image: str, name: str) -> str:
        """Put an image in, such as one of `make_image`, and return its name there."""
        reference = f"{self.address}/{name}"
        run_tool("skopeo", "copy", "--quiet", "--dest-tls-verify=false", image, f"docker://{reference}")
        return reference


def run_tool(*argv: str) -> str:
    """Run a program that must succeed, and return its output."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def require(*programs: str) -> None:
    """Skip the test where a program is missing."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: `apt-get install {program}`")


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """Serve an empty registry for the time of the session."""
    require("docker-registry", "skopeo", "umoci")
    directory = tmp_path_factory.mktemp("registry")
    config = directory / "config.yml"
    config.write_text(_CONFIG.format(root=directory / "data"))
    argv = ["docker-registry", "serve", str(config)]
    server = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = server.stdout
    assert lines is not None
    said = ""
    while (found := _LISTENS.search(said)) is None:
        said = lines.readline()
        assert said, "docker-registry ended"
    served = Registry(found[1])
    reader = Thread(target=lambda: served.log.extend(lines))
    reader.start()
    yield served
    server.kill()
    server.wait()
    reader.join()
    lines.close()


def make_image(directory: Path, layers: Sequence[bytes | Path], *config: str, base: str | None = None) -> str:
    """Make an image in a new OCI layout, and return its name, `oci:DIRECTORY:image`.

    Args:
        layers: Tar archives, lowest first.
        config: Options of `umoci config`, such as "--config.env=NAME=VALUE".
        base: Another such image, to which the layers are added.
    """
    require("skopeo", "umoci")
    image = f"{directory}:image"
    if base is None:
        run_tool("umoci", "init", "--layout", str(directory))
        run_tool("umoci", "new", "--image", image)
    else:
        run_tool("skopeo", "copy", "--quiet", base, f"oci:{image}")
    for layer in layers:
        archive = layer if isinstance(layer, Path) else directory / "layer.tar"
        if isinstance(layer, bytes):
            archive.write_bytes(layer)
        run_tool("umoci", "raw", "add-layer", "--image", image, str(archive))
    if config:
        run_tool("umoci", "config", "--image", image, *config)
    return f"oci:{image}"


def static_busybox(folder: Path) -> Path:
    """Debian's static busybox, unpacked into a folder: the host's own may be linked."""
    in_ci = os.environ.get("CI") == "true"
    if shutil.which("apt-get") is None and not in_ci:
        pytest.skip("this machine is not Debian, whose busybox-static is the image")
    download = ["apt-get", "download", "-q", "busybox-static"]
    done = subprocess.run(download, cwd=folder, capture_output=True, text=True, check=False)
    packages = list(folder.glob("*.deb"))
    if not packages and not in_ci:
        pytest.skip(f"busybox-static cannot be fetched: {done.stderr.strip()[-200:]}")
    subprocess.run(["dpkg-deb", "-x", packages[0], folder], check=True)
    return next(path for path in folder.rglob("bin/busybox"))


@pytest.fixture(scope="session")
def busybox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of `static_busybox`."""
    return static_busybox(tmp_path_factory.mktemp("busybox"))


def bare_layer(busybox: Path) -> bytes:
    """Return a file system of one program, links to it, and the directories /tmp and /testbed."""
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout.split()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(busybox.resolve(), "bin/busybox")
        for applet in set(applets) - {"busybox"}:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        for folder in ("tmp", "testbed"):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(member)
    return packed.getvalue()
