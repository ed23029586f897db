"""Writes docs/settings.md: every setting of a run and of its components, as the models declare it.

python docs/generate_settings.py            # writes the page
python docs/generate_settings.py --print    # prints it
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

PAGE = Path(__file__).with_name("settings.md")
OURS = (
    *("docker", "hf", "pi", "codex", "claude-code", "opencode", "qwen-code", "gemini-cli", "kimi-code"),
    *("mini-swe-agent", "aider", "openhands", "acp", "openenv", "openenv-play"),
)
"""Plugins whose settings the page lists beside those of the built-ins; docs/training.md has those of trl."""
HEAD = f"""# Settings

`docs/{Path(__file__).name}` generates this page from the settings models. Each line has the default of a
setting, or its type where no default exists.

The sources are, in ascending priority: the default, a TOML file (`--config`), the environment
(`SWE_RUN__ATTEMPTS=4`), the command line (`--set run.attempts=4`, or the option `--attempts 4`).

Unknown settings are errors. Keys and tokens are never settings, because a run keeps its settings in
`run.json`. [Training](training.md) lists `[worker.trl]`.
"""
NAMES = {bool: "boolean", int: "integer", float: "number", str: "text", dict: "table"}


def page() -> str:
    """The page as it should be."""
    return "\n".join([HEAD, *(_section(name, model) for name, model in sections())])


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Each section's name with its model, in the order of the page."""
    from swe_core.plugins.manager import PluginSet
    from swe_core.run.settings import Settings

    for name, field in Settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield name, field.annotation
    for plugin in PluginSet(OURS, allow=OURS).plugins.values():
        for registered in plugin.components:
            if registered.component.config.model_fields:
                yield f"{registered.role}.{registered.name}", registered.component.config


def _section(name: str, model: type[BaseModel]) -> str:
    about = (model.__doc__ or "").partition("]`")[2].lstrip(".: \n")
    lines = [f"## [{name}]", "", *([about[0].upper() + about[1:], ""] if about else [])]
    for key, field in model.model_fields.items():
        default = _default(field.get_default(call_default_factory=True))
        takes = f"default `{default}`" if default else _kind(field.annotation)
        if get_origin(field.annotation) is Literal:
            takes = f"{_kind(field.annotation)}, default `{default}`"
        lines.append(f"- `{key}` ({takes}): {field.description}.")
    return "\n".join(lines) + "\n"


def _default(value: object) -> str:
    """A default in TOML; nothing where there is none, or an empty one."""
    if value is None or value in ((), {}, ""):
        return ""
    return json.dumps(value)


def _kind(annotation: Any) -> str:
    """What a setting takes, in a word or two."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "/".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(_kind(one) for one in inner if one is not type(None))
    if origin is tuple:
        return f"list of {_kind(inner[0])}"
    if hasattr(annotation, "__metadata__"):
        return _kind(inner[0])
    if origin is not None and issubclass(origin, Mapping):
        return NAMES[dict]
    if isinstance(annotation, type) and issubclass(annotation, PurePath):
        return "path"
    return NAMES[annotation]


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
