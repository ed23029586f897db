"""Component: the descriptor of everything that a plugin offers for a role."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")


class Config(BaseModel):
    """Base class of a component's settings: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    def filled_in(self) -> Mapping[str, str]:
        """Return setting → where its value comes from, for those that a validator of the class filled in.

        Such as "environment variable OPENAI_BASE_URL". A run records these values with its settings, so that
        it resumes with them, and `swe-core config show` prints where they come from.
        """
        return {}


@dataclass(frozen=True, slots=True)
class Component(Generic[T]):
    """One thing that a plugin offers for a role.

    A declaration must be cheap: import heavy libraries inside `create`.

    Args:
        name: Name for users, as in `--agent NAME`; unique within its role.
        create: Makes the object from its validated settings, an instance of `config`. It may raise any
            exception. Users see the message of a `SweError` unchanged, others with the component's name.
        config: Subclass of `Config` for the settings. Users set `[ROLE.NAME]` in the file or
            `--set ROLE.NAME.KEY=VALUE`.
        summary: Half a line for `swe-core plugins`.
        defaults: Role → default component of a run with this worker. A trainer, for example, needs an engine
            that records tokens. Ignored for other roles.
        settings: Default settings of other components in a run with this worker, as in the file:
            `{"grader": {"swe": {"suspicious": "unresolved"}}}`. Ignored for other roles.
    """

    name: str
    create: Callable[[Any], T]
    config: type[Config] = Config
    summary: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunOption:
    """An option of `swe-core run` that sets a setting.

    Args:
        flag: The option, such as "--weight-sync".
        setting: Full name of the setting, such as "worker.trl.weight_sync".
        help: One sentence for `swe-core run --help`.
        metavar: Placeholder of the value in the help.
    """

    flag: str
    setting: str
    help: str
    metavar: str = "VALUE"
