"""The sandbox server."""

from __future__ import annotations

import os
import secrets
import socketserver
import sys
import threading
import time
from typing import Any

from .spaces import CHILDREN, Space

HOMES = "/home/sandboxes"


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The sandbox server: one sandbox, or many on a pool's host."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(
        self, settings: dict[str, Any], env: dict[str, str], handler: type[socketserver.BaseRequestHandler]
    ) -> None:
        self.ping = settings["ping"]
        self.capacity = settings["capacity"]
        self.base = Space("", settings["token"], env, settings["idle_timeout"])
        self.spaces: dict[str, Space] = {}
        self.lock = threading.Lock()
        path = settings["socket"]
        super().__init__(path + ".new", handler)
        os.chmod(path + ".new", 0o666)
        os.rename(path + ".new", path)  # the file exists once the server listens
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        """End idle sandboxes."""
        while True:
            time.sleep(0.2)
            CHILDREN.reap()
            with self.lock:
                if self.spaces:
                    self.base.active = time.monotonic()
                for space in [space for space in self.spaces.values() if space.idle()]:
                    del self.spaces[space.id]
                    space.close()
                if not self.spaces and self.base.idle():
                    os.write(1, b"sbx: idle timeout\n")
                    os._exit(0)

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        made = []
        count = int(body.get("count", 1))
        with self.lock:
            free = max(0, self.capacity - len(self.spaces))
            for _ in range(min(count, free)):
                id = secrets.token_hex(6)
                idle = body.get("idle_timeout_secs")
                space = Space(id, secrets.token_hex(16), {}, None if idle is None else float(idle))
                space.home = os.path.join(HOMES, id)
                proxy = os.path.join(space.home, ".proxy")
                os.makedirs(proxy)
                given = {name: str(value) for name, value in (body.get("env") or {}).items()}
                path = self.base.env.get("PATH", "/usr/local/bin:/usr/bin:/bin")
                space.env = {"PATH": path, **given, "HOME": space.home, "SBX_PROXY_DIR": proxy}
                self.spaces[id] = space
                made.append({"id": id, "token": space.token})
        return {"sandboxes": made, "rejected": count - len(made)}

    def remove(self, space: Space) -> None:
        with self.lock:
            self.spaces.pop(space.id, None)
        space.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing for a client that left."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)
