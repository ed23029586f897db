"""Process 1 of a local sandbox: it finishes the file system, gives up every privilege, and runs commands.

Started as `python -I -S supervisor.pyc FD`, it stands alone: standard library only, and nothing of swe_core
is visible to it. FD is its end of a SOCK_SEQPACKET pair whose other end the host holds; no other process in
the sandbox can see it. Messages are JSON:

    host → here   setup {…}              descriptor: the settings (`Settings` below), once
                  start {id}             descriptors: the request (argv, cwd, env), stdin, stdout, stderr
                  kill {id}              kill the command and everything it started
                  kill_all {id}
                  protect {id}           descriptor: {paths}; once, and where the settings say so
    here → host   ready {}
                  exit {id, code}        the command ended; its background children may still run
                  done {id}              answers kill and kill_all: all of them are dead; and protect
                  done {id, error}       protect failed; one sentence

The parent of each command is a *subreaper* (PR_SET_CHILD_SUBREAPER), so all descendants of the command stay
below it, also after setsid and double forks. Code inside may kill a subreaper, which has the same user, but
not process 1. The orphans then become children of process 1, where kill_all and the end of the sandbox find
them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import socket
import stat
import sys
import time
import warnings  # noqa: F401 (os.execvpe would import it, and in an image the library is out of sight)

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes a noticeable part of the start
    from collections.abc import Callable, Collection, Iterator
    from typing import Any, NoReturn

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC = 1, 2, 4, 8, 32, 4096, 16384
MNT_DETACH = 2
CLONE_NEWUSER = 0x10000000
PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 24, 36, 38
CAPABILITY_VERSION_3 = 0x20080522
OOM_SCORE = 500  # of commands: they die before the host's own processes, and before process 1
KILL_PATIENCE = 30.0  # a loaded machine may take seconds
MAX_FD = 65536
MAX_ENTRIES = 1024 * 1024  # characters of /etc/passwd and /etc/group
MAX_ERROR = 600  # characters, of up to 6 bytes as JSON; the host takes messages of 4096

HIDDEN = "/.swe"  # what bwrap prepared for us; detached before the first command runs
DISK = f"{HIDDEN}/disk"
LOWER = f"{HIDDEN}/lower"
IMAGE = f"{HIDDEN}/image"
ROOT = f"{HIDDEN}/root"

libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_uint32] | None) -> None:
    """Call a function of libc; raise OSError where it returns -1."""
    if getattr(libc, name)(*arguments) == -1:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}{arguments}: {os.strerror(error)}")


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """mount(2)."""
    encoded = kind.encode() if kind else None
    call("mount", os.fsencode(source), os.fsencode(target), encoded, flags, options.encode())


def ask(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of `os`, or of this module; its OSError says which it was, and on what."""
    try:
        return function(*arguments, **options)
    except OSError as error:
        asked = ", ".join(map(repr, arguments))
        raise OSError(error.errno, f"{function.__name__}({asked}): {error.strerror}") from None


