"""Prometheus counters of the interception server. Each server has its own registry."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from swe_core.api.records import Turn

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry(auto_describe=False)
        self.requests = Counter(
            "swe_requests", "HTTP requests answered", ("route", "status"), registry=registry
        )
        self.turns = Counter("swe_turns", "LLM calls by how they ended", ("ended",), registry=registry)
        self.tokens = Counter("swe_tokens", "Tokens of LLM calls", ("kind",), registry=registry)
        self.renders = Counter(
            "swe_renders", "Prompts by how their ids were made", ("kind",), registry=registry
        )
        self.rollouts = Gauge("swe_rollouts_open", "Rollouts registered", registry=registry)
        self.in_flight = Gauge("swe_calls_in_flight", "LLM calls that the engine works on", registry=registry)
        self.seconds = Histogram(
            "swe_call_seconds", "Seconds of an LLM call", buckets=_SECONDS, registry=registry
        )
        self.replays = Counter("swe_replays", "Repeated requests, not sampled again", registry=registry)
        self.dropped = Counter(
            "swe_dropped_connections", "Clients that left before their reply was complete", registry=registry
        )
        self.refused = Counter(
            "swe_over_budget", "Calls answered with the length answer", ("budget",), registry=registry
        )

    def call(self, turn: Turn) -> None:
        """Count an LLM call that has ended."""
        self.turns.labels("failed" if turn.error else "completed").inc()
        self.seconds.observe(turn.seconds)
        self.tokens.labels("prompt").inc(turn.usage.prompt_tokens)
        self.tokens.labels("completion").inc(turn.usage.completion_tokens)
        if turn.tokens is not None:
            self.renders.labels(turn.tokens.rendered).inc()

    def text(self) -> bytes:
        """Return all counters in Prometheus' text format."""
        return generate_latest(self._registry)
