"""Settings of a run: defaults < file < environment < command line.

The file is TOML; every table is also an environment variable (`SWE_RUN__ATTEMPTS=4`,
`SWE_SANDBOX__DOCKER__CPUS=1`) and a `--set` (`--set run.attempts=4`).
"""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from swe_core.api.component import Config
from swe_core.api.limits import MAX_BODY, Budgets, Limits
from swe_core.api.sandbox import Network
from swe_core.errors import ConfigError
from swe_core.hub.options import PushOptions
from swe_core.plugins.builtins import REMOVED
from swe_core.system.redaction import MARK, names_credential, secret_settings

PREFIX = "SWE_"
NESTED = "__"

_PASSWORD = re.compile(r"://[^/\s]*@")
"""User and password in a URL."""

ComponentOptions = dict[str, dict[str, Any]]
"""Component name → its own settings, validated by the component's `config` model."""


class RunOptions(Config):
    """`[run]`: tasks, components and amounts."""

    plugins: tuple[str, ...] | None = Field(
        default=None, description="plugins to load, and no others (`--plugins`)"
    )
    extra_plugins: tuple[str, ...] = Field(default=(), description="files or modules to load too (`-p`)")
    tasks: str | None = Field(
        default=None,
        description="task source, file of rows or data set; unset: that of `--plugins` or `-p`, else demo",
    )
    split: str | None = Field(default=None, description="split of the data set")
    only: tuple[str, ...] = Field(default=(), description="instance ids to keep; empty keeps all")
    filter: tuple[str, ...] = Field(
        default=(), description="COLUMN=GLOB, such as repo=getmoto/*; all must match"
    )
    skip_invalid: bool = Field(default=False, description="leave invalid rows out")
    verified: Path | None = Field(default=None, description="report of `tasks verify`; keeps usable tasks")
    shuffle: int | None = Field(default=None, description="seed of a random order")
    limit: int | None = Field(default=None, ge=1, description="number of tasks to keep")
    image_map: Path | None = Field(
        default=None, description="TOML or JSON file: image or instance id → other image"
    )
    agent: str | None = Field(default=None, description="coding agent; unset: mini")
    sandbox: str | None = Field(default=None, description="sandbox provider; unset: local")
    engine: str | None = Field(default=None, description="engine that answers LLM calls; unset: openai")
    grader: str | None = Field(default=None, description="grader that scores the patch; unset: swe")
    worker: str | None = Field(default=None, description="worker that consumes rollouts; unset: collect")
    executor: str | None = Field(default=None, description="where rollouts are executed; unset: local")
    workers: int | None = Field(default=None, ge=0, description="nodes that the executor starts")
    address: str | None = Field(default=None, description="cluster that the executor joins")
    engine_url: str | None = Field(default=None, description="base URL of the engine; unset: openai finds it")
    model: str | None = Field(default=None, description="model that the engine serves, or PROVIDER/NAME")
    recording: Path | None = Field(default=None, description="file of recorded replies to answer from")
    record: Path | None = Field(default=None, description="file that records the replies of this run")
    attempts: int = Field(default=1, ge=1, description="rollouts per task")
    concurrency: int = Field(default=4, ge=1, description="rollouts that run at the same time")
    sandbox_retries: int = Field(default=0, ge=0, description="retries after a failure of the sandbox")
    max_errors: int | None = Field(
        default=None,
        ge=0,
        description="equal errors without a verdict between them that end the run; 0: no limit; unset: 10, "
        "or twice `concurrency` if that is more",
    )
    mode: Literal["gate", "black-box"] = Field(
        default="gate", description="route of LLM calls: through the host, or from the sandbox"
    )
    agent_key_env: str | None = Field(
        default=None, description="environment variable whose key the agent gets in black-box mode"
    )

    @property
    def error_limit(self) -> int:
        """Return `max_errors`, or its default for this concurrency: one outage hits all running rollouts."""
        return max(10, 2 * self.concurrency) if self.max_errors is None else self.max_errors