def why(error: BaseException) -> str:
    """Return what failed, as one line."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else repr(error)
    half = MAX_ERROR // 2
    return said if len(said) <= MAX_ERROR else f"{said[:half]} … {said[-half:]}"  # the reason comes last


def write(path: str, text: str) -> None:
    """Write a small file."""
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError as error:
        raise OSError(error.errno, f"write({path!r}): {error.strerror}") from None


# the file system


def overlay(lower: str, target: str) -> str:
    """Mount a private, writable layer over `lower` at `target`. Returns why not, empty where it is there."""
    try:
        # Before Linux 6.6 a tmpfs has no user xattrs, and an overlay without them cannot replace a
        # directory of the lower layer.
        ask(os.setxattr, f"{DISK}/probe", "user.overlay.opaque", b"y")
        options = f"lowerdir={lower},upperdir={DISK}/upper,workdir={DISK}/work,userxattr"
        mount("overlay", target, "overlay", MS_NOSUID | MS_NODEV, options)
    except OSError as error:
        return why(error)
    return ""


def make_layer(lower: str) -> None:
    """Make the directories of an overlay over `lower`, or of a copy of it."""
    for name in ("upper", "work", "probe"):
        ask(os.mkdir, f"{DISK}/{name}")
    ask(os.chmod, f"{DISK}/upper", stat.S_IMODE(ask(os.stat, lower).st_mode))


def layer(workdir: str, wanted: bool) -> None:
    """Put a private, writable layer over the repository at `workdir`; a copy where no overlay is wanted."""
    make_layer(LOWER)
    if wanted and not overlay(LOWER, workdir):
        return
    mount(f"{DISK}/upper", workdir, None, MS_BIND)
    argv = ["cp", "-a", "--no-preserve=ownership", "--", f"{LOWER}/.", workdir]
    pid = ask(os.posix_spawnp, "cp", argv, {"PATH": "/usr/bin:/bin"})
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code != 0:
        raise OSError(f"copying the repository into the sandbox failed with exit code {code}")


def enter_image() -> None:
    """Make the image the root, below a private, writable layer. Nothing of the host's root stays in sight.

    What is mounted into the image comes after this, so that its links lead nowhere else. This process goes on
    with what it has loaded: an image needs no Python.
    """
    ask(os.mkdir, ROOT)
    make_layer(IMAGE)
    if obstacle := overlay(IMAGE, ROOT):
        sys.exit(f"images without root need the overlay of Linux 6.6 or newer, and it failed: {obstacle}")
    ask(os.mkdir, f"{ROOT}{HIDDEN}")
    mount(HIDDEN, f"{ROOT}{HIDDEN}", None, MS_BIND | MS_REC)
    os.chdir(ROOT)
    call("pivot_root", b".", b".")
    call("umount2", b".", MNT_DETACH)
    os.chdir("/")
    for path in ("/dev", "/proc"):
        if os.path.islink(path):  # code inside could replace it, and we read processes there
            sys.exit(f"{path!r} is a link in the image; expected a directory or nothing")
    if not os.path.exists("/tmp"):
        ask(os.mkdir, "/tmp")
        ask(os.chmod, "/tmp", 0o1777)


def bind_late(settings: dict[str, Any]) -> None:
    """Mount what has to be below something that was just mounted."""
    for held, target in settings["late_binds"]:
        ask(os.makedirs, target, exist_ok=True)
        mount(held, target, None, MS_BIND | MS_REC)


def finish_file_system(settings: dict[str, Any]) -> None:
    """Mount what must be writable, in one limited place, and make the rest read-only, but an image."""
    image = settings["image"]
    if image:
        enter_image()
        bind_late(settings)
    writable = {"shm": "/dev/shm"} if image else {"tmp": "/tmp", "var-tmp": "/var/tmp", "shm": "/dev/shm"}
    for name, target in writable.items():
        ask(os.mkdir, f"{DISK}/{name}")
        ask(os.chmod, f"{DISK}/{name}", 0o1777)
        ask(os.makedirs, target, exist_ok=True)
        mount(f"{DISK}/{name}", target, None, MS_BIND)
    if not image:
        bind_late(settings)
    ask(os.makedirs, settings["home"], mode=0o700, exist_ok=image)
    workdir = settings["workdir"]
    ask(os.makedirs, workdir, exist_ok=True)
    if os.path.isdir(LOWER):
        layer(workdir, settings["overlay"])
    elif not image:
        ask(os.mkdir, f"{DISK}/upper")
        mount(f"{DISK}/upper", workdir, None, MS_BIND)
    for path, content in settings["files"].items():
        ask(os.makedirs, os.path.dirname(path), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            ask(os.unlink, path)  # an image's may be a link
        write(path, content)
    limit_namespaces()
    ask(os.chdir, workdir)
    call("umount2", HIDDEN.encode(), MNT_DETACH)
    ask(os.rmdir, HIDDEN)
    mount("", "/dev", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID)
    if not image:
        mount("", "/", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)


def keep_mounter(top: str) -> tuple[int, socket.socket]:
    """Fork a process that keeps the privilege to mount, for one message: files to make read-only. What has a
    mount on it cannot be replaced or moved either, so the directories below `top` get one, too.
    Returns its pid and our end of the connection to it. It answers `done`, or what failed."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if pid := ask(os.fork):
        theirs.close()
        return pid, ours
    try:
        call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
        close_all_but(theirs.fileno())
        _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
        if fds:  # else process 1 has ended
            paths = load(fds[0])["paths"]
            for directory in sorted({above for path in paths for above in directories(path, top)}):
                mount(directory, directory, None, MS_BIND | MS_REC)
            for path in paths:
                mount(path, path, None, MS_BIND)
                mount("", path, None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV)
            theirs.send(b"done")
    except Exception as error:  # whatever it is, the host hears of it
        theirs.send(why(error).encode(errors="backslashreplace"))
    finally:
        os._exit(0)


