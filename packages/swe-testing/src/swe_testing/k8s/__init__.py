"""LocalK8s: the API of a Kubernetes cluster with agent-sandbox on loopback, whose pods really execute.

    async with LocalK8s() as cluster:
        environment = {**os.environ, **cluster.environment()}  # for a subprocess
        ...  # the real clients with KUBECONFIG=cluster.kubeconfig

It speaks what the clients of agent-sandbox and of Kubernetes say: claims, templates, warm pools, watches,
pods and commands in pods. Its controllers do roughly what agent-sandbox's do. Nothing schedules or limits
pods.
`python -m swe_testing.k8s` serves until its stdin ends.
"""

from swe_testing.k8s.faults import Faults
from swe_testing.k8s.objects import Refused
from swe_testing.k8s.server import LocalK8s

__all__ = ["Faults", "LocalK8s", "Refused"]
