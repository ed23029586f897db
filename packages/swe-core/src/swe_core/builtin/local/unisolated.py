"""Local sandboxes on the bare host: the same supervisor without namespaces, and other paths.

The fixed paths of a sandbox (its workdir, ASSETS_DIR, HOME_DIR) cannot exist here, many times at once and
without root. So each gets a directory of its own, and these prefixes are replaced where the host names paths:
in argv, cwd and environment of commands, and so in `read`, `write` and `put_archive`. The content of files
is not touched.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, SandboxSpec
from swe_core.builtin.local.control import Control
from swe_core.builtin.local.sandbox import LocalSandbox
from swe_core.sandboxing.relay import require_network


class Paths:
    """Which directory of the host stands for which path inside.

    Args:
        places: Path inside → directory of the host.
    """

    def __init__(self, places: Mapping[str, Path]) -> None:
        self._places = {inside: str(path) for inside, path in places.items()}
        longest_first = sorted(self._places, key=len, reverse=True)
        # A whole path, not the middle of another one: "/testbed/a" and "--dir=/testbed", not "/x/testbed".
        self._pattern = re.compile(rf"(?<![\w./-])({'|'.join(map(re.escape, longest_first))})(?![\w.-])")

    @classmethod
    def make(cls, directory: Path, spec: SandboxSpec) -> Paths:
        """Fill `directory` with what a sandbox of `spec` holds."""
        workdir, home, assets = (directory / name for name in ("repo", "home", "assets"))
        if spec.repository is None:
            workdir.mkdir()
        else:
            shutil.copytree(spec.repository, workdir, symlinks=True)
        home.mkdir(mode=0o700)
        assets.mkdir()
        for asset in spec.assets:
            (assets / asset.name).symlink_to(asset.path)
        return cls({spec.workdir: workdir, HOME_DIR: home, ASSETS_DIR: assets})

    def translate(self, text: str) -> str:
        """`text` with the sandbox's paths replaced by the host's."""
        return self._pattern.sub(lambda match: self._places[match[1]], text)


class UnisolatedSandbox(LocalSandbox):
    """A local sandbox in name only."""

    def __init__(
        self,
        id: str,
        spec: SandboxSpec,
        control: Control,
        env: Mapping[str, str],
        socket_dir: Path,
        paths: Paths,
    ) -> None:
        super().__init__(id, spec, control, env, socket_dir)
        self._paths = paths

    def _request(self, argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> dict[str, object]:
        translate = self._paths.translate
        return {
            "argv": [translate(argument) for argument in argv],
            "cwd": translate(cwd),
            "env": {name: translate(value) for name, value in env.items()},
        }

    async def protect(self, paths: Sequence[str]) -> bool:
        """See `Sandbox.protect`: nothing can be kept from code that is the user."""
        return False

    def reach(self, endpoint: str) -> AbstractAsyncContextManager[str]:
        """Return the endpoint itself: nothing is in between."""
        require_network(self)
        return nullcontext(endpoint)
