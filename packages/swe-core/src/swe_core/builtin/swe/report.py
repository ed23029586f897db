"""The report of a test run about itself, on a stream that the code under test cannot sign.

A program runs in the test run's process and writes one signed line per event; docs/internals/grading.md
describes it. `Reporter` puts it into a sandbox and reads the stream while the tests run, in bounded memory.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from swe_core.api.sandbox import HOME_DIR, Sandbox
from swe_core.api.task import TestStatus
from swe_core.builtin.swe.agreement import HALF_BYTES, Agreement
from swe_core.builtin.swe.archive import packed
from swe_core.builtin.swe.parsers import note_worst
from swe_core.builtin.swe.test_runners import Runner, program

FD = 9
"""The descriptor of the stream in the test command, as in `reporter/common.py`."""
SESSIONS = 8
"""Maximum of sessions that can report."""
MAX_LINE = 64 * 1024
MAX_TESTS = 200_000
MAX_TEXT = 64 * 1024 * 1024
"""Maximum of characters of ids that are kept."""
_MAX_ODD = 1000

_ANNOUNCED = re.compile(rb"h ([0-9a-f]{%d})" % (2 * HALF_BYTES))
_LINE = re.compile(rb"([0-9a-f]{32}) (([0-9a-f]{16}) (\d{1,9}) ([a-z])((?: [0-9a-f ]*)?))")


@dataclass(slots=True)
class _Session:
    """One session of the test runner as reported, from its announcement on."""

    key: bytes
    remote: bool = False
    next: int = 0
    missed: bool = False
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """The report of the sessions of one test run.

    Args:
        sessions: How many sessions of the test runner were announced.
        complete: Whether there was at least one session, each has ended, and no event is missing.
        exit_status: The worst exit code of the test runner; None if no session ended.
        statuses: Status of each test. A test that was collected and did not run has none.
        remote: Whether the tests of a session ran in other processes, where the reporter does not see what
            they raise.
        odd: Contradictions to an honest run, one sentence each, such as a replaced function that compares.
            Some projects do such things themselves, so one counts only if the reference does not give it too.
        evidence: Of passed tests, what their own code said but that it ran to its end.
    """

    sessions: int = 0
    complete: bool = False
    exit_status: int | None = None
    statuses: Mapping[str, TestStatus] = field(default_factory=dict)
    collected: frozenset[str] = frozenset()
    remote: bool = False
    odd: frozenset[str] = frozenset()
    evidence: Mapping[str, str] = field(default_factory=dict)


NOTHING_REPORTED = Report()
"""The report of a run without a session."""


class Reporter:
    """The reporter of one test run: the program inside, and the reader of its stream.

    Args:
        runner: The test runner that the tests are written for.
        known: Git ids of the task's own files, by path in the repository.
        first: Those of them that are run, which are compiled before code under test is loaded.
    """

    def __init__(
        self, runner: Runner = "pytest", known: Mapping[str, str] | None = None, first: Iterable[str] = ()
    ) -> None:
        self._runner = runner
        self._known = known or {}
        self._first = [path for path in first if path in self._known]
        # A name of its own, so that nothing in a repository can stand before it
        self._name = f"_{secrets.token_hex(8)}" if runner == "pytest" else "sitecustomize"
        self._directory = f"{HOME_DIR}/.{secrets.token_hex(8)}"
        self._agreement = Agreement()
        self._buffer = bytearray()
        self._skipping = False
        self._sessions: dict[bytes, _Session] = {}  # by name
        self._statuses: dict[str, TestStatus] = {}
        self._collected: set[str] = set()
        self._odd: set[str] = set()
        self._evidence: dict[str, str] = {}
        self._dropped = False
        self._text = 0

    async def install(self, sandbox: Sandbox) -> None:
        """Write the program and the host's half of the key agreement into the sandbox.

        Raises:
            SandboxError: They could not be written.
        """
        known = "".join(f"{git_id} {path}\n" for path, git_id in self._known.items() if "\n" not in path)
        files = {
            f"{self._name}.py": program(self._runner),
            "half": self._agreement.half.encode(),
            "known": known.encode(errors="surrogateescape"),
            "first": "".join(f"{path}\n" for path in self._first).encode(errors="surrogateescape"),
        }
        await sandbox.put_archive(self._directory, packed(files))

    @property
    def environment(self) -> str:
        """Shell commands, in one line, that make the next test runner load the program. They are run in the
        repository."""
        directory = shlex.quote(self._directory)
        ours = f"echo $$ >{directory}/pid; pwd -P >{directory}/root"
        ours += f"; export PYTHONPATH={directory}${{PYTHONPATH:+:$PYTHONPATH}}"
        if self._runner == "unittest":
            return ours
        return f'{ours} PYTEST_ADDOPTS="-p {self._name}${{PYTEST_ADDOPTS:+ $PYTEST_ADDOPTS}}"'

    def was_not_found(self, log: bytes) -> bool:
        """Return whether pytest ended at once because it did not find the reporter's plugin."""
        return not self._sessions and f'Error importing plugin "{self._name}"'.encode() in log

    def feed(self, chunk: bytes) -> None:
        """Process a piece of the stream."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if self._buffer or self._skipping:
                self._keep(line)
                line = bytes(self._buffer)
                whole, self._skipping = not self._skipping, False
                self._buffer.clear()
                if not whole:
                    continue
            if len(line) > 34:
                self._line(line)
        self._keep(rest)

    def _keep(self, part: bytes) -> None:
        if len(self._buffer) + len(part) > MAX_LINE:
            self._skipping = True
            self._buffer.clear()
        elif not self._skipping:
            self._buffer += part

    def _line(self, line: bytes) -> None:
        if (announced := _ANNOUNCED.fullmatch(line)) is not None:
            self._announce(bytes.fromhex(announced[1].decode()))
            return
        match = _LINE.fullmatch(line)
        session = None if match is None else self._sessions.get(match[3])
        if match is None or session is None:
            return
        signed = hmac.digest(session.key, match[2], hashlib.sha256).hex()[:32]
        if not hmac.compare_digest(signed.encode(), match[1]):
            return
        if int(match[4]) != session.next:
            session.missed = True
        session.next = int(match[4]) + 1
        try:
            parts = match[6].decode().split(" ")[1:]
            fields = [bytes.fromhex(part).decode(errors="replace") for part in parts]
            self._event(session, match[5].decode(), fields)
        except ValueError:  # signed but not an event: other code has the key
            self._strange("an event of the reporter is malformed")

    def _announce(self, half: bytes) -> None:
        """Record the start of a session, which is not signed: too many of them count against the run."""
        name = hashlib.sha256(half).hexdigest()[:16].encode()
        if name in self._sessions:
            self._strange("a session of the test runner was announced twice")
        elif len(self._sessions) == SESSIONS:
            self._strange(f"the test runner was started more than {SESSIONS} times")
        else:
            if any(session.exit_status is None for session in self._sessions.values()):
                self._strange("the test runner was started while it ran")
            self._sessions[name] = _Session(self._agreement.key(half))

    def _event(self, session: _Session, kind: str, fields: list[str]) -> None:
        if session.exit_status is not None:
            self._strange("the test runner went on after its end")
        match kind, fields:
            case "s", [_, _, where]:
                session.remote = where == "remote"
            case "c", [_, *_]:
                for test in fields:
                    if test not in self._collected and self._has_room(test, len(self._collected)):
                        self._collected.add(test)
            case "p", [_, *_]:  # of these each phase passed, and their code came to its end
                for test in fields:
                    self._note(test, "PASSED")
            case "e", [test]:
                self._note(test, "ERROR")
            case "t", [test, when, outcome, expected, part, evidence]:
                self._phase(session, test, when, outcome, expected == "1", part == "1", evidence)
            case "x", [what]:
                self._strange(what)
            case "z", [status, _, _]:
                session.exit_status = int(status)
            case _:
                raise ValueError(kind)

    def _phase(
        self,
        session: _Session,
        test: str,
        when: str,
        outcome: str,
        expected: bool,
        part: bool,
        evidence: str,
    ) -> None:
        """Record one phase of a test: its report, and what its own code says but that it came to its end."""
        if outcome == "rerun":
            return
        if outcome not in ("passed", "skipped"):
            self._note(test, "FAILED" if when == "call" else "ERROR")
        elif part:  # passing parts do not make a test pass
            return
        elif outcome == "skipped":
            self._note(test, "XFAIL" if expected else "SKIPPED")
        else:
            if evidence and not session.remote and self._has_room(evidence, len(self._evidence)):
                self._evidence.setdefault(test, evidence[:1000])
            if when == "call":
                self._note(test, "XPASS" if expected else "PASSED")

    def _note(self, test: str, status: TestStatus) -> None:
        if test in self._statuses or self._has_room(test, len(self._statuses)):
            note_worst(self._statuses, test, status)

    def _has_room(self, test: str, known: int) -> bool:
        self._text += len(test)
        self._dropped |= known == MAX_TESTS or self._text > MAX_TEXT
        return not self._dropped

    def _strange(self, what: str) -> None:
        if len(self._odd) < _MAX_ODD:
            self._odd.add(what[:500])

    def report(self) -> Report:
        """Return the report so far."""
        sessions = self._sessions.values()
        ended = [session.exit_status for session in sessions if session.exit_status is not None]
        whole = not self._dropped and not any(session.missed for session in sessions)
        return Report(
            sessions=len(sessions),
            complete=bool(sessions) and len(ended) == len(sessions) and whole,
            exit_status=max(ended, default=None),
            statuses=self._statuses,
            collected=frozenset(self._collected),
            remote=any(session.remote for session in sessions),
            odd=frozenset(self._odd),
            evidence=self._evidence,
        )
