"""Describe the settings of a model for people: what each takes, its default, what it is for."""

from __future__ import annotations

import enum
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    bytes: "text",
    Any: "any value",
}
_LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
"""Attribute of a constraint of pydantic → its words."""


@dataclass(frozen=True, slots=True)
class DescribedSetting:
    """One setting.

    Args:
        name: Its name below the table of its model; that of a nested table has dots.
        kind: What it takes in words, such as "whole number" or "list of text".
        choices: The only values that it takes; empty where `kind` says what it takes.
        limits: Limits of its value in words, such as "at least 1"; "" without one.
        default: Its default, which may be None.
        required: Whether it has no default.
        description: What it is for.
    """

    name: str
    kind: str
    choices: tuple[str, ...]
    limits: str
    default: Any
    required: bool
    description: str

    @property
    def takes(self) -> str:
        """Return what the setting takes in words, with its choices and limits."""
        if self.choices:
            return _either(self.choices)
        return f"{self.kind}, {self.limits}" if self.limits else self.kind


def describe_settings(model: type[BaseModel], prefix: str = "") -> Iterator[DescribedSetting]:
    """Yield the settings of `model` and of the models in it."""
    for name, field in model.model_fields.items():
        annotation = _without_none(field.annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from describe_settings(annotation, f"{prefix}{name}.")
            continue
        yield DescribedSetting(
            name=f"{prefix}{name}",
            kind=kind_of(annotation),
            choices=_choices(annotation),
            limits=", ".join(_limits(field.metadata)),
            default=_default(field),
            required=field.is_required(),
            description=field.description or "",
        )


def kind_of(annotation: Any) -> str:
    """Return what a value of a type is, in a word or two."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _either([str(value) for value in inner])
    if origin is Annotated:
        return kind_of(inner[0])
    if origin in (Union, types.UnionType):
        kinds = [kind_of(one) for one in inner if one is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if annotation in _WORDS:
        return _WORDS[annotation]
    kind = origin or annotation
    if not isinstance(kind, type):
        return "any value"
    if issubclass(kind, enum.Enum):
        return _either([str(member.value) for member in kind])
    if issubclass(kind, PurePath):
        return "path"
    if issubclass(kind, Mapping) or issubclass(kind, BaseModel):
        return "table"
    if issubclass(kind, Iterable):
        return f"list of {kind_of(inner[0])}" if inner else "list"
    return kind.__name__


def _without_none(annotation: Any) -> Any:
    """Return `X` of `X | None`; any other type as it is."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [one for one in get_args(annotation) if one is not type(None)]
        if len(inner) == 1:
            return inner[0]
    return annotation


def _choices(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return tuple(str(value) for value in get_args(annotation))
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return tuple(str(member.value) for member in annotation)
    return ()


def _limits(metadata: Iterable[Any]) -> Iterator[str]:
    for one in metadata:
        for attribute, words in _LIMITS.items():
            if (limit := getattr(one, attribute, None)) is not None:
                yield f"{words} {limit:g}" if isinstance(limit, float) else f"{words} {limit}"


def _default(field: FieldInfo) -> Any:
    """Return a default; None where there is none, or where it depends on other settings."""
    # Absent before pydantic 2.10, where no default can depend on other settings.
    if field.is_required() or getattr(field, "default_factory_takes_validated_data", False):
        return None
    return field.get_default(call_default_factory=True)


def _either(choices: Iterable[str]) -> str:
    """Return `a, b or c`."""
    *first, last = choices
    return f"{', '.join(first)} or {last}" if first else last
