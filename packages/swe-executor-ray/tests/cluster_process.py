"""A Ray cluster of several nodes on this machine: python cluster_process.py SLOTS...

It listens on loopback. Its head offers no slots, each further node some. It prints the address and the
process ids of the raylets as JSON. On its standard input, `add SLOTS [NAME=VALUE...]` adds a node with these
variables in its environment, and prints its process id; `kill PID` kills a node, and `drain PID`
says that it will end. The cluster ends with the input.
"""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # before Ray is imported: loopback

from ray._private.node import Node
from ray._raylet import GcsClient
from ray.cluster_utils import Cluster

_PREEMPTION = 2


def raylet(node: Node) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def add(slots: float, variables: list[str]) -> int:
    env = dict(variable.split("=", 1) for variable in variables)
    offered = {"swe_slots": slots} if slots else {}
    return raylet(cluster.add_node(resources=offered, node_ip_address="127.0.0.1", env_vars=env))


def kill(pid: int) -> int:
    """Kill a node, and wait for it: as a zombie it keeps its workers alive."""
    (node,) = (one for one in cluster.worker_nodes if raylet(one) == pid)
    cluster.remove_node(node, allow_graceful=False)
    return pid


def drain(pid: int) -> int:
    """Say that a node will end in ten minutes, as a cloud does of a spot instance."""
    (node,) = (one for one in cluster.worker_nodes if raylet(one) == pid)
    deadline = int((time.time() + 600) * 1000)
    taken, why = GcsClient(cluster.address).drain_node(node.node_id, _PREEMPTION, "preempted", deadline)
    return pid if taken else sys.exit(why)


if __name__ == "__main__":
    head = {"include_dashboard": False, "node_ip_address": "127.0.0.1", "num_cpus": 0}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    raylets = [add(float(slots), []) for slots in sys.argv[1:]]
    print(json.dumps({"address": cluster.address, "raylets": raylets}), flush=True)
    for line in sys.stdin:
        command, number, *variables = line.split()
        if command == "add":
            print(add(float(number), variables), flush=True)
        else:
            print({"kill": kill, "drain": drain}[command](int(number)), flush=True)
    cluster.shutdown()
