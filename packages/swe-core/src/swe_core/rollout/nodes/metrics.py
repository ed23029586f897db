"""The metrics of all nodes, at one address."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from swe_core.api.executor import MetricsAddress
from swe_core.rollout.nodes.node import Node
from swe_core.rollout.nodes.pool import NodePool
from swe_core.system.http_server import serve


@asynccontextmanager
async def serve_metrics(pool: NodePool) -> AsyncIterator[MetricsAddress]:
    """Serve the metrics of the pool and of its nodes on loopback while the context is open."""
    token = secrets.token_urlsafe(32)

    async def show(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), token.encode()):
            raise web.HTTPUnauthorized(text="the metrics need the token in server.json")
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_OfNodes(pool.nodes, await pool.metrics()))
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/metrics", show)
    async with serve(web.AppRunner(app, access_log=None, shutdown_timeout=1.0)) as url:
        yield MetricsAddress(url, token)


class _OfNodes(Collector):
    """The state of the nodes, and what each counts itself, with the label `node`."""

    def __init__(self, nodes: Mapping[str, Node], texts: Mapping[str, bytes]) -> None:
        self._nodes = nodes
        self._texts = texts

    def collect(self) -> Iterable[Metric]:
        """Yield the metrics."""
        up = GaugeMetricFamily("swe_node_up", "Whether the node takes rollouts", labels=["node"])
        slots = GaugeMetricFamily("swe_node_slots", "Rollouts that fit on the node", labels=["node"])
        running = GaugeMetricFamily("swe_node_rollouts", "Rollouts on the node", labels=["node"])
        lost = CounterMetricFamily("swe_node_lost", "Rollouts that the node lost", labels=["node"])
        ended = CounterMetricFamily(
            "swe_node_finished", "Rollouts that the node finished", labels=["node", "outcome"]
        )
        for name, node in self._nodes.items():
            up.add_metric([name], node.joined and not node.out)
            slots.add_metric([name], node.handle.slots)
            running.add_metric([name], len(node.running))
            lost.add_metric([name], node.lost)
            for outcome, count in node.finished.items():
                ended.add_metric([name, outcome], count)
        yield from (up, slots, running, lost, ended)
        families: dict[str, Metric] = {}
        for name, text in self._texts.items():
            for family in text_string_to_metric_families(text.decode()):
                whole = families.setdefault(
                    family.name, Metric(family.name, family.documentation, family.type)
                )
                for sample in family.samples:
                    labels = {**sample.labels, "node": name}
                    whole.add_sample(sample.name, labels, sample.value, sample.timestamp)
        yield from families.values()
