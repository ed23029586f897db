"""The wire formats of agents. A dialect knows bytes and shapes, not rollouts or HTTP."""

from collections.abc import Sequence

from swe_core.interception.dialects.base import Dialect
from swe_core.interception.dialects.chat import ChatCompletions
from swe_core.interception.dialects.google import GenerateContent
from swe_core.interception.dialects.messages import Messages
from swe_core.interception.dialects.responses import Responses

DIALECTS: Sequence[Dialect] = (ChatCompletions(), Responses(), Messages(), GenerateContent())
"""All dialects of the server. The first one shapes the errors on paths of no dialect."""
