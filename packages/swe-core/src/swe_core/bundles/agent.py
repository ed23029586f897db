"""BundledAgent: an agent that comes as a bundle. bundle_checks: what `swe-core doctor` says of it."""

from __future__ import annotations

import ipaddress
import signal
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import urlsplit

from swe_core.api.agent import AgentContext, AgentExit, AgentSpec
from swe_core.api.checks import Check, Finding
from swe_core.api.sandbox import Asset
from swe_core.bundles.build import check_host, ensure_bundle, find_bundle
from swe_core.bundles.recipe import Recipe
from swe_core.errors import SweError


class BundledAgent(AgentSpec):
    """An agent whose programs the host builds as one bundle."""

    title: ClassVar[str]
    """The agent's name in messages, such as "Pi"."""
    needs: ClassVar[str] = ""
    """What the image needs beside a POSIX shell, such as "glibc and bash"."""

    @abstractmethod
    def recipe(self) -> Recipe:
        """Return what the bundle consists of.

        Raises:
            SweError: A setting is wrong, or this machine's architecture is not supported.
        """

    def assets(self) -> Sequence[Asset]:
        """Return the bundle, built on first use.

        Raises:
            SweError: See `ensure_bundle`.
        """
        recipe = self.recipe()
        bundle = ensure_bundle(recipe)
        return (Asset(name=recipe.name, path=bundle.path, digest=bundle.digest),)

    def failure(self, ended: AgentExit) -> str | None:
        """Return why the agent failed, or None if it succeeded.

        Many agents exit with 0 even if their LLM calls fail, so a fatal error at the end decides.
        """
        error, code = ended.last_error, ended.exit_code
        said = f": {error.text}" if error is not None else ""
        if code == 0:
            return f"{self.title} ended with an error{said}" if error is not None and error.fatal else None
        tail = ended.stderr_tail.strip().splitlines()
        said = said or (f": {tail[-1].strip()}" if tail else "")
        if code in (126, 127):
            needs = f" that has {self.needs}" if self.needs else ""
            return (
                f"{self.title} could not be started in the sandbox (exit code {code}){said}; use an image "
                f"for the architecture of this host{needs}"
            )
        if code > 128:
            return f"{self.title} was killed by {_signal_name(code - 128)}{said}"
        return f"{self.title} exited with code {code}{said}"


def bundle_checks(make_agent: Callable[[], BundledAgent]) -> tuple[Check, ...]:
    """Return the checks of an agent's bundle: it is built, or this host can build it. They fetch nothing.

    Args:
        make_agent: Makes the agent with its default settings.
    """

    def bundle() -> Finding:
        try:
            recipe = make_agent().recipe()
            if (built := find_bundle(recipe)) is not None:
                return Finding("ok", f"built in {str(built.path)!r}")
            check_host(recipe)
        except SweError as error:
            return Finding.missing(str(error), ": ")
        return Finding("info", "not built: the first run builds it")

    return (Check("bundle", f"--agent {make_agent().name}", bundle),)


def loopback_env(ctx: AgentContext) -> dict[str, str]:
    """Return the variables that keep a proxy of the image away from an endpoint on loopback."""
    host = urlsplit(ctx.base_url).hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return {"NO_PROXY": host, "no_proxy": host} if loopback else {}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`. Tables merge key by key."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = merged(below, value) if both else value  # type: ignore[arg-type]  # `both` ensures mappings
    return result


def _signal_name(number: int) -> str:
    """Return `SIGTERM` for 15; for SIGKILL also the usual cause."""
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (out of memory, or killed from outside)" if name == "SIGKILL" else name
