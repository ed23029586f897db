"""Whether an engine's containers share this machine's files and sockets, found by a try."""

from __future__ import annotations

import logging
import secrets

from docker.errors import APIError, NotFound
from docker.types import LogConfig, Mount

from swe_core.system.process_owner import LABEL, current_owner
from swe_sandbox_docker.client import Client
from swe_sandbox_docker.container import KEEPER, SOCKET_DIR
from swe_sandbox_docker.directories import shared_directory

logger = logging.getLogger(__name__)

_SECRET = "secret"  # noqa: S105  # a file's name
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_OTHER = 10
# A socket needs the same kernel, a file does not: a virtual machine may share files.
_SCRIPT = (
    f"read -r secret 2>/dev/null <{SOCKET_DIR}/{_SECRET}; read -r boot 2>/dev/null <{_BOOT_ID}; "
    f'[ "$secret $boot" = "$1" ] || exit {_OTHER}'
)


def shares_files(client: Client, image: str) -> bool | None:
    """Return whether a container sees a fresh file of this machine and has its kernel. Blocking.

    Args:
        image: An image that the engine has.

    Returns:
        None if the container does not run; a sandbox of the image will say why.
    """
    name = f"swe-core-probe-{secrets.token_hex(6)}"
    with shared_directory() as directory:
        secret = secrets.token_hex(16)
        (directory / _SECRET).write_text(f"{secret}\n")
        try:
            code = _run(client, name, image, Mount(SOCKET_DIR, str(directory), "bind", True), secret)
        except APIError as error:
            # A path that the engine's machine lacks is refused.
            return False if "bind source path" in str(error.explanation) else None
        finally:
            _remove(client, name)
    return {0: True, _OTHER: False}.get(code)


def _run(client: Client, name: str, image: str, mount: Mount, secret: str) -> int:
    with open(_BOOT_ID) as file:
        boot = file.read().strip()
    api = client.api
    host_config = api.create_host_config(
        network_mode="none",
        cap_drop=["ALL"],
        security_opt=["no-new-privileges:true"],
        mounts=[mount],
        log_config=LogConfig(type=LogConfig.types.NONE),
    )
    api.create_container(
        image,
        command=[],
        entrypoint=["sh", "-c", _SCRIPT, "sh", f"{secret} {boot}"],
        user=KEEPER,
        labels={LABEL: current_owner()},
        host_config=host_config,
        name=name,
    )
    api.start(name)
    code: int = api.wait(name)["StatusCode"]
    return code


def _remove(client: Client, name: str) -> None:
    try:
        client.api.remove_container(name, force=True, v=True)
    except NotFound:
        return
    except APIError as error:
        logger.warning("the container %s is left for the next run to remove: %s", name, error)
