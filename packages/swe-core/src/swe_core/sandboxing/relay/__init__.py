"""Make a host endpoint reachable from inside a sandbox."""

from swe_core.sandboxing.relay.socket_relay import reach_by_socket, require_network

__all__ = ["reach_by_socket", "require_network"]
