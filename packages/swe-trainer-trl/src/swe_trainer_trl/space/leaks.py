"""Search for secrets in a deployment: readers of a Space can read its files and variables."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from swe_core.errors import ConfigError
from swe_core.hub.secrets import secret_variables
from swe_trainer_trl.space.deployment import HUB_TOKEN, Deployment

_SHORTEST = 8
"""Shortest secret to search for, in characters: shorter ones occur by chance."""
_TOKEN = re.compile(HUB_TOKEN.pattern.encode())
_WRITTEN_FROM = {"README.md": "--set", "deployment.json": "--set", "dependencies.txt": "--requirement"}
"""Generated file → the option from which a value in it comes."""


def refuse_leaks(deployment: Deployment, values: Mapping[str, str], environment: Mapping[str, str]) -> None:
    """Refuse a deployment that would show a secret. Wheels are not searched, since they are compressed.

    Args:
        deployment: The deployment.
        values: Secret → value, for the secrets with a known value.
        environment: Environment of this process. A variable that is a secret by its name counts as one, even
            if it is not declared.

    Raises:
        ConfigError: A file or a variable contains a secret, or any token of the Hub. The message does not
            repeat the value.
    """
    known = [(f"the secret {name!r}", value) for name, value in values.items()]
    known += [
        (f"the variable {name!r} of this environment", v) for name, v in secret_variables(environment).items()
    ]
    searched = [(what, value.encode()) for what, value in known if len(value) >= _SHORTEST]
    for variable, text in deployment.variables.items():
        found = _find(text.encode(), searched)
        if found:
            raise ConfigError(f"the variable {variable!r} holds {found}: pass it with --secret NAME")
    for place, content in deployment.files.items():
        with _opened(content) as data:
            found = _find(data, searched)
        if found:
            named = _WRITTEN_FROM.get(place, place.removeprefix("job/"))
            raise ConfigError(
                f"{named!r} holds {found}, and secrets are no part of any file: take it out and pass it with "
                "--secret NAME, the run finds it in its environment"
            )


def _find(data: bytes | mmap.mmap, searched: list[tuple[str, bytes]]) -> str | None:
    for what, value in searched:
        if data.find(value) >= 0:
            return f"the value of {what}"
    return "a token of the Hub" if _TOKEN.search(data) else None


@contextmanager
def _opened(content: bytes | Path) -> Iterator[bytes | mmap.mmap]:
    if isinstance(content, bytes) or content.stat().st_size == 0:
        yield content if isinstance(content, bytes) else b""  # an empty file cannot be mapped
        return
    with content.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield data
