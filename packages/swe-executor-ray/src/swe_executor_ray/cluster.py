"""A Ray cluster: start or join it, and see its nodes.

Ray is imported here inside functions: the environment at its import says on which addresses it listens.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import anyio

from swe_core.errors import ConfigError, SweError, sentence

logger = logging.getLogger(__name__)

SLOTS = "swe_slots"
"""The custom resource of a node: rollouts that run there at the same time."""
_ANSWERING = 15
"""Seconds in which a cluster answers that can be joined."""
_STORE = 128 * 2**20
"""Bytes of the object store of a private cluster. Its largest objects are parts of rollouts, of 4 MiB."""
_PRIVATE: Mapping[str, str] = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # says more than it does: Ray listens on loopback
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # Ray reads it once in a process
    "RAY_USAGE_STATS_ENABLED": "0",
}
_TRIAL = """
import logging, signal, sys, ray
logging.disable()
signal.alarm(int(sys.argv[2]))
try:
    ray.init(sys.argv[1], log_to_driver=False)
    signal.alarm(0)
except Exception as error:  # Ray raises errors of many types
    sys.exit(print(error.__cause__ or error) or 1)
"""
"""A program that joins a cluster. Where none answers, Ray tries for minutes, and prints meanwhile.
The import of Ray does not count."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Host:
    """A node of a cluster, as Ray knows it.

    Args:
        name: Name of its machine.
        slots: Amount of `swe_slots` that it offers.
        draining: Whether Ray is about to end it.
    """

    id: str
    name: str
    alive: bool
    slots: int
    draining: bool


class Cluster:
    """A connection to a cluster.

    Ray's blocking functions run in one thread, which lasts as long as the connection: the processes of a
    private cluster end with the thread that has started them.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "ray")

    @asynccontextmanager
    async def private(self, workers: int, runtime_env: Mapping[str, Any]) -> AsyncIterator[None]:
        """Start a cluster on this host. It listens on loopback, and ends with the context.

        Raises:
            SweError: It does not start.
        """
        logger.info("starting a Ray cluster on this host, which takes some seconds")
        with tempfile.TemporaryDirectory(prefix="swe-ray-", ignore_cleanup_errors=True) as directory:
            start = partial(_start, workers, directory, runtime_env)
            async with self._connected(start, "cannot start a Ray cluster on this host"):
                yield

    @asynccontextmanager
    async def joined(self, address: str, runtime_env: Mapping[str, Any]) -> AsyncIterator[None]:
        """Join the cluster at `address`, and leave it with the context.

        Raises:
            ConfigError: None answers there, or it has another version of Ray or Python.
        """
        async with self._connected(
            partial(_join, address, runtime_env), f"cannot join the Ray cluster at {address!r}"
        ):
            yield

    @asynccontextmanager
    async def _connected(self, connect: Callable[[], None], failed: str) -> AsyncIterator[None]:
        try:
            try:
                await self._call(connect)
            except SweError:
                raise
            except Exception as error:  # Ray raises errors of many types
                raise ConfigError(f"{failed}: {sentence(error)}") from None
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._call(_leave)
            self._thread.shutdown()

    async def hosts(self) -> Sequence[Host]:
        """Return the nodes of the cluster, also dead ones."""
        return await self._call(_hosts)

    async def demand(self, slots: int) -> None:
        """Tell the cluster's autoscaler how many slots are needed."""
        await self._call(partial(_demand, slots))

    async def _call(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)


def _start(workers: int, directory: str, runtime_env: Mapping[str, Any]) -> None:
    with _environment(_PRIVATE):
        _init(
            runtime_env,
            address="local",
            num_cpus=workers,
            include_dashboard=False,
            object_store_memory=_STORE,
            _node_ip_address="127.0.0.1",
            _temp_dir=directory,
        )


def _join(address: str, runtime_env: Mapping[str, Any]) -> None:
    command = [sys.executable, "-c", _TRIAL, address, str(_ANSWERING)]
    tried = subprocess.run(command, capture_output=True, check=False)
    if tried.returncode == -signal.SIGALRM:
        if b"InvalidAuthToken" in tried.stderr:
            raise ConfigError(
                f"the Ray cluster at {address!r} asks for a token: set RAY_AUTH_MODE=token here, and have "
                "its token in ~/.ray/auth_token or in RAY_AUTH_TOKEN"
            )
        raise ConfigError(
            f"no Ray cluster answers at {address!r} within {_ANSWERING} s: give the HOST:PORT that "
            "`ray start` has printed, or auto on a machine of the cluster"
        )
    if tried.returncode != 0:
        why = " ".join(tried.stdout.decode().split()) or f"Ray has ended with code {tried.returncode}"
        raise ConfigError(f"cannot join the Ray cluster at {address!r}: {why}")
    _init(runtime_env, address=address)


def _init(runtime_env: Mapping[str, Any], **options: Any) -> None:
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"Ray cannot be imported: {error}; install it: pip install 'ray>=2.50,<3'"
        ) from None
    logging.getLogger("ray").setLevel(logging.CRITICAL)  # what it knows comes as errors of calls
    ray._private.worker.print_to_stdstream = _tell
    ray.init(log_to_driver=False, configure_logging=False, runtime_env=dict(runtime_env) or None, **options)


def _tell(data: Mapping[str, Any], **_: object) -> None:
    """Log what Ray would print to standard output, where a run may print JSON."""
    for line in data["lines"]:
        logger.debug("%s", line)


def _leave() -> None:
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()


def _hosts() -> Sequence[Host]:
    import ray

    draining = ray._private.state.state.get_draining_nodes()  # nothing public tells
    return [
        Host(
            id=node["NodeID"],
            name=node["NodeManagerHostname"],
            alive=node["Alive"],
            slots=int(node["Resources"].get(SLOTS, 0)),
            draining=node["NodeID"] in draining,
        )
        for node in ray.nodes()
    ]


def _demand(slots: int) -> None:
    from ray.autoscaler.sdk import request_resources

    request_resources(bundles=[{SLOTS: 1}] * slots)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables while the context is open."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
