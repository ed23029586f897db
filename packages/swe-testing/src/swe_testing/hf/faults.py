"""Faults that tests switch on, reproducible by a seed."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

STATUSES = (429, 500, 502, 503)


@dataclass(slots=True, kw_only=True)
class Faults:
    """Faults of the server, all off at first; tests may change them at any time.

    The same seed and the same requests in the same order meet the same faults. A request's route is named
    "jobs.create", "jobs.inspect", "jobs.list", "jobs.logs", "jobs.cancel", "jobs.hardware", "whoami",
    "server.health", "server.exec", "server.processes", "server.files", "server.sandboxes" or "server.proxy"
    (the sandbox's own server); see `Hub` and `Spaces` for others.

    Args:
        seed: Selects the requests of the shares below.
        routes: Prefixes of the routes of the shares below; all of them at first.
        latency: Seconds of each direction between client and service; streamed pieces are delayed in
            parallel.
        failing: Share of requests that are answered with one of `statuses`, and not executed.
        lost: Share of requests that are executed, and whose connection breaks before the answer.
        dropping: Share of streamed answers (`exec`, `proxy`) that break off after `drop_after` bytes.
        bad_gateways: Number of requests to a sandbox that are answered 502 after one of its streams broke
            off.
        buffering: Hold streamed answers back until they have ended, as some proxies do.
        quota: Number of concurrent jobs; one more is refused. None is no limit.
        start_delay: Seconds that a job is scheduled before it runs.
        never_ready: Sandboxes run, but their server never answers.
        deaths: Seconds after which the next jobs that start die, one each.
        idle_timeout: Replaces the client's idle time-out of new jobs, seconds.
        skew: Seconds by which the service's clock is ahead of this machine's.
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
        """Return the time of the service's clock."""
        return datetime.now(UTC) + timedelta(seconds=self.skew)

    def plan(self, route: str, *statuses: int) -> None:
        """Answer the next requests of exactly this route with these statuses, one each; 0 executes one."""
        self._planned.setdefault(route, deque()).extend(statuses)

    def status(self, route: str) -> int | None:
        """Return the status that replaces a request's execution; None where there is none."""
        planned = self._planned.get(route)
        if planned:
            return planned.popleft() or None
        if self._happens(route, self.failing):
            return self._random.choice(self.statuses)
        return None

    def loses(self, route: str) -> bool:
        """Return whether the answer to a request is lost."""
        return self._happens(route, self.lost)

    def drop(self, route: str) -> int | None:
        """Return the bytes after which a streamed answer breaks off; None where it does not."""
        return self.drop_after if self._happens(route, self.dropping) else None

    def _happens(self, route: str, share: float) -> bool:
        return share > 0 and route.startswith(self.routes) and self._random.random() < share
