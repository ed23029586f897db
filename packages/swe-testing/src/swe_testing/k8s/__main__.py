"""A local Kubernetes in a process of its own: python -m swe_testing.k8s [IMAGE]...

It serves until stdin ends (`swe_testing.standalone`). The images run in bubblewrap, too.
"""

from __future__ import annotations

import sys

import anyio

from swe_testing.k8s import LocalK8s
from swe_testing.standalone import serve

if __name__ == "__main__":
    server = LocalK8s()
    server.controllers.images.update(sys.argv[1:])
    anyio.run(serve, server)
