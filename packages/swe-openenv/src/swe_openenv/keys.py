"""The key of an environment server, from the environment."""

from __future__ import annotations

import os
import re

from swe_core.errors import ConfigError


def key_from(variable: str | None, setting: str) -> str | None:
    """Return the key in an environment variable; None without a variable.

    Args:
        setting: Name of the setting that names the variable, for the message.

    Raises:
        ConfigError: The variable is unset or empty, or a header cannot carry its key. The key is not shown.
    """
    if variable is None:
        return None
    key = os.environ.get(variable)
    if not key:
        raise ConfigError(f"{setting}: the variable {variable!r} is unset or empty: set it")
    if not re.fullmatch(r"[!-~]+", key):
        raise ConfigError(
            f"{setting}: the key in {variable!r} has blanks, line ends or letters that a header cannot "
            "carry: set another"
        )
    return key