class Server(Config):
    """`[server]`: the endpoint for LLM calls; it listens on loopback only."""

    port: int = Field(default=0, ge=0, le=65535, description="port; 0 selects a free one")
    max_body: int = Field(default=MAX_BODY, ge=1, description="maximum bytes of one request")


class Resources(Config):
    """`[resources]`: the resources of one sandbox."""

    network: Network = Field(default="llm", description="network of the agent's sandbox")
    memory_mb: int = Field(default=4096, gt=0, description="memory, MiB")
    cpus: float = Field(default=2.0, gt=0, description="processors")
    pids: int = Field(default=512, gt=0, description="processes and threads")
    disk_mb: int = Field(default=4096, gt=0, description="writable disk, MiB")


class Settings(BaseSettings):
    """All settings of a run, layered by pydantic-settings."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=NESTED, extra="forbid", frozen=True
    )
    file_values: ClassVar[dict[str, Any]] = {}

    run: RunOptions = RunOptions()
    limits: Limits = Limits()
    budget: Budgets = Budgets()
    server: Server = Server()
    resources: Resources = Resources()
    push: PushOptions = PushOptions()
    agent: ComponentOptions = Field(default_factory=dict)
    sandbox: ComponentOptions = Field(default_factory=dict)
    engine: ComponentOptions = Field(default_factory=dict)
    grader: ComponentOptions = Field(default_factory=dict)
    tasks: ComponentOptions = Field(default_factory=dict)
    worker: ComponentOptions = Field(default_factory=dict)
    executor: ComponentOptions = Field(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the layers, highest priority first: command line, environment, file."""
        return init_settings, env_settings, InitSettingsSource(settings_cls, cls.file_values)


