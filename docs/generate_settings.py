"""Writes docs/settings.md: every setting of a run and of its components, as the models declare it.

python docs/generate_settings.py            # writes the page
python docs/generate_settings.py --print    # prints it
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from swe_core.run.described_settings import describe_settings

PAGE = Path(__file__).with_name("settings.md")
OURS = (
    *(
        "docker",
        "hf",
        "ray",
        "pi",
        "codex",
        "claude-code",
        "opencode",
        "qwen-code",
        "gemini-cli",
        "kimi-code",
    ),
    *("mini-swe-agent", "aider", "openhands", "acp", "openenv"),
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
    for setting in describe_settings(model):
        kind = "/".join(f"`{choice}`" for choice in setting.choices) or setting.kind
        default = _default(setting.default)
        takes = f"default `{default}`" if default else kind
        if setting.choices and default:
            takes = f"{kind}, default `{default}`"
        lines.append(f"- `{setting.name}` ({takes}): {setting.description}.")
    return "\n".join(lines) + "\n"


def _default(value: object) -> str:
    """A default in TOML; nothing where there is none, or an empty one."""
    if value is None or value in ((), {}, ""):
        return ""
    return json.dumps(value)


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(page())
    else:
        PAGE.write_text(page(), encoding="utf-8")
