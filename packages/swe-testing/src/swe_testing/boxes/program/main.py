"""Start the program of a box."""

from __future__ import annotations

import json
import os
import sys

from .handler import Handler
from .server import Server


def main() -> None:
    """Run the JSON file of the command line. It holds secrets, so it is deleted at once.

    Its keys are `command` (argv), `env`, and `server`: null, or an object with `socket`, `token`,
    `idle_timeout` (seconds or null), `capacity` (a pool's host, else null) and `ping` (seconds).
    """
    with open(sys.argv[1], "rb") as file:
        config = json.load(file)
    os.unlink(sys.argv[1])
    environment = {**os.environ, **config["env"]}
    if config["server"] is None:
        os.execvpe(config["command"][0], config["command"], environment)
    with Server(config["server"], environment, Handler) as server:
        server.serve_forever(poll_interval=3600)