def directories(path: str, top: str) -> Iterator[str]:
    """Yield those above `path` that are below `top`, none where it is elsewhere."""
    while (path := os.path.dirname(path)) != "/" and path.startswith(f"{top.rstrip('/')}/"):
        yield path


def limit_namespaces() -> None:
    """Allow one more user namespace, ours: any other would give code inside capabilities again."""
    if os.statvfs("/proc/sys").f_flag & os.ST_RDONLY:  # covered by bwrap, where the host's user is root
        call("umount2", b"/proc/sys", MNT_DETACH)
    write("/proc/sys/user/max_user_namespaces", "1")
    mount("/proc/sys", "/proc/sys", None, MS_BIND)
    mount("", "/proc/sys", None, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def look_up(file: str, name: str) -> tuple[int, int]:
    """Return fields 3 and 4 of the entry with this name or number; a number needs no entry."""
    text = ""
    if os.path.isfile(file):  # an image's may be a device that never ends
        with open(file, errors="replace") as entries:
            text = entries.read(MAX_ENTRIES)
    for line in text.splitlines():
        fields = line.split(":")
        if len(fields) > 3 and name in (fields[0], fields[2]) and fields[2].isdecimal():
            return int(fields[2]), int(fields[3]) if fields[3].isdecimal() else 0
    if name.isdecimal():
        return int(name), 0
    sys.exit(f"the image's user or group {name!r} is not in its {file}")


def ids_of(user: str) -> tuple[int, int]:
    """Return the numbers of `NAME`, `UID`, `NAME:GROUP` or `UID:GID`, as an image has them; "" is root."""
    name, _, group = user.partition(":")
    if name in ("", "0", "root") and not group:
        return 0, 0
    uid, gid = look_up("/etc/passwd", name or "root")
    return uid, look_up("/etc/group", group)[0] if group else gid


def drop_privileges(uid: int, gid: int) -> None:
    """Become the user `uid` of a user namespace that owns nothing, without capabilities, for good."""
    call("unshare", CLONE_NEWUSER)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{uid} 0 1")
    write("/proc/self/gid_map", f"{gid} 0 1")
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    for capability in range(last + 1):
        call("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    call("capset", header, (ctypes.c_uint32 * 6)())


# processes


def below(root: int, spared: Collection[int] = ()) -> list[int]:
    """Return every living process below `root`, but `spared` ones and what is below those."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in spared:
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split(None, 2)[:2]
        except OSError:
            continue  # ended meanwhile
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def send(pid: int, number: int) -> None:
    """Send a signal; a process that has exited is no error."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def kill(find: Callable[[], list[int]]) -> None:
    """Kill the processes that `find` finds, and wait until they are dead.

    They are stopped first, until it finds no new one, so that none can escape by a fork.
    """
    stopped: set[int] = set()
    while new := set(find()) - stopped:
        for pid in new:
            send(pid, signal.SIGSTOP)
        stopped |= new
    for pid in stopped:
        send(pid, signal.SIGKILL)
    deadline = time.monotonic() + KILL_PATIENCE
    while time.monotonic() < deadline and any(map(runs, stopped)):
        time.sleep(0.001)  # dying takes the kernel a moment, and it tells only the parent


def runs(pid: int) -> bool:
    """Return whether a process is alive: neither gone nor a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split(None, 1)[0] not in (b"Z", b"X")
    except OSError:
        return False


def code_of(status: int) -> int:
    """Return a wait status as a shell reports it: 128+N where signal N killed the process."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def close_all_but(*kept: int) -> None:
    """Close every descriptor but these."""
    low = 0
    for fd in sorted(kept):
        if low < fd:  # an empty range that ends at 0 closes everything
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, MAX_FD)


def become_command(
    request: dict[str, Any], settings: dict[str, Any], streams: list[int], report: int
) -> NoReturn:
    """Turn this forked process into the command, which may kill its subreaper at once: so first its pid."""
    code = 126
    try:
        os.write(report, b"pid %d\n" % os.getpid())
        for target, fd in enumerate(streams):
            os.dup2(fd, target)
        close_all_but(0, 1, 2)
        os.setsid()
        os.umask(0o022)
        # Python ignores some, and a shell's background job others; programs expect the default.
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)
        for name, value in settings["rlimits"].items():
            resource.setrlimit(getattr(resource, name), (value, value))
        call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # makes /proc/self ours again
        write("/proc/self/oom_score_adj", str(OOM_SCORE))
        os.chdir(request["cwd"])
        code = 127
        os.execvpe(request["argv"][0], request["argv"], request["env"])
    except (OSError, ValueError) as error:
        if not isinstance(error, (FileNotFoundError, NotADirectoryError)):
            code = 126
        filename = getattr(error, "filename", None) or request["argv"][0]
        os.write(2, f"{filename}: {getattr(error, 'strerror', None) or error}\n".encode(errors="replace"))
    finally:
        os._exit(code)


