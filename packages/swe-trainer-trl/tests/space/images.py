"""Images with Python for the tests of this folder: there is no registry to pull from."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker

PACKAGES = "/usr/lib/here/site-packages"
"""Where installed packages are looked for: dill pickles modules from elsewhere by value."""


@contextmanager
def image(client: docker.DockerClient, base: str, context: Path, tag: str) -> Iterator[str]:
    """For as long as the block lasts: `base`, with the packages that lie in `context`, for pip to find."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    library = next(line.split()[-1] for line in known.splitlines() if line.split()[:1] == ["libnuma.so.1"])
    shutil.copy(library, context)
    (context / "Dockerfile").write_text(
        f"FROM {base}\nCOPY packages {PACKAGES}\n"
        "COPY libnuma.so.1 /usr/local/lib/\nRUN ldconfig\n"
        "RUN there=$(python3 -c 'import site; print(site.getsitepackages()[0])') "
        f"&& mkdir -p $there && echo {PACKAGES} >$there/packages.pth\n"
    )
    client.images.build(path=str(context), tag=tag, rm=True)
    yield tag
    client.images.remove(tag, force=True)
