"""NodePool: gives rollouts to nodes, and takes each finished one over without loss.

A node keeps a finished rollout on its disk until the driver has committed it. Every answer to `begin` says
what the node runs and what it offers, so that after any interruption both sides agree again:

- A rollout that the node neither runs nor offers is lost, and runs again as a new try.
- A rollout that is offered twice, or after it was committed, is acknowledged and not committed again.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from swe_core.api.executor import Commit, ExecutorRun
from swe_core.api.records import Outcome, Record
from swe_core.api.rollout_request import Observer, RolloutRequest
from swe_core.errors import SweError, sentence
from swe_core.rollout.nodes.engine_state import EngineState
from swe_core.rollout.nodes.handle import NodeHandle, NodeUnreachable
from swe_core.rollout.nodes.messages import (
    Acknowledge,
    Begin,
    End,
    Event,
    FailedEvent,
    FinishedEvent,
    Joined,
    LogEvent,
    PhaseEvent,
    Poll,
    Start,
    TurnEvent,
    events_of,
    from_bytes,
)
from swe_core.rollout.nodes.node import Node
from swe_core.rollout.nodes.order import MAX_LOST, Order
from swe_core.rollout.nodes.spool import Incoming
from swe_core.rollout.run_directory import FOLDERS, working_directory

logger = logging.getLogger(__name__)

OPENING = 900.0
"""Seconds that a node may take to open: it may build bundles and wait for a service."""
LOST_AFTER = 120.0
"""Seconds without an answer after which a node's rollouts run elsewhere."""
ENDING = 330.0
"""Seconds that a cancelled rollout may take to close its sandbox and to arrive."""
_LAST_WORDS = 5.0
"""Seconds that the last messages to the nodes may take at the end."""
_TRANSFERS = 8
"""Finished rollouts that travel at the same time."""
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds before each new attempt to reach a node; the last one repeats."""


class _Found(NamedTuple):
    """A rollout that was copied from a node."""

    node: str
    incoming: Incoming


class NodePool:
    """The nodes of a run, and the rollouts that they run.

    Args:
        tasks: Runs what the pool does in the background.
        lost_after: Seconds without an answer after which a node's rollouts run elsewhere.

    Attributes:
        growing: Whether more nodes may come, so that a run without any waits.
        notes: Sentences for the user, from the first node that joins.
        engine: What the nodes know of the engine.
    """

    def __init__(self, run: ExecutorRun, tasks: TaskGroup, lost_after: float = LOST_AFTER) -> None:
        self.growing = True
        self.notes: tuple[str, ...] = ()
        self.nodes: dict[str, Node] = {}
        self._run = run
        self._folders = run.directory / FOLDERS
        self._tasks = tasks
        self._lost_after = lost_after
        self._waiting: deque[Order] = deque()
        self._orders: dict[str, Order] = {}
        self._offers: dict[str, set[str]] = {}
        self._taken: set[str] = set()
        self._again: Collection[Outcome] = ()
        self._transfers = anyio.CapacityLimiter(_TRANSFERS)
        self.engine = EngineState(self.nodes, self._tell)
        self._unfit: str | None = None
        self._sending, self._sent = 0, anyio.Event()
        self._changed = anyio.Event()

    @property
    def capacity(self) -> int:
        """Return the slots of the nodes that answer."""
        return sum(node.handle.slots for node in self.nodes.values() if node.joined and not node.out)

    # nodes

    def add(self, handle: NodeHandle) -> None:
        """Attend to a node from now on."""
        node = self.nodes[handle.name] = Node(handle)
        self._tasks.start_soon(self._attend, node)

    def drain(self, name: str, why: str) -> None:
        """Give a node no more rollouts. Those that it runs go on."""
        node = self.nodes[name]
        if not node.out:
            node.out = why
            logger.warning("the node %s gets no more rollouts: %s", name, why)
            self._assign()

    def no_more_nodes(self) -> None:
        """Say that no node will be added."""
        self.growing = False
        self._assign()

    async def joined(self, *, all_of_them: bool = False) -> None:
        """Wait until a node has joined, or each has joined or is out.

        Raises:
            SweError: None can join any more.
        """
        while True:
            nodes = self.nodes.values()
            some, settled = any(node.joined for node in nodes), all(node.joined or node.out for node in nodes)
            if some and (settled or not all_of_them):
                return
            if settled and not self.growing:
                raise self._hopeless()
            changed = self._changed
            with anyio.move_on_after(self._lost_after if some else math.inf) as patience:
                await changed.wait()
            if patience.cancelled_caught:  # what it offers later is taken then
                return

    @asynccontextmanager
    async def closed_in_the_end(self) -> AsyncIterator[None]:
        """End all nodes when the context is left."""
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await self._close()

    async def _close(self) -> None:
        with anyio.move_on_after(_LAST_WORDS):  # the last acknowledgements: else their files stay
            while self._sending:
                await self._sent.wait()

        async def end(node: Node) -> None:
            if node.joined:
                node.scope.cancel()
                try:
                    await node.call("close")
                except (NodeUnreachable, SweError) as error:
                    logger.warning("the node %s did not close: %s", node.name, sentence(error))
            await node.handle.stop()

        async with anyio.create_task_group() as tasks:
            for node in self.nodes.values():
                node.out = node.out or "the run has ended"
                tasks.start_soon(end, node)

    async def metrics(self) -> Mapping[str, bytes]:
        """Return the metrics of each node that answers at once, in Prometheus' text format."""
        found: dict[str, bytes] = {}

        async def ask(node: Node) -> None:
            try:
                with anyio.move_on_after(2):
                    found[node.name] = await node.call("metrics")
            except (NodeUnreachable, SweError) as error:
                logger.debug("the node %s has no metrics now: %s", node.name, error)

        async with anyio.create_task_group() as tasks:
            for node in self.nodes.values():
                if node.joined:
                    tasks.start_soon(ask, node)
        return found

    # rollouts

    async def submit(self, request: RolloutRequest, observer: Observer, commit: Commit) -> None:
        """See `swe_core.api.executor.Executor.submit`."""
        order = self._orders[request.id] = Order(request, observer)
        observer.started(request)
        self._waiting.append(order)
        self._receive_if_offered(order)
        self._assign()
        try:
            await order.settled.wait()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(ENDING):
                self._end(order, None)
                await order.settled.wait()
            raise
        finally:
            self._forget(order)
            self._commit(order, commit)

    def _commit(self, order: Order, commit: Commit) -> None:
        if not order.settled.is_set():  # cancelled, and its node does not answer
            order.lose("its node did not answer when the rollout was cancelled")
            order.settle_here()
        if order.result is None:
            raise order.failure or SweError(f"the rollout {order.id!r} was not run")
        (self._folders / order.id).mkdir(parents=True, exist_ok=True)  # of one that no node has run
        commit(order.result)
        self._taken.add(order.id)
        self._acknowledge(order.id)
        if self._unfit is not None:
            raise SweError(self._unfit)

    async def recover(self, commit: Commit, finished: Collection[str], again: Collection[Outcome]) -> None:
        """See `swe_core.api.executor.Executor.recover`."""
        await self.joined(all_of_them=True)
        self._taken.update(finished)
        self._again = again
        for rollout_id in list(self._offers):
            if rollout_id in self._taken:
                self._acknowledge(rollout_id)
                continue
            found = await self._received(rollout_id)
            if found is not None:
                commit(found.incoming.place())
                self._taken.add(rollout_id)
                self._acknowledge(rollout_id)

    def cancel(self, rollout_id: str, why: str) -> None:
        """See `swe_core.api.executor.Executor.cancel`."""
        order = self._orders.get(rollout_id)
        if order is not None:
            self._end(order, why)

    def _end(self, order: Order, why: str | None) -> None:
        order.ending, order.why = True, order.why or why
        if order.settled.is_set():
            return
        if order.node is not None:
            self._tell(self.nodes[order.node], "cancel", End(rollout=order.id, why=why))
        elif not order.receiving:
            self._waiting.remove(order)
            order.settle_here()

    def _forget(self, order: Order) -> None:
        del self._orders[order.id]
        if order in self._waiting:
            self._waiting.remove(order)
        if order.node is not None:
            self.nodes[order.node].orders.pop(order.id, None)

    # choosing a node

    def _assign(self) -> None:
        """Give waiting rollouts to nodes with free slots."""
        self._changed.set()
        self._changed = anyio.Event()
        if not self.growing and all(node.out for node in self.nodes.values()):
            while self._waiting:
                self._waiting.popleft().fail(self._hopeless())
        while self._waiting:
            order = self._waiting[0]
            node = self._best(order)
            if node is None:
                return
            self._waiting.popleft()
            order.assign(node.name)
            node.orders[order.id] = order
            node.running.add(order.id)
            node.images.add(order.request.spec.image)
            self._tasks.start_soon(self._start, node, order, node.epoch)

    def _best(self, order: Order) -> Node | None:
        """Return a node with a free slot: one that has had the image, then that with the most free slots."""
        image = order.request.spec.image
        free = [node for node in self.nodes.values() if node.free > 0]
        return max(free, key=lambda node: (image in node.images, node.free), default=None)

    def _hopeless(self) -> SweError:
        """Return the error of a run without nodes, with each reason once."""
        names: dict[str, list[str]] = {}
        for node in self.nodes.values():
            names.setdefault(node.out, []).append(node.name)
        why = "; ".join(f"{', '.join(of)}: {reason}" for reason, of in names.items()) or "there is none"
        return SweError(f"no node can run rollouts ({why})")

    async def _start(self, node: Node, order: Order, epoch: int) -> None:
        try:
            await node.call("start", Start(epoch=epoch, request=order.request))
            order.begun |= order.node == node.name and node.epoch == epoch
        except NodeUnreachable:
            node.miss()  # its answer to the next `begin` says whether it runs the rollout
        except Exception as error:  # the boundary of a task: it is refused, or cannot travel
            self._failed(node, order.id, sentence(error))

    def _failed(self, node: Node, rollout_id: str, why: str) -> None:
        """Take a node out that cannot run a rollout, which then runs elsewhere."""
        order = node.orders.pop(rollout_id, None)
        node.running.discard(rollout_id)
        self.drain(node.name, why)
        if order is not None and order.node == node.name and not order.settled.is_set():
            self._run_again(order, f"the node {node.name} could not run it: {why}")

    # following a node

    async def _attend(self, node: Node) -> None:
        """Keep in touch with a node until it is gone or the run ends."""
        try:
            with node.scope:
                await self._follow(node)
        except Exception as error:  # the boundary of a node: it is out, and the others go on
            node.joined = False
            why = sentence(error)
            if not node.out:
                node.out = why
                logger.error("the node %s is out: %s", node.name, why)
            self._lose(node, why)

    async def _follow(self, node: Node) -> None:
        """Handle the events of a node, and find it again after each interruption.

        Raises:
            SweError: It is gone, or refuses to serve the run.
        """
        failures = 0
        while True:
            try:
                await node.handle.start()
                await self._begin(node)
                failures = 0
                while True:
                    answer = await self._poll(node)
                    for event in events_of(answer):
                        node.after = event.number
                        self._handle(node, event)
            except NodeUnreachable as error:
                self._unreachable(node, error)
            await anyio.sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
            failures += 1

    async def _poll(self, node: Node) -> bytes:
        """Return the next events of a node.

        Raises:
            NodeUnreachable: It does not answer, or a message to it was lost meanwhile.
            SweError: It refuses.
        """
        if not node.missed:
            with anyio.CancelScope() as node.polling:
                return await node.call("poll", Poll(after=node.after))
        raise NodeUnreachable("a message to it was lost")

    async def _begin(self, node: Node) -> None:
        node.missed = False
        node.epoch += 1
        begin = Begin(
            name=node.name,
            settings=dict(self._run.settings),
            versions=dict(self._run.versions),
            directory=working_directory(),
            spool=node.handle.spool,
            clock=time.time(),
            epoch=node.epoch,
            version=self.engine.version,
            without=tuple(self.engine.without),
        )
        try:
            with anyio.fail_after(OPENING):
                answer = await node.call("begin", begin, math.inf)
        except TimeoutError:
            if node.incarnation:
                raise NodeUnreachable(f"no answer within {OPENING:g} s") from None
            raise SweError(f"it did not open within {OPENING:g} s") from None
        joined = from_bytes(Joined, answer)
        if restarted := joined.incarnation != node.incarnation:
            if node.incarnation:
                logger.warning("the node %s has started again", node.name)
            node.incarnation, node.after = joined.incarnation, 0
        node.joined, node.unreachable_since = True, None
        self.notes = self.notes or joined.notes
        for order in list(node.orders.values()):
            if order.id not in joined.offered and order.id not in joined.running:
                begun = restarted or order.begun
                why = f"the node {node.name} {'was lost' if begun else 'did not get it'}"
                self._lose_order(node, order, why, begun=begun)
            elif order.ending:
                self._tell(node, "cancel", End(rollout=order.id, why=order.why))
        node.running = set(joined.running) | node.orders.keys() - set(joined.offered)
        for rollout_id in joined.running:
            if rollout_id not in node.orders and not self._adopted(node, rollout_id):
                self._tell(node, "cancel", End(rollout=rollout_id, why=None))  # it is elsewhere by now
        for rollout_id in joined.offered:
            self._offered(node, rollout_id)
        if begin.version != self.engine.version or set(begin.without) != self.engine.without:
            node.miss()  # the news came while it was opening
        self._assign()

    def _adopted(self, node: Node, rollout_id: str) -> bool:
        """Leave a rollout to the node that runs it, if it counts as lost and runs nowhere else."""
        order = self._orders.get(rollout_id)
        if order is None or order not in self._waiting or not order.has_lost(node.name):
            return False
        self._waiting.remove(order)
        order.adopt(node.name)
        node.orders[rollout_id] = order
        return True

    def _handle(self, node: Node, event: Event) -> None:
        if isinstance(event, LogEvent):
            logger.log(event.level, "%s: %s", node.name, event.text)
        elif isinstance(event, FinishedEvent):
            node.running.discard(event.rollout)
            self._offered(node, event.rollout)
            self._assign()
        elif isinstance(event, FailedEvent):
            self._failed(node, event.rollout, event.why)
        elif isinstance(event, PhaseEvent | TurnEvent):
            order = node.orders.get(event.rollout)
            if order is None or order.node != node.name or order.settled.is_set():
                return
            if isinstance(event, PhaseEvent):
                order.observer.phase(event.rollout, event.phase)
            else:
                order.turn(event.turn)
                order.observer.turn(event.rollout, event.turn)
        else:
            self._unfit = event.why

    def _unreachable(self, node: Node, error: NodeUnreachable) -> None:
        if node.joined or node.epoch == 1:
            logger.warning("the node %s does not answer: %s", node.name, error)
        if node.joined:
            node.joined = False
            node.unreachable_since = since = anyio.current_time()
            self._tasks.start_soon(self._expire, node, since)

    async def _expire(self, node: Node, since: float) -> None:
        """Run the rollouts of an unreachable node elsewhere, once it was unreachable for long."""
        await anyio.sleep(self._lost_after)
        if node.unreachable_since == since:
            self._lose(node, f"the node {node.name} did not answer for {self._lost_after:g} s")

    def _lose(self, node: Node, why: str) -> None:
        for offers in self._offers.values():
            offers.discard(node.name)
        for order in list(node.orders.values()):
            self._lose_order(node, order, why)
        node.running.clear()
        self._assign()

    def _lose_order(self, node: Node, order: Order, why: str, *, begun: bool = True) -> None:
        del node.orders[order.id]
        node.running.discard(order.id)
        if order.node == node.name and not order.settled.is_set():
            node.lost += begun
            self._run_again(order, why, begun=begun)

    def _run_again(self, order: Order, why: str, *, begun: bool = True) -> None:
        order.lose(why) if begun else order.take_back()
        if not order.receiving:  # otherwise an earlier try is about to arrive
            self._wait_again(order, why)

    def _wait_again(self, order: Order, why: str) -> None:
        """Let a rollout without a node wait for one, unless it is to end or has lost too many."""
        if order.ending or len(order.lost) >= MAX_LOST:
            order.settle_here()
            return
        logger.warning("%s: %s; it is run again", order.id, why)
        self._waiting.appendleft(order)
        self._assign()

    # taking over

    def _offered(self, node: Node, rollout_id: str) -> None:
        if rollout_id in self._taken:
            self._tell(node, "acknowledge", Acknowledge(rollouts=(rollout_id,)))
            return
        self._offers.setdefault(rollout_id, set()).add(node.name)
        order = self._orders.get(rollout_id)
        if order is not None:
            self._receive_if_offered(order)

    def _receive_if_offered(self, order: Order) -> None:
        if self._offers.get(order.id) and not order.receiving and not order.settled.is_set():
            order.receiving = True
            if order in self._waiting:
                self._waiting.remove(order)
            self._tasks.start_soon(self._receive, order)

    async def _receive(self, order: Order) -> None:
        """Take over the rollout of an order. If no node can deliver it, the order waits again."""
        found = finished = None
        try:
            found = await self._received(order.id)
            if found is not None and not order.settled.is_set():
                finished = found.incoming.place()
        except OSError as error:  # the run directory cannot be written; the node keeps the rollout
            order.fail(error)
        except Exception as error:  # the boundary of a task
            order.fail(SweError(sentence(error)))
        order.receiving = False
        if order.settled.is_set():
            if found is not None:
                found.incoming.discard()
            return
        if found is not None and finished is not None:
            if order.node != found.node and order.has_lost(found.node):  # an earlier try has come back
                self._give_up(order, found.node)
            self.nodes[found.node].finished[finished.rollout.outcome] += 1
            order.settle(finished)
        elif order.node is None:
            self._wait_again(order, "no node delivers an earlier try")

    def _give_up(self, order: Order, node: str) -> None:
        """Count the earlier try on a node, and give up the one that runs now."""
        if order.node is not None:
            running = self.nodes[order.node]
            self._tell(running, "cancel", End(rollout=order.id, why=None))
            running.orders.pop(order.id, None)
            order.lose(f"an earlier try on the node {node} finished first")
        order.adopt(node)

    async def _received(self, rollout_id: str) -> _Found | None:
        """Return a rollout that nodes offer; None if none can deliver it, or if it is to run again."""
        while offers := self._offers.get(rollout_id):
            node = self.nodes[next(iter(offers))]
            try:
                async with self._transfers:
                    found = await node.transfer(rollout_id, self._folders)
            except NodeUnreachable:
                offers.discard(node.name)
                node.miss()  # it offers the rollout again
                continue
            except SweError as error:
                offers.discard(node.name)
                self._undelivered(node, rollout_id, sentence(error))
                continue
            order, rollout = self._orders.get(rollout_id), found.finished.rollout
            ending, interrupted = order is not None and order.ending, rollout.cancelled_as is None
            # One that was there before this run asked for it.
            before = order is None or (order.node is None and not order.lost)
            if rollout.outcome == "cancelled" and interrupted and not ending:
                found.discard()
                self._forgo(node, rollout_id)
                self._undelivered(node, rollout_id, "the node interrupted it")
            elif before and rollout.outcome in self._again and interrupted:
                found.discard()
                self._forgo(node, rollout_id)
            else:
                return _Found(node.name, found)
        return None

    def _undelivered(self, node: Node, rollout_id: str, why: str) -> None:
        """Run a rollout again that a node has ended but cannot deliver."""
        logger.error("%s: the node %s cannot deliver it: %s", rollout_id, node.name, why)
        order = node.orders.get(rollout_id)
        if order is not None:
            self._lose_order(node, order, why)

    def _forgo(self, node: Node, rollout_id: str) -> None:
        """Let a node remove a rollout that is not wanted. Another may offer a better try of it."""
        self._offers.get(rollout_id, set()).discard(node.name)
        self._tell(node, "acknowledge", Acknowledge(rollouts=(rollout_id,)))

    def _acknowledge(self, rollout_id: str) -> None:
        for name in self._offers.pop(rollout_id, ()):
            self._tell(self.nodes[name], "acknowledge", Acknowledge(rollouts=(rollout_id,)))

    # messages

    def _tell(self, node: Node, method: str, message: Record) -> None:
        """Send a message in the background. If it is lost, the driver begins with the node again."""

        async def send() -> None:
            try:
                await node.call(method, message)
            except Exception as error:  # the boundary of a task
                logger.debug("%s to %s: %s", method, node.name, error)
                node.miss()
            finally:
                self._sending -= 1
                self._sent.set()
                self._sent = anyio.Event()

        self._sending += 1
        self._tasks.start_soon(send)
