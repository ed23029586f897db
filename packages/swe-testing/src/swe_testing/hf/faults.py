"""What goes wrong on purpose, by switch and by seed."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

STATUSES = (429, 500, 502, 503)


@dataclass(slots=True, kw_only=True)
class Faults:
    """Everything is off at first and may be switched while the server runs. The same seed and the same
    requests in the same order meet the same faults.

    A request's route is named "jobs.create", "jobs.inspect", "jobs.list", "jobs.logs", "jobs.cancel",
    "jobs.hardware", "whoami", "server.health", "server.exec", "server.processes", "server.files",
    "server.sandboxes" or "server.proxy" (what the sandbox's own server is asked); others as their module
    says.

    Args:
        seed: Decides which requests the shares below mean.
        routes: Beginnings of the names of routes that the shares below mean; all of them at first.
        latency: Seconds that each way between client and service takes. Of a streamed answer each piece
            takes so long, not each piece after the one before it.
        failing: The share of requests that are answered with one of `statuses`, and not carried out.
        lost: The share of requests that are carried out, and whose answer never comes: the connection breaks.
        dropping: The share of streamed answers (`exec`, `proxy`) that break off after `drop_after` bytes.
        bad_gateways: How many requests to the same sandbox are answered 502 after a stream of its broke off.
        buffering: Streamed answers are held back until they have ended, as some proxies do.
        quota: So many jobs at once; one more is refused. None is no limit.
        start_delay: Seconds that a job is scheduled before it runs.
        never_ready: Sandboxes run, but their server never answers.
        deaths: Seconds after which the next jobs that start die, one each.
        idle_timeout: Seconds, in place of what the client asks for; for jobs that are started from now on.
        skew: Seconds by which the service's clock is ahead of this machine's; less than none is behind.
    """

    seed: int = 0
    routes: tuple[str, ...] = ("",)
    latency: float = 0.0
    failing: float = 0.0
    statuses: tuple[int, ...] = STATUSES
    lost: float = 0.0
    dropping: float = 0.0
    drop_after: int = 2048
    bad_gateways: int = 0
    buffering: bool = False
    quota: int | None = None
    start_delay: float = 0.0
    never_ready: bool = False
    deaths: list[float] = field(default_factory=list)
    idle_timeout: float | None = None
    skew: float = 0.0
    _random: random.Random = field(init=False, repr=False)
    _planned: dict[str, deque[int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def now(self) -> datetime:
        """What the service's clock says."""
        return datetime.now(UTC) + timedelta(seconds=self.skew)

    def plan(self, route: str, *statuses: int) -> None:
        """Answer the next requests of exactly this route with these statuses, one each; 0 lets one pass."""
        self._planned.setdefault(route, deque()).extend(statuses)

    def status(self, route: str) -> int | None:
        """The status that a request is answered with instead of being carried out; None where it is."""
        planned = self._planned.get(route)
        if planned:
            return planned.popleft() or None
        if self._happens(route, self.failing):
            return self._random.choice(self.statuses)
        return None

    def loses(self, route: str) -> bool:
        """Whether the answer to a request is lost."""
        return self._happens(route, self.lost)

    def drop(self, route: str) -> int | None:
        """After how many bytes a streamed answer breaks off; None where it does not."""
        return self.drop_after if self._happens(route, self.dropping) else None

    def _happens(self, route: str, share: float) -> bool:
        return share > 0 and route.startswith(self.routes) and self._random.random() < share
