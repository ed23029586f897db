# The first part of both programs that report test results to the host. `swe_core.builtin.swe.test_runners`
# joins the parts, and `swe_core.builtin.swe.report` puts the program into the sandbox, where it runs in the
# image's own Python, 3.6 or newer.
#
# Code under test runs in this process later. Closures therefore hold everything that is needed then, as far
# as possible as objects that cannot be replaced from outside: methods of built-in types, functions in C. The
# builtins are copied, because Python looks up a function's builtins in its module's `__builtins__`.
#
# A session begins with a line `h HALF` on a stream that has no other writer: its half of a Diffie-Hellman key
# agreement, whose other half the host put beside this file. The key is therefore written nowhere. Each event
# is one line: HMAC-SHA256 (cut to 32 hex digits) of the rest, the name of the session, the number of the
# event, its kind, and its fields, each in hex.
#
# mypy: ignore-errors
# ruff: noqa: F821, UP031 (names of the other parts; Python 3.6)
import builtins
import fcntl
import hashlib
import os
import sys
from operator import is_
from os import getcwd
from types import FunctionType

__builtins__ = dict(vars(builtins))

FD = 9
HIGH = 500
PRIME = int(  # RFC 3526, group 5; its generator is 2
    "ffffffffffffffffc90fdaa22168c234c4c6628b80dc1cd129024e088a67cc74020bbea63b139b22514a08798e3404dd"
    "ef9519b3cd3a431b302b0a6df25f14374fe1356d6d51c245e485b576625e7ec6f44c42e9a637ed6b0bff5cb6f406b7ed"
    "ee386bfb5a899fa5ae9f24117c4b1fe649286651ece45b3dc2007cb8a163bf0598da48361c55d39a69163fa8fd24cf5f"
    "83655d23dca3ad961c62f356208552bb9ed529077096966d670c354e4abc9804f1746c08ca237327ffffffffffffffff",
    16,
)
MISSING = object()
BUILTINS = frozenset(name for name in vars(builtins) if not name.startswith("__"))


def agree(here):
    """The name of a new session, its half of the key agreement, and the key."""
    with open(os.path.join(here, "half")) as file:
        theirs = int(file.read(), 16)
    mine = int.from_bytes(os.urandom(32), "big")
    half = pow(2, mine, PRIME).to_bytes(192, "big")
    key = hashlib.sha256(pow(theirs, mine, PRIME).to_bytes(192, "big")).digest()
    return hashlib.sha256(half).hexdigest()[:16], half, key


def announce(stream, half):
    """Tell the host of the session."""
    data = b"\nh " + half.hex().encode() + b"\n"
    while data:
        data = data[os.write(stream, data) :]


def take_stream(here):
    """The descriptor of the stream, moved out of the way and out of reach of children; None without one."""
    try:
        with open(os.path.join(here, "pid")) as file:
            path = "/proc/%s/fd/%d" % (file.read().strip(), FD)
        wanted = os.stat(path)
    except (OSError, ValueError):
        return None
    try:
        have = os.fstat(FD)
        inherited = (have.st_dev, have.st_ino) == (wanted.st_dev, wanted.st_ino)
    except OSError:
        inherited = False
    try:
        low = FD if inherited else os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, HIGH)
        except OSError:
            high = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 20)
        os.close(low)
    except OSError:
        return None
    return high


def read_known(here):
    """The repository, with a slash at its end; files of the task's own, by path: the git id of what each has
    to hold; those of them that are run."""
    known = {}
    with open(os.path.join(here, "root"), encoding="utf-8", errors="surrogateescape") as file:
        root = os.path.join(file.read()[:-1], "")
    with open(os.path.join(here, "known"), encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            git_id, _, path = line[:-1].partition(" ")
            known[root + path] = git_id
    with open(os.path.join(here, "first"), encoding="utf-8", errors="surrogateescape") as file:
        first = [root + line[:-1] for line in file if root + line[:-1] in known]
    return root, known, first


def forget(here):
    """Leave the process as it would be without this file."""
    sys.path[:] = [path for path in sys.path if path != here]
    sys.path_importer_cache.pop(here, None)
    for variable, separator, ours in (
        ("PYTHONPATH", os.pathsep, here),
        ("PYTEST_ADDOPTS", " ", "-p " + NAME),
    ):
        value = os.environ.get(variable)
        if value == ours:
            del os.environ[variable]
        elif value is not None and value.startswith(ours + separator):
            os.environ[variable] = value[len(ours) + 1 :]


def make_send(name, key, stream):
    """Functions: `hold` signs an event, `flush` writes what was held, `send` does both."""
    block = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(byte ^ 0x36 for byte in block))
    outer = hashlib.sha256(bytes(byte ^ 0x5C for byte in block))
    write, getpid, pid = os.write, os.getpid, os.getpid()
    sent = [0]
    held = []

    def hold(kind, *fields):
        if getpid() != pid:  # a child that was forked off: its parent speaks for it
            return
        text = "%s %d %s" % (name, sent[0], kind)
        for field in fields:
            text += " " + field.encode("utf-8", "surrogatepass").hex()
        sent[0] += 1
        data = text.encode()
        first, second = inner.copy(), outer.copy()
        first.update(data)
        second.update(first.digest())
        held.append(b"\n" + second.hexdigest()[:32].encode() + b" " + data + b"\n")

    def flush():
        if getpid() != pid:
            return
        data = b"".join(held)
        del held[:]
        try:
            while data:
                data = data[write(stream, data) :]
        except OSError:  # the stream is closed: the host misses the event
            pass

    def send(kind, *fields):
        hold(kind, *fields)
        flush()

    return send, hold, flush


def raw_function(value):
    """The function behind an entry of a class or a module, if it is one."""
    kind = type(value)  # what an object itself says of that may be a lie, as may its attributes
    if kind is staticmethod or kind is classmethod:
        value = value.__func__
    elif kind is property:
        value = value.fget
    return value if type(value) is FunctionType else None


def raw_code(value):
    """Its code object."""
    return getattr(raw_function(value), "__code__", None)


def same(one, other):
    """Whether two tuples have the same objects: what these say of that themselves may be a lie."""
    return len(one) == len(other) and all(map(is_, one, other))


def make_odd(send):
    """Functions: `odd` tells a thing once, `look_at_tracers` who traces or profiles since now."""
    told = set()
    gettrace, getprofile = sys.gettrace, sys.getprofile
    tracers = gettrace(), getprofile()

    def odd(what):
        if what not in told:
            told.add(what)
            send("x", what)

    def look_at_tracers():
        for now, before, what in ((gettrace(), tracers[0], "trace"), (getprofile(), tracers[1], "profile")):
            if now is not None and now is not before:
                kind = type(now) if getattr(now, "__qualname__", None) is None else now
                odd("%s function %s.%s" % (what, kind.__module__, kind.__qualname__))

    return odd, look_at_tracers


def directory():
    try:
        return getcwd()
    except OSError:  # it is gone
        return None


def guarded(odd, function):
    """A function that tells where it fails, as it may with another test runner, and lets the run go on."""

    def call(*args):
        try:
            return function(*args)
        except Exception as error:  # another one than was thought of
            odd("%s in %s" % (type(error).__name__, function.__name__))

    return call
