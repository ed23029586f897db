"""Component: the one descriptor of every plugin kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")


class Config(BaseModel):
    """Base of every component's settings: immutable, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


@dataclass(frozen=True, slots=True)
class Component(Generic[T]):
    """One thing that a plugin offers for a role.

    Declaring a component must be cheap: import heavy libraries inside `create`.

    Args:
        name: How users ask for it (`--agent NAME`); unique within its role.
        create: Builds the object from its validated settings, an instance of `config`. It may raise any
            exception; users see a `SweError`'s sentence as it is, any other with the component's name.
        config: The settings it takes, a subclass of `Config`. Users set `[ROLE.NAME]` in the file or
            `--set ROLE.NAME.KEY=VALUE`.
        summary: Half a line for `swe-core plugins`.
        defaults: Role → the component that fills it in a run with this one where the user chose nobody: a
            trainer, say, needs an engine that owns its tokens. Only a worker's are looked at.
        settings: Settings of other components in a run with this one where the user set none, as in the file:
            `{"grader": {"swe": {"suspicious": "unresolved"}}}`. Only a worker's are looked at.
    """

    name: str
    create: Callable[[Any], T]
    config: type[Config] = Config
    summary: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunOption:
    """An option of `swe-core run` that is short for a setting.

    Args:
        flag: Such as "--weight-sync".
        setting: Such as "worker.trl.weight_sync"; what `--set` takes before the equals sign.
        help: One sentence for `swe-core run --help`.
        metavar: How the help shows its value.
    """

    flag: str
    setting: str
    help: str
    metavar: str = "VALUE"