def cannot_start(stderr: int, error: OSError) -> None:
    """Say on the command's standard error why there is no process for it."""
    with contextlib.suppress(OSError):
        os.set_blocking(stderr, False)
        os.write(stderr, f"cannot start a process: {error.strerror}\n".encode())


def keep(request: dict[str, Any], settings: dict[str, Any], streams: list[int], report: int) -> NoReturn:
    """Be a subreaper: run the command, report its end, and exit after its last descendant."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        # Descriptor numbers are moved out of the way of 0, 1 and 2 of the command.
        moved = [os.dup(fd) if fd < 3 else fd for fd in streams]
        close_all_but(report, *moved)
        try:
            pid = os.fork()
        except OSError as error:
            cannot_start(moved[2], error)
            os.write(report, b"exit 126\n")
            raise
        if pid == 0:
            become_command(request, settings, moved, report)
        close_all_but(report)
        while True:
            ended, status = os.waitpid(-1, 0)
            if ended == pid:
                os.write(report, b"exit %d\n" % code_of(status))
    except OSError:  # no children left
        pass
    finally:
        os._exit(0)


class Command:
    """One command that was started.

    Args:
        report: Descriptor on which the subreaper reports the end of the command.
    """

    def __init__(self, subreaper: int, report: int) -> None:
        self.subreaper = subreaper
        self.report = report
        self.pid: int | None = None
        self.code: int | None = None
        self.orphaned = False  # the subreaper was killed from inside


class Supervisor:
    """The loop: requests of the host, reports of subreapers, and children that end."""

    def __init__(self, host: socket.socket) -> None:
        self.host = host
        self.selector = selectors.DefaultSelector()
        self.commands: dict[int, Command] = {}
        self.settings: dict[str, Any] = {}
        self.mounter: tuple[int, socket.socket] | None = None

    def tell(self, event: str, **values: int | str) -> None:
        """Send a message to the host."""
        try:
            self.host.send(json.dumps({"event": event, **values}).encode())
        except OSError:
            self.end()

    def run(self) -> None:
        """Serve until the host closes its end."""
        self.receive()
        if self.settings["isolated"]:
            finish_file_system(self.settings)
            if self.settings["protects"]:
                self.mounter = keep_mounter("/" if self.settings["image"] else self.settings["workdir"])
            drop_privileges(*ids_of(self.settings["user"]))
        else:
            call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
        wake, woken = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.selector.register(self.host, selectors.EVENT_READ, self.receive)
        self.selector.register(wake, selectors.EVENT_READ, lambda: wake.recv(4096))
        self.tell("ready")
        while True:
            for key, _ in self.selector.select():
                if self.selector.get_map().get(key.fd) is key:  # not forgotten by one before it
                    key.data()
            self.reap()

    def receive(self) -> None:
        """Take one message of the host."""
        data, fds, _, _ = socket.recv_fds(self.host, 4096, 4, socket.MSG_CMSG_CLOEXEC)
        if not data:
            self.end()
        try:
            message = json.loads(data)
            operation = message.pop("op")
            if operation == "setup":
                self.settings = load(fds[0])
            elif operation == "start":
                self.start(message["id"], load(fds[0]), fds[1:])
            elif operation == "kill":
                self.kill(message["command"])
                self.tell("done", id=message["id"])
            elif operation == "kill_all":
                self.kill_all()
                self.tell("done", id=message["id"])
            elif operation == "protect":
                self.tell("done", id=message["id"], **self.protect(fds[0]))
        finally:
            for fd in fds:
                os.close(fd)

    def start(self, number: int, request: dict[str, Any], streams: list[int]) -> None:
        """Start a command below a new subreaper."""
        reading, report = os.pipe()
        try:
            subreaper = os.fork()
        except OSError as error:  # no process left to have
            os.close(reading)
            os.close(report)
            cannot_start(streams[2], error)
            self.tell("exit", id=number, code=126)
            return
        if subreaper == 0:
            keep(request, self.settings, streams, report)
        os.close(report)
        os.set_blocking(reading, False)
        command = self.commands[number] = Command(subreaper, reading)
        self.selector.register(reading, selectors.EVENT_READ, lambda: self.listen(number, command))

    def listen(self, number: int, command: Command) -> None:
        """Read what a subreaper reports."""
        try:
            data = os.read(command.report, 4096)
        except BlockingIOError:
            return
        if not data:
            with contextlib.suppress(KeyError):
                self.selector.unregister(command.report)
            return
        for line in data.splitlines():
            word, value = line.split()
            if word == b"pid":
                command.pid = int(value)
            else:
                self.ended(number, command, int(value))

    def ended(self, number: int, command: Command, code: int) -> None:
        """Report the end of the command to the host, once."""
        if command.code is None:
            command.code = code
            self.tell("exit", id=number, code=code)

    def reap(self) -> None:
        """Collect children that ended: subreapers, and orphans of subreapers that were killed."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for number, command in list(self.commands.items()):
                if pid == command.subreaper and not command.orphaned:
                    self.lost(number, command)
                    continue
                self.listen(number, command)
                if pid == command.pid and command.code is None:
                    self.ended(number, command, code_of(status))
                    if command.orphaned:
                        self.forget(number, command)

    def lost(self, number: int, command: Command) -> None:
        """Handle the end of a subreaper: after its last descendant, or killed."""
        self.listen(number, command)
        if command.code is None and command.pid is not None and os.path.exists(f"/proc/{command.pid}"):
            command.orphaned = True  # and so our child now: `reap` sees its end
            return
        self.ended(number, command, 128 + signal.SIGKILL)
        self.forget(number, command)

    def forget(self, number: int, command: Command) -> None:
        """Stop watching the command, whose processes have all exited."""
        with contextlib.suppress(KeyError):
            self.selector.unregister(command.report)
        os.close(command.report)
        del self.commands[number]

    def kill(self, number: int) -> None:
        """Kill what a command started, or all orphans if its subreaper was killed."""
        command = self.commands.get(number)
        if command is None:
            return
        if command.orphaned:
            spared = {one.subreaper for one in self.commands.values() if not one.orphaned} | self.spared()
            kill(lambda: below(os.getpid(), spared))
        else:
            kill(lambda: [command.subreaper, *below(command.subreaper)])
        self.reap()

    def spared(self) -> set[int]:
        """Return the pid of the mounter, while it is to be used."""
        return set() if self.mounter is None else {self.mounter[0]}

    def kill_all(self) -> None:
        """Kill all other processes but the mounter, and wait until they are dead."""
        if self.settings["isolated"] and self.mounter is None:
            # For process 1, -1 is all other processes in the sandbox at once: none can escape by a fork.
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            kill(lambda: below(os.getpid(), self.spared()))
        deadline = time.monotonic() + KILL_PATIENCE
        while time.monotonic() < deadline and below(os.getpid(), self.spared()):
            time.sleep(0.001)
        self.reap()

    def protect(self, paths: int) -> dict[str, str]:
        """Have the files that the descriptor `paths` names made read-only. Returns what failed, if so."""
        if self.mounter is None:
            return {"error": "it is asked for once, in a sandbox that was opened for it"}
        mounter, self.mounter = self.mounter[1], None
        with mounter:
            try:
                ask(socket.send_fds, mounter, [b"p"], [paths])
                said = mounter.recv(4096).decode()
            except (BrokenPipeError, ConnectionResetError):
                said = ""
            except OSError as error:
                said = why(error)
        return {} if said == "done" else {"error": said or "the process that mounts was killed"}

    def end(self) -> NoReturn:
        """Exit: the host has closed the connection. The end of process 1 ends all processes inside."""
        if not self.settings.get("isolated", True):
            self.kill_all()
        os._exit(0)


def load(fd: int) -> dict[str, Any]:
    """Return the JSON in a file that the host sent."""
    with open(fd, "rb", closefd=False) as file:
        loaded: dict[str, Any] = json.load(file)
        return loaded


if __name__ == "__main__":
    # A `killall python3` on the host spares process 1, which the kernel protects: so all that supervise.
    for ignored in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    Supervisor(control).run()
