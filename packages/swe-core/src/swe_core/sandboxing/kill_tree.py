"""Killing one command with all its processes from inside a sandbox, for providers whose service cannot."""

from importlib import resources

MARK = "SWE_EXEC_ID"
"""The environment variable that marks a command's processes: give each command a value of its own."""

KILL_TREE = (resources.files("swe_core.sandboxing") / "kill_tree.sh").read_text()
"""A script for `sh -c KILL_TREE sh VALUE`: it kills what carries the value and all that descends from it, and
ends with 0 when none is left, with 1 when they multiply faster than they are killed."""
