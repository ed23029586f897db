"""ReplicaClient: TRL's client of a vLLM server, for several servers of one policy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import httpx

from swe_core.errors import EngineUnavailable
from swe_trainer_trl.compat import trainer_module
from swe_trainer_trl.server.health import dead
from swe_trainer_trl.server.parallel import in_parallel
from swe_trainer_trl.server.served import models

T = TypeVar("T")

_TIMEOUT = 10.0
"""Timeout of a health check in seconds."""


class ReplicaClient:
    """The interface of TRL's `VLLMClient`: what changes the weights goes to all servers at once.

    Args:
        urls: Returns the base URLs of the servers, without `/v1`; called for each request.
        make: Creates TRL's client of one server.
        timeout: Seconds to wait until a server is ready.
    """

    def __init__(self, urls: Callable[[], Sequence[str]], make: Callable[[str], Any], timeout: float) -> None:
        self._urls = urls
        self._make = make
        self._timeout = timeout

    @property
    def server_url(self) -> str:
        """Return the URLs, for messages."""
        return ", ".join(self._urls())

    def wait_for_server_ready(self, poll_interval_s: float = 2.0) -> None:
        """Wait until a server is ready. The recovery waits for the others.

        Raises:
            EngineUnavailable: None is ready in time.
        """
        until = time.monotonic() + self._timeout
        while not any(in_parallel([partial(_ready, url) for url in self._urls()])):
            if time.monotonic() > until:
                raise EngineUnavailable(
                    f"none of the servers {self.server_url} is ready after {self._timeout:.0f} s: start them "
                    "again, then resume with --resume"
                )
            time.sleep(poll_interval_s)

    def get_max_model_len(self) -> int:
        """Return the shortest context in tokens."""
        return min(self._answers(lambda client: int(client.get_max_model_len())))

    def get_dtype(self) -> str:
        """Return the precision of the weights, such as "torch.bfloat16". It is the same for all servers."""
        return self._answers(lambda client: str(client.get_dtype()))[0]

    def get_server_info(self) -> dict[str, Any]:
        """Return the configuration of a server that answers. What TRL reads is the same for all servers."""
        return self._answers(lambda client: dict(client.get_server_info()))[0]

    def load_lora_adapter(self, lora_name: str, lora_path: str, **options: Any) -> None:
        """Load an adapter into all servers. vLLM loads a name only once, so a server that has it from an
        interrupted sync keeps it."""

        def load(client: Any) -> None:
            if lora_name not in models(client.server_url):
                client.load_lora_adapter(lora_name, lora_path, **options)

        self._all(load)

    def unload_lora_adapter(self, lora_name: str, **options: Any) -> None:
        """Remove an adapter from all servers that have it."""
        self._living(lambda client: client.unload_lora_adapter(lora_name, **options))

    def get_world_size(self) -> int:
        """Return the number of inference processes of all servers."""
        return sum(self._world_sizes())

    def pause(self, **options: Any) -> None:
        """Hold the running requests of all servers."""
        self._all(lambda client: client.pause(**options))

    def resume(self, **options: Any) -> None:
        """Resume the requests of all servers."""
        self._living(lambda client: client.resume(**options))

    def init_weight_transfer_engine(self, init_info: dict[str, Any], **options: Any) -> None:
        """Have the processes of all servers join the trainer's group, with consecutive ranks."""
        ranks, first = [], init_info["rank_offset"]
        for size in self._world_sizes():
            ranks.append(first)
            first += size
        in_parallel(
            [
                partial(client.init_weight_transfer_engine, {**init_info, "rank_offset": rank}, **options)
                for client, rank in zip(self._clients(), ranks, strict=True)
            ]
        )

    def start_weight_update(self, **options: Any) -> None:
        """Prepare all servers for new weights."""
        self._all(lambda client: client.start_weight_update(**options))

    def update_weights(self, update_info: dict[str, Any], **options: Any) -> None:
        """Have all servers receive new weights; return when each has all."""
        self._all(lambda client: client.update_weights(update_info, **options))

    def finish_weight_update(self, **options: Any) -> None:
        """Complete the new weights of all servers."""
        self._all(lambda client: client.finish_weight_update(**options))

    def _clients(self) -> list[Any]:
        return [self._make(url) for url in self._urls()]

    def _world_sizes(self) -> list[int]:
        return self._all(lambda client: int(client.get_world_size()))

    def _all(self, call: Callable[[Any], T]) -> list[T]:
        return in_parallel([partial(call, client) for client in self._clients()])

    def _living(self, call: Callable[[Any], None]) -> None:
        """Call all servers but those that are dead now: the sync is complete without them."""

        def attempt(client: Any) -> None:
            try:
                call(client)
            except OSError:  # as all errors of `requests` are
                if dead(client.server_url) is None:
                    raise

        self._all(attempt)

    def _answers(self, call: Callable[[Any], T]) -> list[T]:
        """Return the answers of the servers that give one: a dead server must not end the training."""
        answers: list[T] = []
        for client in self._clients():
            with suppress(OSError):
                answers.append(call(client))
        if not answers:
            raise EngineUnavailable(f"none of the servers {self.server_url} answers: see their logs")
        return answers


@contextmanager
def replica_client(urls: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Have the trainers of TRL that are created in the block talk to several servers.

    Args:
        urls: Returns the base URLs of the servers, without `/v1`.
    """
    single = trainer_module.VLLMClient

    def create(server_url: str, server_timeout: float) -> ReplicaClient:
        return ReplicaClient(urls, partial(single, server_timeout=server_timeout), server_timeout)

    trainer_module.VLLMClient = create
    try:
        yield
    finally:
        trainer_module.VLLMClient = single


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=_TIMEOUT, trust_env=False).is_success
    except httpx.TransportError:
        return False
