"""Asks every plugin what it needs of this machine, and looks. Nothing that a check does can harm another."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import MappingProxyType
from typing import cast, get_args

from swe_core.api.checks import Check, Finding, State, Tables
from swe_core.cli.doctor.machine import machine_checks
from swe_core.errors import PluginError, sentence
from swe_core.plugins.builtins import DEFAULTS
from swe_core.plugins.manager import HOOKS, PluginSet, RegisteredComponent
from swe_core.system.redaction import Redactor

CORE = "swe-core"
"""Who asks for what every run needs."""
PATIENCE = 20.0
"""Seconds that all checks together may take: they look at the same time."""
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.I)

_IN_URL = re.compile(r"://[^/@\s]*:([^/@\s]+)@")
"""The password in an address, such as a proxy's."""


@dataclass(frozen=True, slots=True)
class PlannedCheck:
    """A check, who asks for it, and whether a run with the chosen plugins uses who does."""

    plugin: str
    check: Check
    used: bool


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a check.

    Args:
        seconds: That it took; up to the limit where it gave no answer.
    """

    asked: PlannedCheck
    finding: Finding
    seconds: float

    @property
    def blocks(self) -> bool:
        """Whether something is missing that a run with the chosen plugins needs."""
        return self.asked.used and self.finding.state == "missing"


def used_components(plugins: PluginSet) -> dict[str, RegisteredComponent]:
    """Return role → component of a run with these plugins and no further options.

    A broken default is absent.

    Raises:
        PluginError: Two selected plugins can both fill a role.
    """
    chosen = {role: plugins.choose(role, None, None) for role in HOOKS}
    worker = chosen["worker"]
    defaults = {**DEFAULTS, **(worker.component.defaults if worker else {})}
    found: dict[str, RegisteredComponent] = {}
    for role, registered in chosen.items():
        with suppress(PluginError):
            found[role] = registered or plugins.find(role, defaults[role])
    return found


def asked_of(plugins: PluginSet, tables: Tables = MappingProxyType({})) -> list[PlannedCheck]:
    """The checks of the core, then those of every plugin. A plugin that is broken, or fails when it is asked,
    is a check that finds it missing.

    Args:
        tables: The settings of components.
    """
    used = {registered.plugin for registered in used_components(plugins).values()} | set(plugins.chosen)
    asked = [PlannedCheck(CORE, check, used=True) for check in machine_checks()]
    for plugin in plugins.plugins.values():
        if plugin.error is not None:
            asked.append(
                PlannedCheck(plugin.name, _broken(plugin.error), plugin.builtin or plugin.name in used)
            )
    for impl in plugins.manager.hook.swe_checks.get_hookimpls():
        arguments = [tables] if "tables" in impl.argnames else []
        try:
            checks = [_sound(check) for check in cast(Iterable[object], impl.function(*arguments))]
        except Exception as error:  # foreign code: one plugin must not keep the others from being looked at
            checks = [_broken(f"it failed in swe_checks: {sentence(error)}")]
        asked += [PlannedCheck(impl.plugin_name, check, impl.plugin_name in used) for check in checks]
    return asked


def look(asked: Sequence[PlannedCheck], redactor: Redactor, patience: float = PATIENCE) -> list[Result]:
    """Make all checks at the same time, and give their results in the order of `asked`.

    What a check raises, and that it gives no answer within `patience` seconds, is its finding. One that hangs
    is left behind in a thread of its own, which does not outlive the process.
    """
    answers: SimpleQueue[tuple[int, Finding, float]] = SimpleQueue()
    began = time.monotonic()

    def answer(number: int, one: PlannedCheck) -> None:
        finding = _finding(one.check.look)
        answers.put((number, finding, time.monotonic() - began))

    for number, one in enumerate(asked):
        threading.Thread(target=answer, args=(number, one), daemon=True).start()
    found: dict[int, tuple[Finding, float]] = {}
    while len(found) < len(asked):
        try:
            number, finding, seconds = answers.get(timeout=max(began + patience - time.monotonic(), 0.0))
        except Empty:
            break
        found[number] = finding, seconds
    late = Finding("missing", f"gave no answer within {patience:g} s", "Try again when the machine is idle.")
    return [
        Result(one, _redacted(finding, redactor), seconds)
        for number, one in enumerate(asked)
        for finding, seconds in [found.get(number, (late, patience))]
    ]


def secrets_of(environment: Mapping[str, str]) -> Redactor:
    """Knows the values of variables whose names sound like secrets, so that no text of a check has one."""
    redactor = Redactor()
    for name, value in environment.items():
        if _SECRET.search(name):
            redactor.add(value.strip())
        if found := _IN_URL.search(value):
            redactor.add(found[1])
    return redactor


def key_of(engine: RegisteredComponent | None) -> tuple[str | None, str | None]:
    """The environment variable that an engine takes its key from by default, and what is in it."""
    field = engine.component.config.model_fields.get("api_key_env") if engine else None
    if field is None or not isinstance(field.default, str):
        return None, None
    return field.default, os.environ.get(field.default, "").strip() or None


def _sound(check: object) -> Check:
    if not isinstance(check, Check):
        raise PluginError(f"expected Checks, and one is {check!r}")
    return check


def _broken(why: str) -> Check:
    finding = Finding("missing", why, "Install a version that works, or leave it out.")
    return Check("plugin", "itself", lambda: finding)


def _finding(look: Callable[[], object]) -> Finding:
    try:
        found = look()
    except (Exception, SystemExit) as error:  # foreign code: whatever it raises is what it found
        return Finding("missing", sentence(error))
    if not isinstance(found, Finding) or found.state not in get_args(State):
        return Finding("missing", f"its check returned {found!r}, expected a Finding")
    return found


def _redacted(finding: Finding, redactor: Redactor) -> Finding:
    return Finding(finding.state, redactor.text(finding.text), redactor.text(finding.remedy))
