"""The scripts that run inside, by themselves, in every shell that an image may have."""

from __future__ import annotations

import base64
import os
import select
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from swe_core.sandboxing.followed.feed import Feed
from swe_core.sandboxing.kill_tree import KILL_TREE

_SYSTEM_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH"
_BUSYBOX = shutil.which("busybox")


MARK = f"m{os.getpid()}"
"""Of a command. A kill ends all processes of this machine that carry its mark, so each run has its own."""


class Shell:
    """A shell, the path of its tools, and a directory that stands for a sandbox's, as launch.sh's."""

    def __init__(self, path: str, tools: str, base: Path) -> None:
        self.path, self.tools, self.base = path, tools, base
        self.before = ""

    def script(self, name: str) -> str:
        text = (resources.files("swe_core.sandboxing.followed") / "inside" / name).read_text()
        assert _SYSTEM_PATH in text or name in ("supervise.sh", "asset.sh")
        text = text.replace("/bin/sh", self.path).replace(_SYSTEM_PATH, f"PATH={self.tools}:$PATH")
        return self.before + text

    def launch(
        self,
        *argv: str,
        mark: str = MARK,
        stdin: bytes | None = None,
        how: str | None = None,
        over: str = "",
        start_new_session: bool = False,
    ) -> subprocess.Popen[bytes]:
        given = "none" if stdin is None else f"inline {len(stdin)}"
        words = [str(self.base), mark, how or given, str(self.base), ""]
        words += [self.script("supervise.sh"), self.script("follow.sh"), over, *argv]
        process = subprocess.Popen(
            [self.path, "-c", self.script("launch.sh"), "sh", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=start_new_session,
        )
        assert process.stdin is not None
        process.stdin.write(base64.b64encode(stdin or b""))
        process.stdin.close()
        process.stdin = None
        return process

    def follow(self, mark: str, out: int, err: int) -> subprocess.CompletedProcess[bytes]:
        argv = [self.path, "-c", self.script("follow.sh"), "sh", f"{self.base}/{mark}", str(out), str(err)]
        return subprocess.run(argv, capture_output=True, timeout=30)

    def kill(self, mark: str) -> int:
        argv = [self.path, "-c", self.script("kill.sh"), "sh", KILL_TREE, mark, f"{self.base}/{mark}"]
        return subprocess.run(argv, timeout=30, capture_output=True).returncode

    def inside(self, name: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """A script that is run to its end, and needs no directory of a command."""
        argv = [self.path, "-c", self.script(name), "sh", *words]
        env = {**os.environ, "PATH": self.tools}
        return subprocess.run(argv, input=stdin, env=env, timeout=30, capture_output=True)

    def run(self, *argv: str, **options: object) -> tuple[int | None, bytes, bytes]:
        """A command from its start to its end: its exit code and streams."""
        said, complaint = self.launch(*argv, **options).communicate(timeout=60)
        assert complaint == b""
        return heard(said)


def heard(said: bytes, feed: Feed | None = None) -> tuple[int | None, bytes, bytes]:
    feed = feed or Feed()
    streams = {"stdout": b"", "stderr": b""}
    for stream, data in feed.add(said.decode()):
        streams[stream] += data
    return feed.code, streams["stdout"], streams["stderr"]


_SHELLS = ["sh", "bash", "busybox"]


@pytest.fixture(params=["sh", *(pytest.param(name, marks=pytest.mark.slow) for name in _SHELLS[1:])])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shell]:
    """One shell; busybox with tools of its own."""
    base = tmp_path / "base"
    if request.param != "busybox":
        yield Shell(shutil.which(request.param) or "/bin/sh", "/usr/bin:/bin", base)
        return
    if _BUSYBOX is None:
        pytest.skip("this machine has no busybox")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in subprocess.run(
        [_BUSYBOX, "--list"], capture_output=True, text=True, check=True
    ).stdout.split():
        (tools / name).symlink_to(_BUSYBOX)
    yield Shell(str(tools / "ash"), str(tools), base)


@pytest.mark.parametrize("shell", _SHELLS, indirect=True)
def test_ends_of_commands(shell: Shell) -> None:
    results = {
        "true": (0, b"", b""),
        "echo out; echo err >&2; exit 7": (7, b"out\n", b"err\n"),
        "exit 255": (255, b"", b""),
        "kill -9 $$": (137, b"", b""),
        "kill -TERM $$": (143, b"", b""),
        "cat": (0, b"", b""),
        "sleep 0.3; printf x; sleep 0.3; printf y": (0, b"xy", b""),
        "exec >&- 2>&-; sleep 0.2; exit 5": (5, b"", b""),
    }
    for number, script in enumerate(results):
        assert (script, shell.run("sh", "-c", script, mark=f"{MARK}-{number}")) == (script, results[script])


def test_programs_that_cannot_run(shell: Shell) -> None:
    assert shell.run("no-such-program", mark="a")[0] == 127
    (shell.base / "data").write_text("no program")
    assert shell.run(str(shell.base / "data"), mark="b")[0] == 126


def test_any_bytes_in_and_out(shell: Shell) -> None:
    data = os.urandom(70_000) + bytes(range(256))
    assert shell.run("cat", stdin=data) == (0, data, b"")
    assert shell.run("cat", mark="empty", stdin=b"", over=MARK) == (0, b"", b"")
    assert sorted(path.name for path in shell.base.iterdir()) == ["empty"], "a finished command is removed"
    arguments = ["ünï", "a  b", "*", "$HOME", "'\"\\", "line\nbreak", "", "-n"]
    said = shell.run("printf", "%s\\0", *arguments, mark="arguments")[1]
    assert said == "".join(f"{one}\0" for one in arguments).encode()
    parts = [os.urandom(1000) for _ in range(11)]
    (shell.base / "parts").mkdir()
    for number, part in enumerate(parts):
        (shell.base / "parts" / f"in.{number:06}").write_bytes(part)
    assert shell.run("cat", mark="parts", how="parts 11000") == (0, b"".join(parts), b"")


def test_standard_input_that_did_not_arrive_whole(shell: Shell) -> None:
    """A command is not run with a part of it."""
    process = shell.launch("cat", stdin=b"abc", how="inline 4")
    said, complaint = process.communicate(timeout=30)
    assert (process.returncode, said) == (73, b"")
    assert b"did not arrive whole" in complaint
    assert shell.run("cat", stdin=b"abcd") == (0, b"abcd", b"")  # the request is made again


def test_command_is_run_once_however_often_it_is_asked_for(shell: Shell) -> None:
    """As when the answer to the first request was lost; also when both are there at the same time."""
    script = "sleep 0.3; cat; echo ran >>ran"
    both = [shell.launch("sh", "-c", script, stdin=b"once\n") for _ in range(2)]
    for process in both:
        said, _ = process.communicate(timeout=30)
        assert heard(said) == (0, b"once\n", b"")
    assert shell.run("sh", "-c", script, stdin=b"once\n") == (0, b"once\n", b"")
    assert (shell.base / "ran").read_text() == "ran\n"


@pytest.fixture
def hurdle(shell: Shell, tmp_path: Path) -> Path:
    """A `mkdir` that waits after it has claimed a command, as long as the file is there that it gives.

    It is a function, because some builds of busybox prefer their own mkdir to one on the path.
    """
    hurdle = tmp_path / "hurdle"
    hurdle.touch()
    shell.before = f"""mkdir() {{
  command mkdir "$@" || return
  case $* in */run) while [ -e {hurdle} ]; do sleep 0.02; done ;; esac
}}
"""
    return hurdle


def claimed(shell: Shell) -> None:
    while not (shell.base / MARK / "run").exists():
        time.sleep(0.01)


@pytest.mark.parametrize("stdin", [None, b"once\n"])
def test_command_that_is_asked_for_again_while_it_starts(
    shell: Shell, hurdle: Path, stdin: bytes | None
) -> None:
    """Its files are not there yet: that is no reason to say that they are no more."""
    script = "cat; echo ran >>ran; echo done"
    first = shell.launch("sh", "-c", script, stdin=stdin)
    claimed(shell)
    second = shell.launch("sh", "-c", script, stdin=stdin)
    time.sleep(0.3)
    assert second.poll() is None
    hurdle.unlink()
    for process in (first, second):
        said, complaint = process.communicate(timeout=30)
        assert (heard(said), complaint) == ((0, (stdin or b"") + b"done\n", b""), b"")
    assert (shell.base / "ran").read_text() == "ran\n"
    assert {path.name for path in (shell.base / MARK).iterdir()} == {"run", "pid", "exit", "out", "err"}


def test_request_that_is_ended_while_its_command_starts(shell: Shell, hurdle: Path) -> None:
    """With all that the server knows to be its own: the command runs all the same, and once."""
    script = "cat; echo ran >>ran"
    first = shell.launch("sh", "-c", script, stdin=b"once\n", start_new_session=True)
    claimed(shell)
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate()
    hurdle.unlink()
    assert shell.run("sh", "-c", script, stdin=b"once\n") == (0, b"once\n", b"")
    assert (shell.base / "ran").read_text() == "ran\n"


def test_standard_input_is_held_by_the_command_alone(shell: Shell) -> None:
    """A command that closes it leaves nobody who could be asked for it."""
    script = 'read -r line; exec </dev/null; ls -l /proc/$$/fd /proc/$PPID/fd | grep -c stdin; echo "$line"'
    assert shell.run("sh", "-c", script, stdin=b"secret\n") == (0, b"0\nsecret\n", b"")


def test_download_resumes_at_any_byte(shell: Shell) -> None:
    data, other = os.urandom(150_000), os.urandom(1_000)
    (shell.base).mkdir()
    (shell.base / "data").write_bytes(data)
    (shell.base / "other").write_bytes(other)
    assert shell.run("sh", "-c", "cat data; cat other >&2")[0] == 0
    for out, err in ((0, 0), (1, 1000), (65_536, 999), (65_537, 0), (149_999, 3), (150_000, 1000)):
        feed = Feed()
        feed.offsets = {"stdout": out, "stderr": err}
        assert heard(shell.follow(MARK, out, err).stdout, feed) == (0, data[out:], other[err:])


def test_follower_that_dies_does_not_end_the_command(shell: Shell) -> None:
    process = shell.launch("sh", "-c", "sleep 0.5; echo done")
    assert process.stdout is not None
    assert process.stdout.readline() == b".s\n"
    process.kill()
    process.communicate()
    assert heard(shell.follow(MARK, 0, 0).stdout) == (0, b"done\n", b"")


def test_files_that_are_no_more(shell: Shell) -> None:
    process = shell.launch("sh", "-c", f"rm -r {MARK}; sleep 1")
    process.communicate(timeout=30)
    assert process.returncode == 74
    assert shell.follow(MARK, 0, 0).returncode == 74
    (shell.base / MARK).mkdir()  # they go while they are opened: that of the process id still is
    (shell.base / MARK / "pid").write_text("1\n")
    assert shell.follow(MARK, 0, 0).returncode == 74


def test_kill_writes_down_137(shell: Shell) -> None:
    process = shell.launch("sh", "-c", "setsid sleep 600 & echo $!; sleep 600")
    assert process.stdout is not None
    said = process.stdout.readline() + process.stdout.readline() + process.stdout.readline()
    child = os.pidfd_open(int(base64.b64decode(said.split(b"\n")[2])))
    assert shell.kill(MARK) == 0
    assert process.stdout.read().endswith(b".x 137\n")
    process.communicate()
    assert select.select([child], [], [], 10)[0], "it has ended"
    os.close(child)
    assert shell.kill(MARK) == 0  # again: nothing happens, and how it ended stays
    assert shell.follow(MARK, 0, 0).stdout.endswith(b".x 137\n")


def test_command_waits_for_a_slow_reader(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more than its limit unfetched it is stopped, and continues once the output is fetched."""
    script = Shell.script

    def edited(self: Shell, name: str) -> str:
        text = script(self, name).replace("full=67108864", "full=100000")
        return text.replace(
            'kill -STOP "-$pid" 2>/dev/null', 'kill -STOP "-$pid" 2>/dev/null && echo >>"$d/../stops"'
        )

    monkeypatch.setattr(Shell, "script", edited)
    process = shell.launch("sh", "-c", "head -c 300000 /dev/zero; sleep 0.2; head -c 300000 /dev/zero; echo")
    said, complaint = process.communicate(timeout=30)
    assert complaint == b""
    assert heard(said) == (0, bytes(600_000) + b"\n", b"")
    assert (shell.base / "stops").exists()
    assert not (shell.base / MARK / "stopped").exists()


def test_sandbox_is_made_ready_at_the_first_place_that_can_be_written(shell: Shell, tmp_path: Path) -> None:
    home, workdir, place = tmp_path / "home", tmp_path / "work", tmp_path / "place"
    (tmp_path / "file").touch()
    words = ["name", str(home), str(workdir), str(tmp_path / "file"), str(place)]
    done = shell.inside("setup.sh", *words)
    assert (done.returncode, done.stderr) == (0, b"")
    base, *drop = done.stdout.decode().splitlines()
    assert base == str(place / "name")
    assert len(drop) <= 1  # busybox has another setpriv, which cannot take capabilities away
    assert workdir.is_dir()
    assert [path.stat().st_mode & 0o777 for path in (home, place / "name")] == [0o700] * 2
    refused = shell.inside("setup.sh", *words[:4])
    assert (refused.returncode, refused.stdout) == (73, b"")
    assert b"none of" in refused.stderr


@pytest.mark.parametrize("streamed", [False, True], ids=["a file", "standard input"])
def test_asset_is_unpacked_read_only(shell: Shell, tmp_path: Path, streamed: bool) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "tool").chmod(0o700)
    archive, there = tmp_path / "asset.tar.gz", tmp_path / "assets" / "tool"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "bin", "bin")
    words = [str(there)] if streamed else [str(there), str(archive)]
    done = shell.inside("asset.sh", *words, stdin=archive.read_bytes() if streamed else b"")
    assert (done.returncode, done.stderr) == (0, b"")
    assert (there / "bin" / "tool").read_text() == "#!/bin/sh\n"
    assert (there / "bin" / "tool").stat().st_mode & 0o777 == 0o555
    assert there.stat().st_mode & 0o222 == 0
    for path in (there, there / "bin"):
        path.chmod(0o755)  # so that other users than root can remove it
    torn = shell.inside("asset.sh", str(tmp_path / "torn"), stdin=b"no archive")
    assert (torn.returncode, torn.stderr == b"") == (73, False)
