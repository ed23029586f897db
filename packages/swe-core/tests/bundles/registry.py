"""An npm registry on loopback, and packages for it."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from hashlib import sha1, sha256

from swe_core.bundles import NpmPackage
from swe_core.system.seal import digest_of

ONE = NpmPackage("@scope/one", "1.0.0", sha256="", tree="", into="one", keep=("package.json", "dist"))
TWO = NpmPackage(name="two", version="2.0.0", sha256="", tree="", into="one/node_modules/two")
ONE_FILES = {"package.json": "{}", "dist/main.js": "console.log('tiny')", "docs/long.md": "not kept"}
TWO_FILES = {"package.json": "{}", "bin/two": "#!/bin/sh\n"}


def tarball(files: Mapping[str, str]) -> bytes:
    """Return an npm tarball, the same bytes every time."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"package/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(packed.getvalue(), mtime=0)


def pinned(package: NpmPackage, files: Mapping[str, str]) -> NpmPackage:
    """Return the package with the pins of these files."""
    kept = {
        name: f"{'program' if name in package.executable else 'file'} {sha256(text.encode()).hexdigest()}"
        for name, text in files.items()
        if not package.keep or name.startswith(package.keep)
    }
    return replace(package, sha256=sha256(tarball(files)).hexdigest(), tree=digest_of(kept))


@dataclass
class Registry:
    """Answers with package documents and tarballs.

    Attributes:
        url: Its address.
        packages: Name → version and files.
        asked: The paths of all requests.
    """

    url: str = ""
    packages: dict[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def add(self, package: NpmPackage, files: Mapping[str, str]) -> NpmPackage:
        """Hold a package, and return it with its pins."""
        self.packages[package.name] = (package.version, files)
        return pinned(package, files)

    def tarball(self, name: str) -> bytes:
        """Return the tarball of a package."""
        return tarball(self.packages[name][1])

    def answer(self, path: str) -> bytes | None:
        """Return the body for a path; None is answered 404."""
        self.asked.append(path)
        name = path.strip("/").replace("%2f", "/").replace("%2F", "/")
        if name.startswith("tarball/"):
            return self.tarball(name.removeprefix("tarball/"))
        if name not in self.packages:
            return None
        version, _ = self.packages[name]
        dist = {
            "tarball": f"{self.url}/tarball/{name.replace('/', '%2f')}",
            "shasum": sha1(self.tarball(name), usedforsecurity=False).hexdigest(),
        }
        manifest = {"name": name, "version": version, "dist": dist}
        return json.dumps({"name": name, "versions": {version: manifest}}).encode()

    @property
    def downloads(self) -> int:
        """How many tarballs were asked for."""
        return sum(path.startswith("/tarball/") for path in self.asked)
