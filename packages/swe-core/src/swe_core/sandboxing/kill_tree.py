"""Kill one command with all its processes from inside a sandbox, for providers whose service cannot."""

from importlib import resources

MARK = "SWE_EXEC_ID"
"""Environment variable that marks a command's processes: each command has its own value."""

KILL_TREE = (resources.files("swe_core.sandboxing") / "kill_tree.sh").read_text()
"""A script for `sh -c KILL_TREE sh VALUE`: it kills every process with the value, and all descendants.

It exits with 0 when none is left, with 1 when they multiply faster than they are killed.
"""
