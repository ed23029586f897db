"""Presets: initial settings of `[worker.trl]`. The user's settings win, key by key."""

from __future__ import annotations

import difflib
import tomllib
from importlib.resources import files
from typing import Any

from swe_core.errors import ConfigError

_FOLDER = files("swe_trainer_trl") / "presets"


def preset_names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(
        file.name.removesuffix(".toml") for file in _FOLDER.iterdir() if file.name.endswith(".toml")
    )


def load_preset(name: str) -> dict[str, Any]:
    """Return the settings of the preset `name`, in the form of `[worker.trl]`.

    Raises:
        ConfigError: There is no preset of that name.
    """
    names = preset_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}"
        raise ConfigError(f"worker.trl.preset: there is no preset {name!r}; {hint}")
    return tomllib.loads((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
