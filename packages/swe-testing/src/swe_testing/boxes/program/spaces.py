"""Sandboxes and their processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import threading
import time
from typing import Any


class Refused(Exception):
    """An error for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Background:
    """A background process."""

    def __init__(self, cmd: Any, process: subprocess.Popen[bytes]) -> None:
        self.id = secrets.token_hex(8)
        self.cmd = cmd
        self.process = process
        self.started_at_ms = int(time.time() * 1000)

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> bool:
        if not self.running:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        return True

    def json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "pid": self.process.pid,
            "tag": None,
            "cmd": self.cmd,
            "started_at_ms": self.started_at_ms,
            "running": self.running,
            "exit_code": exit_of(self.process)["exit_code"] if not self.running else None,
        }


def exit_of(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Return the exit code, or the signal and no exit code."""
    code = process.returncode
    return {"exit_code": None, "signal": -code} if code < 0 else {"exit_code": code, "signal": None}


class Children:
    """All processes started here, and orphans, which process 1 has to reap."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, argv: list[str], **options: Any) -> subprocess.Popen[bytes]:
        with self.lock:
            process = subprocess.Popen(argv, start_new_session=True, **options)
            self.known[process.pid] = process
            return process

    def reap(self) -> None:
        with self.lock:
            for pid in [pid for pid, process in self.known.items() if process.poll() is not None]:
                del self.known[pid]
            while True:
                try:
                    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                except ChildProcessError:
                    return
                if ended is None or ended.si_pid in self.known:
                    return
                os.waitpid(ended.si_pid, 0)


CHILDREN = Children()


class Space:
    """One sandbox: the whole box, or a home of its own on a pool's host."""

    def __init__(self, id: str, token: str, env: dict[str, str], idle_timeout: float | None) -> None:
        self.id = id
        self.token = token
        self.home: str | None = None
        self.env = env
        self.idle_timeout = idle_timeout
        self.active = time.monotonic()
        self.processes: list[Background] = []

    def idle(self) -> bool:
        """Return whether the sandbox was idle for too long. A running command is no activity."""
        if self.idle_timeout is None or any(process.running for process in self.processes):
            return False
        return time.monotonic() - self.active > self.idle_timeout

    def path(self, path: str) -> str:
        """Resolve a path of the API: a pooled sandbox's paths are relative to its home.

        No component may be a symbolic link, except for the last one of a path that is only inspected.
        """
        if self.home is None and not path.startswith("/"):
            raise Refused(400, f"path must be absolute: {path}")
        names = [name for name in os.path.normpath("/" + path).split("/") if name]
        place = self.home or "/"
        for name in names[:-1]:
            place = os.path.join(place, name)
            if os.path.islink(place):
                raise Refused(403, f"refusing to follow a symlink: {path}")
        return os.path.join(place, *names[-1:])

    def start(self, body: dict[str, Any], **streams: Any) -> subprocess.Popen[bytes]:
        """Start a command.

        Raises:
            Refused: The request is invalid, or there is no such program or directory.
        """
        cmd, shell = body.get("cmd"), body.get("shell")
        if not isinstance(cmd, (str, list)) or not cmd:
            raise Refused(400, "cmd must be a string or a list of strings")
        if shell is None:
            shell = isinstance(cmd, str)
        if shell != isinstance(cmd, str):
            raise Refused(400, "shell and the type of cmd disagree")
        argv = ["/bin/sh", "-c", cmd] if isinstance(cmd, str) else [str(word) for word in cmd]
        env = {**self.env, **{name: str(value) for name, value in (body.get("env") or {}).items()}}
        cwd = body.get("cwd") or self.home
        try:
            return CHILDREN.start(argv, cwd=cwd, env=env, **streams)
        except OSError as error:
            raise Refused(400, f"failed to spawn: {error}") from error

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        if self.home is not None:
            shutil.rmtree(self.home, ignore_errors=True)
