"""A second Docker Engine of this machine: own data, own address with TLS."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import docker
import pytest

from swe_core.system.ports import free_port
from swe_sandbox_docker.address import TLS_FILES

_LISTENS = b"API listen on"
_OTHER_FILES = 'mount -t tmpfs none /tmp && exec "$@"'
"""As on another machine, this one's temporary files are not there."""


class SecondEngine:
    """A dockerd that a test may kill and start again.

    Attributes:
        url: Its address, `tcp://127.0.0.1:PORT`.
        socket: Another address of it, for those who must not use TLS.
        tls: Folder with the client's certificates.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self.socket = f"unix://{folder}/docker.sock"
        self.tls = folder / "client"
        make_certificates(folder)

    def start(self) -> None:
        """Start it, and return once it listens."""
        folder = self._folder
        authority, certificate, key = (str(folder / "server" / name) for name in TLS_FILES)
        argv = ["unshare", "--mount", "sh", "-c", _OTHER_FILES, "sh", "dockerd"]
        argv += ["--data-root", folder / "data", "--exec-root", folder / "exec"]
        argv += ["--pidfile", folder / "pid", "--iptables=false", "--ip6tables=false"]
        # It shares docker0, which another setting would remove (`--bridge=none`), with addresses of its own.
        argv += ["--fixed-cidr=172.17.128.0/17"]
        argv += ["--tlsverify", "--tlscacert", authority, "--tlscert", certificate, "--tlskey", key]
        argv += ["-H", self.url, "-H", self.socket]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stderr is not None
        listening, said = 0, b""
        for line in self._process.stderr:
            listening += _LISTENS in line
            said = line
            if listening == 2:
                break
        else:
            pytest.skip(f"a second dockerd does not start here: {said.decode(errors='replace')}")
        # Nobody reads on: it must not block on a full pipe.
        drain = subprocess.Popen(["cat"], stdin=self._process.stderr, stdout=subprocess.DEVNULL)
        self._process.stderr.close()
        self._drain = drain

    def kill(self) -> None:
        """Kill it with SIGKILL, and with it its containerd. Its containers keep running."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._drain.wait()
            self._process = None
        # Where nothing has reaped it yet, the next dockerd would take the old containerd for a running one.
        for file in ("pid", "exec/containerd/containerd.pid"):
            (self._folder / file).unlink(missing_ok=True)

    def client(self) -> docker.APIClient:
        """A client to look at what is really there."""
        return docker.APIClient(base_url=self.socket, version="auto")

    def close(self) -> None:
        """End it and everything on it."""
        if self._process is None:
            self.start()
        with closing(self.client()) as client:
            for container in client.containers(all=True):
                client.remove_container(container["Id"], force=True, v=True)
        self.kill()


@contextmanager
def second_engine(image: str, first: str) -> Iterator[SecondEngine]:
    """Start a second engine, with `image` of the engine at `first`. Tests skip where it cannot run."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("openssl") is None:
        pytest.skip("a second engine needs root, dockerd and openssl")
    with tempfile.TemporaryDirectory(
        prefix="swe-second-", dir="/var/tmp", ignore_cleanup_errors=True
    ) as folder:
        engine = SecondEngine(Path(folder))
        engine.start()
        try:
            with closing(docker.APIClient(base_url=first, version="auto")) as source:
                with closing(engine.client()) as target:
                    for _ in target.load_image(b"".join(source.get_image(image))):
                        pass
            yield engine
        finally:
            engine.close()


def make_certificates(folder: Path) -> None:
    """Make an authority, and the folders `server` and `client` with what each side needs of TLS."""
    for side in ("server", "client"):
        (folder / side).mkdir()
    key, authority = folder / "ca-key.pem", folder / "ca.pem"
    _openssl("req", "-x509", "-days", "2", "-subj", "/CN=test authority", "-out", authority, *_new_key(key))
    for side, extensions in (
        ("server", "subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth"),
        ("client", "extendedKeyUsage=clientAuth"),
    ):
        request, wanted = folder / f"{side}.csr", folder / f"{side}.ext"
        wanted.write_text(extensions)
        _openssl("req", "-subj", f"/CN={side}", "-out", request, *_new_key(folder / side / "key.pem"))
        _openssl(
            *("x509", "-req", "-days", "2", "-in", request, "-CA", authority, "-CAkey", key),
            *("-CAcreateserial", "-extfile", wanted, "-out", folder / side / "cert.pem"),
        )
        shutil.copy(authority, folder / side / "ca.pem")


def _new_key(path: Path) -> list[object]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", path]


def _openssl(*arguments: object) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
