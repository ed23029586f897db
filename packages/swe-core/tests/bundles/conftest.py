"""Own seals and caches for each test, and an npm registry on loopback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from swe_core.bundles import NpmPackage, npm

from .registry import ONE, ONE_FILES, TWO, TWO_FILES, Registry


@pytest.fixture(autouse=True)
def _own_folders(own_folders: None) -> None:
    pass


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Registry]:
    """A registry that npm is configured to use."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = registry.answer(self.path)
            self.send_response(200 if body is not None else 404)
            self.end_headers()
            self.wfile.write(body or b"{}")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("npm_config_registry", registry.url)
    monkeypatch.setenv("npm_config_@scope:registry", registry.url)
    monkeypatch.setenv("npm_config_noproxy", "127.0.0.1")
    monkeypatch.setenv("npm_config_cache", str(tmp_path / "npm-cache"))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield registry
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def packages(registry: Registry) -> list[NpmPackage]:
    """Two tiny packages, one of which lies in the folder of the other."""
    return [registry.add(ONE, ONE_FILES), registry.add(TWO, TWO_FILES)]


@pytest.fixture
def without_npm(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tarballs without npm, each run of which takes a second."""

    def fetch(spec: str, into: Path, agent: str) -> Path:
        path = into / "package.tgz"
        path.write_bytes(registry.tarball(spec.rpartition("@")[0]))
        return path

    monkeypatch.setattr(npm, "fetch", fetch)
