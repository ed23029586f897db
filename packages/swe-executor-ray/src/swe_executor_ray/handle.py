"""RayNode: a node of a run that is an actor on a node of a Ray cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import anyio
import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    RayActorError,
    RayError,
    RuntimeEnvSetupError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from swe_core.rollout.nodes.handle import NodeGone, NodeHandle, NodeUnreachable
from swe_executor_ray.actor import NodeActor, Welcome
from swe_executor_ray.cluster import SLOTS, Host

logger = logging.getLogger(__name__)

_STARTING = 120.0
"""Seconds in which Ray starts an actor."""
_PREPARING = 900.0
"""The same where it makes a runtime environment first."""
_ENDING = 100.0
"""Seconds in which an actor closes its sandboxes at the end."""
_DEATHS = 3
"""Number of times that an actor may end before it is ready."""
_CONTROL, _TRANSFER = "control", "transfer"
_ACTOR = ray.remote(
    num_cpus=0,
    max_restarts=-1,
    max_task_retries=0,  # the pool knows what may be done again
    concurrency_groups={_CONTROL: 1000, _TRANSFER: 8},
)(NodeActor)


class RayNode(NodeHandle):
    """A node of a run.

    Args:
        run: Name of the run on the nodes.
        environment: Variables for the actor's environment.
        prepares: Whether the actor has a runtime environment.

    Attributes:
        dead: Whether Ray has given the node up.
    """

    spool = ""  # known once the actor runs

    def __init__(
        self, name: str, slots: int, host: Host, run: str, environment: Mapping[str, str], prepares: bool
    ) -> None:
        self.name = name
        self.slots = slots
        self.dead = False
        self.host = host
        self._run = run
        self._environment = dict(environment)
        self._starting = _PREPARING if prepares else _STARTING
        self._actor: Any = None
        self._calls: set[anyio.Event] = set()
        self._incarnation = ""
        self._ready = self._answers = False
        self._deaths = 0

    async def start(self) -> None:
        if self.dead:
            raise NodeGone("Ray reports it as dead")
        if self._actor is None:
            affinity = NodeAffinitySchedulingStrategy(self.host.id, soft=False)
            slots = {SLOTS: self.host.slots} if self.host.slots else None
            self._actor = _ACTOR.options(scheduling_strategy=affinity, resources=slots).remote(self._run)
        try:
            with anyio.fail_after(self._starting):
                welcome: Welcome = await self._actor.welcome.remote(self._environment)
        except TimeoutError:
            if self._incarnation:
                raise NodeUnreachable(f"its actor does not answer within {self._starting:g} s") from None
            raise NodeGone(
                f"Ray has not started its actor within {self._starting:g} s: another run may hold its {SLOTS}"
            ) from None
        except RuntimeEnvSetupError as error:
            raise NodeGone(f"Ray cannot make its runtime environment: {_reason(error)}") from None
        except RayError as error:
            raise self._failed(error) from None
        if welcome.refusal:
            raise NodeGone(welcome.refusal)
        if welcome.incarnation != self._incarnation:
            if self._incarnation and not self._ready:
                self._died("")
            self._incarnation, self._ready = welcome.incarnation, False
        self.spool, self._answers = welcome.spool, True

    async def call(self, method: str, message: bytes) -> bytes:
        group = _TRANSFER if method == "read" else _CONTROL
        if method == "close":
            for ended in list(self._calls):  # such as the last acknowledgement
                await ended.wait()
        ended = anyio.Event()
        self._calls.add(ended)
        try:
            answer: bytes = await self._actor.answer.options(concurrency_group=group).remote(method, message)
        except RayError as error:
            raise self._failed(error) from None
        finally:
            self._calls.discard(ended)
            ended.set()
        if method == "begin":
            self._ready, self._deaths = True, 0
        return answer

    async def stop(self) -> None:
        actor, self._actor = self._actor, None
        if actor is None:
            return
        if self._answers:
            with anyio.move_on_after(_ENDING):
                try:
                    await actor.end.remote()
                except RayError as error:
                    logger.debug("the node %s has ended before it has closed: %s", self.name, error)
        ray.kill(actor)

    def _failed(self, error: RayError) -> NodeUnreachable:
        """Return why a call has failed.

        Raises:
            NodeGone: The actor can never run on this node.
        """
        self._answers = False
        why = _reason(error)
        if isinstance(error, RayActorError) and error.actor_init_failed:
            raise NodeGone(
                f"its actor cannot start: {why}; install the same packages there, or set "
                "executor.ray.runtime_env"
            )
        if isinstance(error, ActorDiedError | ActorUnschedulableError):
            self._actor = None  # Ray does not start it again
            if not self._ready:
                self._died(why)
        return NodeUnreachable(why)

    def _died(self, why: str) -> None:
        self._deaths += 1
        if self._deaths > _DEATHS:
            said = f": {why}" if why else ""
            raise NodeGone(f"its actor has ended {self._deaths} times before it was ready{said}")


_PREFACES = (
    ActorDiedError.BASE_ERROR_MSG,
    *("class_name:", "actor_id:", "pid:", "name:", "namespace:", "ip:", "The actor never ran"),
)
"""Starts of lines in Ray's messages that do not say why."""


def _reason(error: RayError) -> str:
    """Return the line of Ray's message that says why; before it there may be a traceback."""
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in lines if line and not line.startswith(_PREFACES)]
    return lines[-1].rstrip(".") if lines else type(error).__name__
