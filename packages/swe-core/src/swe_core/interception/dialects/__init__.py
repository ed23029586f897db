"""The wire formats that agents speak. A dialect knows bytes and shapes, and nothing of rollouts or HTTP."""

from collections.abc import Sequence

from swe_core.interception.dialects.base import Dialect
from swe_core.interception.dialects.chat import ChatCompletions

DIALECTS: Sequence[Dialect] = (ChatCompletions(),)
"""All that the server speaks. The first one's shape is that of the errors on paths that are no dialect's."""
