"""Commands for providers whose service runs one short request at a time, over connections that may break.

Each command runs detached inside, with its output in files, and this host follows it.
"""

from swe_core.sandboxing.followed.archives import Archives
from swe_core.sandboxing.followed.failures import BrokenOff, Garbled, Killed, Tail
from swe_core.sandboxing.followed.sandbox import FollowedSandbox

__all__ = ["Archives", "BrokenOff", "FollowedSandbox", "Garbled", "Killed", "Tail"]
