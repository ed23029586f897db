"""`reach_by_socket`: the relay for providers that share a host directory with their sandboxes."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from swe_core.api.sandbox import Sandbox
from swe_core.errors import PolicyRefused
from swe_core.sandboxing.relay.launcher import running
from swe_core.sandboxing.relay.unix_socket import unix_listener


def require_network(sandbox: Sandbox) -> None:
    """Refuse to make an endpoint reachable from a sandbox without a network.

    Raises:
        PolicyRefused: Its policy is `none`.
    """
    if sandbox.spec.network == "none":
        raise PolicyRefused(
            f"the sandbox {sandbox.id!r} was opened with network 'none', so nothing may be reached from it; "
            "open it with network 'llm'"
        )


@asynccontextmanager
async def reach_by_socket(
    sandbox: Sandbox, endpoint: str, host_dir: Path, inside_dir: str
) -> AsyncIterator[str]:
    """Make `endpoint` reachable from inside `sandbox`, through a unix socket in a shared directory.

    Args:
        endpoint: `http://HOST:PORT` of a server on this host.
        host_dir: A directory of this host. The sandbox's user must be able to enter it; the socket itself is
            open to every user.
        inside_dir: The same directory inside the sandbox; it may be mounted read-only.

    Yields:
        `http://127.0.0.1:PORT`, the endpoint's URL inside.

    Raises:
        PolicyRefused: The sandbox's network policy is `none`.
        SandboxError: The sandbox has neither Python >= 3.6 nor Node, the program did not start, or the
            directory's path is too long for a socket.
    """
    require_network(sandbox)
    name = f"{secrets.token_hex(4)}.sock"
    async with unix_listener(host_dir / name, endpoint):
        async with running(sandbox, "forward", f"{inside_dir}/{name}") as program:
            yield f"http://127.0.0.1:{program.ports[0]}"
