"""The socket of an engine on another machine, forwarded to this one by OpenSSH.

docker-py has two ways of its own. That of paramiko runs `docker system dial-stdio` in sessions of one
connection, of which sshd permits ten. That of the ssh client starts a program and a connection for each
request, of which sshd drops all above ten that log in at once, and its streams cannot be taken over. One
forwarding carries all.
"""

from __future__ import annotations

import subprocess
import threading
import weakref
from pathlib import Path

from swe_core.errors import SandboxError
from swe_sandbox_docker import directories
from swe_sandbox_docker.address import Address

_SECONDS = 10
"""Time to reach the machine; as much again to log in."""
_READY = b"ready"
# A server that is silent for 3 × 10 s is given up. The command there ends with this program, and ends the
# connection.
_OPTIONS = {
    "BatchMode": "yes",  # never ask for a password
    "ClearAllForwardings": "no",
    "ConnectTimeout": str(_SECONDS),
    "ControlPath": "none",
    "ExitOnForwardFailure": "yes",
    "ServerAliveCountMax": "3",
    "ServerAliveInterval": "10",
}
_COMMAND = f"echo {_READY.decode()}; exec cat >/dev/null"


class Tunnel:
    """A forwarding, open until `close` or until this program has ended.

    The user's ssh configuration, agent, keys and known hosts apply. Construction blocks.

    Attributes:
        socket: Path of the socket on this machine.

    Raises:
        SandboxError: ssh is missing, or cannot log in or forward.
    """

    def __init__(self, address: Address) -> None:
        private = directories.make()
        self.socket = str(private / "engine.sock")
        log = private / "ssh.log"
        argv = ["ssh", "-T", "-L", f"{self.socket}:{address.path}"]
        argv += [part for name, value in _OPTIONS.items() for part in ("-o", f"{name}={value}")]
        argv += ["-l", address.user] if address.user else []
        argv += ["-p", str(address.port)] if address.port else []
        try:
            with log.open("wb") as errors:
                process = subprocess.Popen(
                    [*argv, "--", address.host, _COMMAND],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,  # after Ctrl-C, sandboxes are still to be closed
                )
        except OSError as error:
            directories.remove(private)
            raise SandboxError(f"ssh cannot be started: {error.strerror}") from None
        self.close = weakref.finalize(self, _close, process, private)
        timer = threading.Timer(2 * _SECONDS, process.kill)
        timer.start()
        ready = any(line.rstrip() == _READY for line in process.stdout or ())  # a shell may greet before
        timer.cancel()
        if not ready:
            said = log.read_text(errors="replace").strip().splitlines()[-1:]
            self.close()
            raise SandboxError(
                f"ssh: {said[0].removeprefix('ssh: ').rstrip('.')}"
                if said
                else f"ssh did not log in within {2 * _SECONDS} s"
            )


def _close(process: subprocess.Popen[bytes], private: Path) -> None:
    process.kill()
    process.communicate()
    directories.remove(private)