def load_settings(
    file: Path | None = None,
    sets: Iterable[str] = (),
    command_line: Mapping[str, Mapping[str, Any]] | None = None,
    recorded: Mapping[str, Any] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Settings:
    """Load the settings of a run from all four layers.

    Args:
        file: A TOML file (`--config`).
        sets: `--set` values, `SECTION.KEY=VALUE` or `ROLE.COMPONENT.KEY=VALUE`; VALUE is JSON where it
            parses as JSON, else text.
        command_line: Section → setting → value; None values are unset.
        overrides: Setting, such as "worker.trl.weight_sync" → its value, above all layers.
        recorded: All settings of an earlier run, in place of a file.

    Raises:
        ConfigError: A file, a key or a value is wrong, or the name of a setting marks a secret. A run stores
            its settings and may push them.
    """
    values = command_line_values(sets, command_line, overrides)
    _refuse_unknown_environment()
    # A subclass carries the file's values, so that two calls in one process share nothing.
    layered = type(
        "Settings",
        (Settings,),
        {"file_values": dict(recorded or read_settings_file(file)), "__module__": __name__},
    )
    try:
        settings: Settings = layered(**values)
    except ValidationError as error:
        raise ConfigError(explain(error, "the settings")) from None
    except ValueError as error:  # from pydantic-settings: an environment value is not JSON
        raise ConfigError(f"a setting in the environment cannot be read: {error}") from None
    for name in secret_settings(settings.model_dump(mode="json")):
        raise ConfigError(
            f"the setting {name!r} looks like a secret, and a run stores its settings: leave it out, and "
            "name an environment variable in a setting such as api_key_env"
        )
    return settings


def command_line_values(
    sets: Iterable[str] = (),
    command_line: Mapping[str, Mapping[str, Any]] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the layer of the command line as tables. The arguments are those of `load_settings`.

    Raises:
        ConfigError: A `--set` is no `SECTION.KEY=VALUE`, or contradicts another option.
    """
    values: dict[str, Any] = {}
    for section, options in (command_line or {}).items():
        given = {name: value for name, value in options.items() if value is not None}
        if given:
            values[section] = given
    by_option: dict[tuple[str, ...], Any] = {
        (section, name): value for section in values for name, value in values[section].items()
    }
    for text in sets:
        _put(values, text, by_option)
    for setting, value in (overrides or {}).items():
        _place(values, setting.split("."), value, f"the option for {setting!r}", replace=False)
    return values


def validate(model: type[Config], values: Mapping[str, Any], what: str) -> Config:
    """Return `values` as a component's settings.

    Raises:
        ConfigError: A key is unknown or a value is wrong. The message starts with `what`.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(explain(error, what, model)) from None
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(f"{what}: the class {model.__name__} of its settings is wrong: {why}") from None


def explain(error: ValidationError, what: str, model: type[BaseModel] | None = None) -> str:
    """Return one sentence for a pydantic error: the first problem and the number of others."""
    problems = error.errors(include_url=False)
    first = problems[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden" and key in REMOVED:
        text = f"{what}: the setting {key!r} no longer exists: {REMOVED[key]}"
    elif first["type"] == "extra_forbidden":
        fields = _fields_at(model or Settings, first["loc"][:-1])
        close = difflib.get_close_matches(str(first["loc"][-1]), fields, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(fields) or 'none'}"
        text = f"{what}: unknown setting {key!r}; {hint}"
    elif first["type"] == "missing":
        text = f"{what}: the setting {key!r} is missing"
    else:
        why = first["msg"].removeprefix("Value error, ")
        secret = names_credential(key) or any(secret_settings({key: first["input"]}))
        found = MARK if secret else _PASSWORD.sub(f"://{MARK}@", repr(first["input"]))
        text = f"{what}: {key + ': ' if key else ''}{why} (found {found})"
    return text if len(problems) == 1 else f"{text} (and {len(problems) - 1} more)"


def _fields_at(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Return the field names of the model at `path`."""
    for part in path:
        annotation = model.model_fields[str(part)].annotation if str(part) in model.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        model = annotation
    return list(model.model_fields)


def _put(target: dict[str, Any], text: str, by_option: Mapping[tuple[str, ...], Any]) -> None:
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    shown = f"{key}={MARK}" if names_credential(key) or value.lstrip().startswith(("{", "[")) else text
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError(f"--set {shown!r}: expected SECTION.KEY=VALUE, such as run.attempts=4")
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = value
    _place(target, parts, parsed, f"--set {shown!r}", replace=tuple(parts) not in by_option)


def _place(target: dict[str, Any], parts: Sequence[str], value: object, what: str, *, replace: bool) -> None:
    """Set `value` at the path `parts` of nested tables.

    Raises:
        ConfigError: A table is missing there, or without `replace` another value is set already.
    """
    for part in parts[:-1]:
        target = target.setdefault(part, {})
        if not isinstance(target, dict):
            raise ConfigError(f"{what}: {part!r} is already set to a value, not to a table")
    before = target.get(parts[-1], value)
    if not replace and str(before) != str(value):
        raise ConfigError(
            f"{what}: another option sets {'.'.join(parts)!r} to a different value: leave one of them out"
        )
    target[parts[-1]] = value


def read_settings_file(file: Path | None) -> dict[str, Any]:
    """Return the tables of a TOML file; none without a file.

    Raises:
        ConfigError: It cannot be read, or is not TOML.
    """
    if file is None:
        return {}
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {str(file)!r}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {str(file)!r} is not TOML: {error}") from None


def _refuse_unknown_environment() -> None:
    """Refuse unknown variables with our prefix: pydantic-settings ignores them without a message."""
    sections = list(Settings.model_fields)
    for name in os.environ:
        section, nested, key = name.removeprefix(PREFIX).lower().partition(NESTED)
        if not name.startswith(PREFIX) or not nested:
            continue
        if section not in sections:
            close = difflib.get_close_matches(section, sections, n=1)
            hint = f"did you mean {PREFIX}{close[0].upper()}{NESTED}…?" if close else f"one of {sections}"
            raise ConfigError(f"unknown setting {name!r} in the environment; {hint}")
        annotation = Settings.model_fields[section].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            field = key.split(NESTED)[0]
            if field not in annotation.model_fields:
                close = difflib.get_close_matches(field, list(annotation.model_fields), n=1)
                hint = f"; did you mean {PREFIX}{section.upper()}{NESTED}{close[0].upper()}?" if close else ""
                raise ConfigError(f"unknown setting {name!r} in the environment{hint}")
