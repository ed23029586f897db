"""Runs the program in processes forked from one that has imported it. Each is a process of its own, with its
own arguments, environment and exit code: only the imports are spared, half a second, and with TRL eight.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

PROGRAM = (
    *("swe_core.run.plan", "swe_core.run.execute", "swe_core.run.resume", "swe_core.run.verify.verify"),
    *("swe_core.cli.progress", "swe_core.cli.report", "swe_core.cli.run", "swe_core.cli.tasks_verify"),
    *("swe_core.builtin.demo.source", "swe_core.builtin.local.provider", "swe_core.builtin.mini.spec"),
    *("swe_core.builtin.openai.engine", "swe_core.builtin.replay.engine", "swe_core.builtin.swe.grader"),
    *(
        "swe_core.sandboxing.relay.launcher",
        "swe_core.sandboxing.relay.unix_socket",
        "rich.logging",
        "rich.table",
        "uvloop",
    ),
    *("swe_agents_pi.agent", "swe_sandbox_docker.plugin", "swe_sandbox_hf.plugin"),
    "swe_trainer_trl.plugin",
)
"""What a run imports."""
TRAINING = (
    *PROGRAM,
    "swe_trainer_trl.trainer.train",
    "swe_trainer_trl.hub.push_checkpoints",
    "swe_trainer_trl.server.vllm_server",
)
"""What a training imports. (Not HF's client with an endpoint of the tests': it reads that at its import.)"""


class Warm:
    """A context manager: a process that has imported `modules`, and forks for each run.

    What libraries read from the environment when they are imported they read from `env`, and what a later
    environment says of it is too late: such a run, as with another PYTHONPATH, needs a process from scratch.
    """

    def __init__(self, modules: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = socket.socketpair()
        # -P: this directory is no place to import from.
        command = [sys.executable, "-P", __file__, str(theirs.fileno()), *modules]
        with theirs:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **(env or {})},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *exc: object) -> None:
        self._ours.close()  # which tells it to end
        self._process.wait()

    def start(
        self,
        args: Sequence[str],
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        stderr: Path | None = None,
    ) -> Program:
        """Run `swe-core ARGS`. What it says on stderr can be read in the file `stderr` meanwhile."""
        out, said = _file(None), _file(stderr)
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._ours, [b"."], [theirs.fileno(), out.fileno(), said.fileno()])
        request = {"args": args, "env": {**os.environ, **(env or {})}, "cwd": str(cwd or Path.cwd())}
        ours.sendall(json.dumps(request).encode())
        ours.shutdown(socket.SHUT_WR)
        return Program(ours, out, said)


class Program:
    """A run of the program: what a `subprocess.Popen` of it is, as far as tests ask."""

    def __init__(self, link: socket.socket, out: IO[bytes], said: IO[bytes]) -> None:
        self._link = link.makefile("rb", buffering=0)
        link.close()
        self._out, self._said = out, said
        self.pid = int(self._link.readline())
        self.returncode: int | None = None
        self._texts = "", ""

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc: object) -> None:
        if exc[0] is not None:
            self.kill()
        self.wait()

    def poll(self) -> int | None:
        """The exit code, as of a `Popen`; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one.

        Raises:
            subprocess.TimeoutExpired: It still runs.
        """
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("swe-core", timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it said on stdout and on stderr until its end."""
        self.wait(timeout)
        return self._texts

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._link], [], [], timeout)[0]:
            with self._link, self._out, self._said:
                self.returncode = int(self._link.readline())
                self._texts = _text(self._out), _text(self._said)
        return self.returncode


def _file(path: Path | None) -> IO[bytes]:
    return tempfile.TemporaryFile() if path is None else path.open("wb+")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _main() -> None:
    """Fork for each request, until nobody can make one."""
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[2:]:
        importlib.import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who attend
    gc.freeze()  # what is collected in one of them is no longer shared, and has to be copied
    while descriptors := socket.recv_fds(control, 1, 3)[1]:
        if os.fork() == 0:
            control.close()
            _attend(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
    os._exit(0)


def _attend(link: int, out: int, said: int) -> NoReturn:
    """Fork once more, for the run, and tell its pid and its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=link) as connection:
        request = json.loads(b"".join(iter(partial(connection.recv, 65536), b"")))
        pid = os.fork()
        if pid != 0:
            os.close(out)
            os.close(said)
            connection.sendall(b"%d\n" % pid)
            status = os.waitpid(pid, 0)[1]
            try:
                connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            finally:  # a test that failed does not listen
                os._exit(0)
    for descriptor, standard in ((out, 1), (said, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    tempfile.tempdir = None  # where that is, the environment says
    sys.argv = ["swe-core", *request["args"]]
    _run()


def _run() -> NoReturn:
    """The program, and the end of a process but for taking all down that was imported, which is slower than
    importing it."""
    from swe_core.cli import main

    code: object = 1
    try:
        main()
    except SystemExit as end:
        code = end.code
    except BaseException:  # as a process of its own would end
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else code is not None)


if __name__ == "__main__":
    _main()
