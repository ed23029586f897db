"""What agent-sandbox's controllers and the kubelet do: a claim becomes a sandbox, a pod, a box."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from swe_testing.boxes import SOCKET, Boxes, Command, NoBox
from swe_testing.k8s.faults import Faults
from swe_testing.k8s.objects import Object, Objects

PODS, SANDBOXES, CLAIMS = "pods", "sandboxes", "sandboxclaims"
TEMPLATES, POOLS = "sandboxtemplates", "sandboxwarmpools"
_CLOSED = "192.0.2.1"
"""An address that nothing in a box reaches."""


class Controllers:
    """Reconcile objects by running boxes.

    Attributes:
        images: Images that run in bubblewrap with this machine's programs. Others cannot be pulled, unless
            the Docker Engine has them.
        home: Directory of the boxes.
    """

    def __init__(self, objects: Objects, faults: Faults) -> None:
        self._objects = objects
        self._faults = faults
        self._boxes = Boxes()
        self.images = self._boxes.images
        self.home = Path()
        self._running: dict[str, tuple[asyncio.Task[None], anyio.CancelScope]] = {}

    async def aclose(self) -> None:
        """End every pod."""
        for pod in self._objects.all(PODS):
            await self.end(pod)

    def socket(self, pod: Object) -> Path:
        """Return the socket of a pod's kubelet."""
        return self.home / str(pod["metadata"]["uid"]) / "shared" / SOCKET

    async def created(self, plural: str, thing: Object) -> None:
        """React to a new object."""
        if plural == CLAIMS:
            self._claim(thing)
        elif plural == POOLS:
            self._fill(thing)

    async def deleted(self, plural: str, thing: Object) -> None:
        """React to a deleted object, with what it owns."""
        name, namespace = thing["metadata"]["name"], thing["metadata"]["namespace"]
        if plural == CLAIMS:
            name = thing.get("status", {}).get("sandbox", {}).get("name", name)
            await self._end_sandbox(namespace, name)
        elif plural == POOLS:
            for sandbox in self._objects.all(SANDBOXES, namespace):
                if sandbox["metadata"]["labels"].get("pool") == name:
                    await self._end_sandbox(namespace, sandbox["metadata"]["name"])
        elif plural == PODS:
            await self.end(thing)

    async def end(self, pod: Object, **status: Any) -> None:
        """End a pod's box, and leave the pod with this status, or remove it where there is none."""
        task, life = self._running.pop(pod["metadata"]["uid"], (None, None))
        if task is not None and life is not None:
            life.cancel()
            await asyncio.wait([task])
        if status:
            self._objects.change(PODS, pod, **status)
        else:
            self._objects.remove(PODS, pod)

    # ------------------------------------------------------------ agent-sandbox

    def _claim(self, claim: Object) -> None:
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        pool = self._objects.find(POOLS, namespace, claim["spec"]["warmPoolRef"]["name"])
        if pool is None or self._faults.unseen > 0:
            self._faults.unseen -= 1
            self._say(claim, "WarmPoolNotFound", "SandboxWarmPool not found")
            if pool is not None:
                asyncio.get_running_loop().call_later(0.05, self._claim, claim)
            return
        for sandbox in self._objects.all(SANDBOXES, namespace):
            labels = sandbox["metadata"]["labels"]
            pod = self._objects.find(PODS, namespace, sandbox["metadata"]["name"])
            if labels.get("pool") == pool["metadata"]["name"] and pod and pod["status"]["phase"] == "Running":
                del labels["pool"]
                sandbox["claim"] = name
                self._ready(claim, pod)
                self._fill(pool)
                return
        self._sandbox(pool, name, {}, claim=claim)

    def _fill(self, pool: Object) -> None:
        """Keep as many sandboxes warm as a pool asks for."""
        name, namespace = pool["metadata"]["name"], pool["metadata"]["namespace"]
        warm = [
            one
            for one in self._objects.all(SANDBOXES, namespace)
            if one["metadata"]["labels"].get("pool") == name
        ]
        for _ in range(pool["spec"]["replicas"] - len(warm)):
            self._sandbox(pool, f"{name}-{secrets.token_hex(3)}", {"pool": name})

    def _sandbox(self, pool: Object, name: str, labels: dict[str, str], claim: Object | None = None) -> None:
        namespace = pool["metadata"]["namespace"]
        template = self._objects.get(TEMPLATES, namespace, pool["spec"]["sandboxTemplateRef"]["name"])
        body = {"metadata": {"name": name, "labels": labels}, "claim": claim and claim["metadata"]["name"]}
        self._objects.create(SANDBOXES, namespace, body)
        quota = self._faults.quota
        if quota is not None and len(self._objects.all(PODS, namespace)) >= quota:
            said = (
                f'pods "{name}" is forbidden: exceeded quota: pods, used: pods={quota}, limited: pods={quota}'
            )
            if claim is not None:
                self._say(claim, "ReconcilerError", f"Error seen: {said}")
            return
        spec = template["spec"]["podTemplate"]
        policy = template["spec"].get("networkPolicy")
        pod = self._objects.create(
            PODS,
            namespace,
            {
                "kind": "Pod",
                "metadata": {"name": name, "labels": dict(spec["metadata"]["labels"])},
                "spec": spec["spec"],
            },
        )
        self._objects.change(PODS, pod, phase="Pending")
        if claim is not None:
            self._say(claim, "DependenciesNotReady", "Pod exists with phase: Pending", name)
        life = anyio.CancelScope()
        task = asyncio.create_task(self._run(pod, life, policy is not None), name=f"pod {name}")
        self._running[pod["metadata"]["uid"]] = task, life

    def _say(self, claim: Object, reason: str, message: str, sandbox: str | None = None) -> None:
        self._status(claim, "True" if reason == "DependenciesReady" else "False", reason, message, sandbox)

    def _status(self, claim: Object, status: str, reason: str, message: str, sandbox: str | None) -> None:
        condition = {"type": "Ready", "status": status, "reason": reason, "message": message}
        named = {} if sandbox is None else {"sandbox": {"name": sandbox, "podIPs": ["10.0.0.1"]}}
        self._objects.change(CLAIMS, claim, conditions=[condition], **named)

    def _ready(self, claim: Object, pod: Object) -> None:
        self._say(claim, "DependenciesReady", "Pod is Ready", pod["metadata"]["name"])

    async def _end_sandbox(self, namespace: str, name: str) -> None:
        sandbox = self._objects.find(SANDBOXES, namespace, name)
        if sandbox is not None:
            self._objects.remove(SANDBOXES, sandbox)
        pod = self._objects.find(PODS, namespace, name)
        if pod is not None:
            await self.end(pod)

    def _tell(self, pod: Object, tell: Callable[[Object], None]) -> None:
        """Tell the claim of a pod about it."""
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        sandbox = self._objects.find(SANDBOXES, namespace, name)
        claim = self._objects.find(CLAIMS, namespace, (sandbox or {}).get("claim") or "")
        if claim is not None:
            tell(claim)

    # ------------------------------------------------------------ the kubelet

    async def _run(self, pod: Object, life: anyio.CancelScope, confined: bool) -> None:
        directory = self.home / str(pod["metadata"]["uid"])
        try:
            with life:
                await self._box(pod, directory, confined)
        except NoBox as error:
            waiting = {"reason": "ImagePullBackOff", "message": f"Back-off pulling image: {error}"}
            self._container(pod, {"waiting": waiting}, phase="Pending")
        finally:
            await anyio.to_thread.run_sync(lambda: shutil.rmtree(directory, ignore_errors=True))

    async def _box(self, pod: Object, directory: Path, confined: bool) -> None:
        faults = self._faults
        await anyio.sleep(faults.start_delay)
        if faults.unready is not None:
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": faults.unready,
            }
            self._objects.change(PODS, pod, conditions=[condition])
            await anyio.sleep_forever()
        container = pod["spec"]["containers"][0]
        if faults.failing:
            said = f'exec: "{container["command"][0]}": executable file not found in $PATH'
            self._failed(pod, {"reason": "StartError", "exitCode": 128, "message": said})
            return
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        reachable = faults.unenforced or not confined
        env = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1" if reachable else _CLOSED,
            "KUBERNETES_SERVICE_PORT": port,
        }
        for variable in container.get("env", ()):
            env[variable["name"]] = variable.get("value") or _field(pod, variable["valueFrom"]["fieldRef"])
        command = Command(container["command"], env, {"kind": "pod"})
        name = f"swe-k8s-{pod['metadata']['uid']}"
        async with self._boxes.open(name, container["image"], directory, command) as process:
            while not self.socket(pod).exists():  # noqa: ASYNC110 (nothing tells us)
                await anyio.sleep(0.005)
            self._container(pod, {"running": {}}, phase="Running")
            self._tell(pod, lambda claim: self._ready(claim, pod))
            code = await process.wait()
            self._failed(pod, {"reason": "Error", "exitCode": code})

    def _failed(self, pod: Object, ended: Object) -> None:
        self._container(pod, {"terminated": ended}, phase="Failed")
        self._tell(pod, lambda claim: self._say(claim, "PodFailed", "Pod failed", pod["metadata"]["name"]))

    def _container(self, pod: Object, state: Object, **status: Any) -> None:
        container = pod["spec"]["containers"][0]
        one = {
            "name": container["name"],
            "image": container["image"],
            "imageID": f"local/{container['image']}",
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        self._objects.change(PODS, pod, containerStatuses=[one], **status)


def _field(pod: Object, reference: Object) -> str:
    """Return what the downward API has of a pod."""
    found: Any = pod
    for name in reference["fieldPath"].split("."):
        found = found[name]
    return str(found)
