"""LocalK8s: the API server on one port of loopback."""

from __future__ import annotations

import asyncio
import json
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Self

import aiohttp
import anyio
import anyio.to_thread
from aiohttp import web

from swe_testing.k8s.controllers import CLAIMS, PODS, POOLS, SANDBOXES, TEMPLATES, Controllers
from swe_testing.k8s.faults import Faults
from swe_testing.k8s.objects import Object, Objects, Refused
from swe_testing.loopback import LoopbackServer

EXTENSIONS, CORE = "extensions.agents.x-k8s.io", "agents.x-k8s.io"
SERVED = {CLAIMS: EXTENSIONS, TEMPLATES: EXTENSIONS, POOLS: EXTENSIONS, SANDBOXES: CORE}
TOKEN = "token-of-the-local-cluster"
PROTOCOL = "v4.channel.k8s.io"
_HEAD = struct.Struct("!BI")
_VERBS = {"POST": "create", "GET": "get", "DELETE": "delete"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LocalK8s(LoopbackServer):
    """Serve the API of a cluster with agent-sandbox, whose pods really execute.

    Attributes:
        origin: `http://127.0.0.1:PORT`, once it is open.
        kubeconfig: Path of a kubeconfig with the context `local`.
        objects: All objects.
        controllers: What runs the pods.
        faults: May be changed at any time.
        calls: "VERB PLURAL" → number of requests.
        commands: The command lines of all commands that were run in pods.
    """

    def __init__(self, faults: Faults | None = None) -> None:
        super().__init__()
        self.faults = faults or Faults()
        self.objects = Objects()
        self.controllers = Controllers(self.objects, self.faults)
        self.calls: Counter[str] = Counter()
        self.commands: list[list[str]] = []
        self.home = Path()
        self.token = TOKEN

    @property
    def kubeconfig(self) -> Path:
        """The path of the kubeconfig."""
        return self.home / "kubeconfig"

    def environment(self) -> dict[str, str]:
        """Return the environment that points a client in a subprocess here."""
        return {"KUBECONFIG": str(self.kubeconfig)}

    def pods(self) -> list[Object]:
        """Return the pods that exist."""
        return self.objects.all(PODS)

    def claims(self) -> list[Object]:
        """Return the claims that exist."""
        return self.objects.all(CLAIMS)

    async def evict(self, name: str, message: str) -> None:
        """Evict a pod, as the kubelet does."""
        pod = self.objects.get(PODS, "default", name)
        await self.controllers.end(pod, phase="Failed", reason="Evicted", message=message)

    async def delete_pod(self, name: str) -> None:
        """Delete a pod, as an administrator does."""
        await self.controllers.end(self.objects.get(PODS, "default", name))

    def routes(self) -> Iterable[web.RouteDef]:
        """See `LoopbackServer.routes`."""
        base = "/apis/{group}/v1beta1/namespaces/{namespace}/{plural}"
        pods = "/api/v1/namespaces/{namespace}/{plural:pods}"
        return [
            web.get("/api/v1/namespaces/{namespace}", self._namespace),
            web.get(pods, self._list),
            web.get(pods + "/{name}", self._get),
            web.get(pods + "/{name}/exec", self._exec),
            web.get(base, self._list),
            web.post(base, self._create),
            web.get(base + "/{name}", self._get),
            web.delete(base + "/{name}", self._delete),
        ]

    def application(self) -> web.Application:
        """See `LoopbackServer.application`."""
        app = super().application()

        @web.middleware
        async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._serve(request, handler)

        app.middlewares.append(serve)
        return app

    async def __aenter__(self) -> Self:
        self.home = Path(tempfile.mkdtemp(prefix="swe-k8s-"))
        self.controllers.home = self.home / "pods"
        await super().__aenter__()
        self.write_kubeconfig()
        return self

    def write_kubeconfig(self, **context: str) -> None:
        """Write the kubeconfig; the arguments change its context."""
        named = {"cluster": "local", "user": "tester", "namespace": "default", **context}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "local",
            "clusters": [{"name": "local", "cluster": {"server": self.origin}}],
            "users": [{"name": "tester", "user": {"token": TOKEN}}],
            "contexts": [{"name": "local", "context": named}],
        }
        self.kubeconfig.write_text(json.dumps(config))

    async def __aexit__(self, *exc: object) -> None:
        with anyio.CancelScope(shield=True):
            await self.controllers.aclose()
            await super().__aexit__(*exc)
            await anyio.to_thread.run_sync(shutil.rmtree, self.home)

    async def _serve(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count a request, authorise it, apply the faults."""
        plural = request.match_info.get("plural", "namespaces")
        verb = _VERBS.get(request.method, "other")
        if request.path.endswith("/exec"):
            verb = "exec"
        elif verb == "get" and "name" not in request.match_info and plural != "namespaces":
            verb = "watch" if request.query.get("watch") else "list"
        route = f"{verb} {plural}"
        self.calls[route] += 1
        try:
            self._admit(request, route, verb, plural)
            response = await handler(request)
        except Refused as refused:
            response = web.json_response(refused.json(), status=refused.status)
        if route in self.faults.lost and request.transport is not None:
            self.faults.lost.discard(route)
            request.transport.abort()
        return response

    def _admit(self, request: web.Request, route: str, verb: str, plural: str) -> None:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise Refused(401, "Unauthorized", "Unauthorized")
        group = request.match_info.get("group", "")
        if request.match_info.http_exception is not None or plural in self.faults.missing:
            raise web.HTTPNotFound(text="404 page not found\n")
        if group and SERVED.get(plural) != group:
            raise web.HTTPNotFound(text="404 page not found\n")
        if statuses := self.faults.plan.get(route):
            raise Refused(statuses.pop(0), "InternalError", "this failure was asked for")
        namespace = request.match_info["namespace"]
        if route in self.faults.forbidden:
            resource = f"{plural}.{group}" if group else plural
            raise Refused(
                403,
                "Forbidden",
                f'{resource} is forbidden: User "tester" cannot {verb} resource "{plural}" in API group '
                f'"{group}" in the namespace "{namespace}"',
            )
        if namespace not in self.faults.namespaces and (verb == "create" or plural == "namespaces"):
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')

    # ------------------------------------------------------------ routes

    async def _namespace(self, request: web.Request) -> web.Response:
        name = request.match_info["namespace"]
        return web.json_response({"kind": "Namespace", "metadata": {"name": name}})

    async def _create(self, request: web.Request) -> web.Response:
        plural = request.match_info["plural"]
        made = self.objects.create(plural, request.match_info["namespace"], await request.json())
        answer = json.dumps(made)
        await self.controllers.created(plural, made)
        return web.Response(text=answer, status=201, content_type="application/json")

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self.objects.get(*_key(request)))

    async def _delete(self, request: web.Request) -> web.Response:
        plural, namespace, name = _key(request)
        thing = self.objects.get(plural, namespace, name)
        self.objects.remove(plural, thing)
        await asyncio.shield(self.controllers.deleted(plural, thing))
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _list(self, request: web.Request) -> web.StreamResponse:
        plural = request.match_info["plural"]
        if request.query.get("watch"):
            return await self._watch(request, plural)
        namespace, selector = request.match_info["namespace"], request.query.get("labelSelector", "")
        items = [one for one in self.objects.all(plural, namespace) if _selected(one, selector)]
        return web.json_response({"kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})

    async def _watch(self, request: web.Request, plural: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        name = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        with anyio.move_on_after(float(request.query.get("timeoutSeconds", 60))):
            async for kind, thing in self.objects.watch(plural, int(request.query.get("resourceVersion", 0))):
                if thing["metadata"]["name"] == name:
                    await response.write(json.dumps({"type": kind, "object": thing}).encode() + b"\n")
        return response

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        pod = self.objects.get(*_key(request))
        if pod["status"]["phase"] != "Running":
            raise Refused(500, "InternalError", "unable to upgrade connection: container not found")
        command = request.query.getall("command")
        self.commands.append(command)
        websocket = web.WebSocketResponse(protocols=[PROTOCOL])
        await websocket.prepare(request)
        reader, writer = await asyncio.open_unix_connection(str(self.controllers.socket(pod)))
        writer.write(json.dumps(command).encode() + b"\n")
        feeding = asyncio.create_task(_feed(websocket, writer))
        try:
            await self._answer(request, reader, websocket)
        finally:
            writer.close()
            feeding.cancel()
        return websocket

    async def _answer(
        self, request: web.Request, reader: asyncio.StreamReader, websocket: web.WebSocketResponse
    ) -> None:
        sent = 0
        with_end = False
        while not with_end:
            try:
                channel, size = _HEAD.unpack(await reader.readexactly(_HEAD.size))
                data = await reader.readexactly(size)
            except asyncio.IncompleteReadError:  # the pod has ended: so does the connection, without a status
                break
            sent += len(data)
            if self.faults.drop_after is not None and sent > self.faults.drop_after:
                if request.transport is not None:
                    request.transport.abort()
                return
            with_end = channel == 3
            try:
                await websocket.send_bytes(bytes([channel]) + data)
            except (ConnectionError, aiohttp.ClientError):  # the client has left
                return
        await websocket.close()


async def _feed(websocket: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
    """Carry standard input to the pod. It has no end before the connection's."""
    async for message in websocket:
        if message.type is aiohttp.WSMsgType.BINARY and message.data:
            writer.write(_HEAD.pack(message.data[0], len(message.data) - 1) + message.data[1:])
            await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


def _key(request: web.Request) -> tuple[str, str, str]:
    found = request.match_info
    return found["plural"], found["namespace"], found["name"]


def _selected(thing: dict[str, Any], selector: str) -> bool:
    labels = thing["metadata"].get("labels") or {}
    for term in filter(None, selector.split(",")):
        key, equals, value = term.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True
