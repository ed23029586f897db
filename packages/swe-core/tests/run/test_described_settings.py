"""Settings in words: what each takes, and its default."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from swe_core.api.component import Config
from swe_core.plugins.manager import PluginSet
from swe_core.run.described_settings import describe_settings, kind_of


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(Config):
    depth: int = Field(default=1, ge=1, le=9, description="how deep")


class Mine(Config):
    needed: Path = Field(description="a file")
    colour: Colour = Colour.RED
    mode: Literal["a", "b", "c"] | None = Field(default=None, description="a mode")
    share: float | None = Field(default=None, gt=0, lt=1.5)
    names: Annotated[tuple[str, ...], AfterValidator(tuple)] = ()
    inner: Inner = Inner()
    made: list[int] = Field(default_factory=lambda: [1])
    late: int = Field(default_factory=lambda data: len(data))


def test_every_setting_is_described_with_nested_ones_by_full_name() -> None:
    mine = {setting.name: setting for setting in describe_settings(Mine)}
    assert {name: setting.takes for name, setting in mine.items()} == {
        "needed": "path",
        "colour": "red or blue",
        "mode": "a, b or c",
        "share": "number, above 0, below 1.5",
        "names": "list of text",
        "inner.depth": "whole number, at least 1, at most 9",
        "made": "list of whole number",
        "late": "whole number",
    }
    assert list(mine) == ["needed", "colour", "mode", "share", "names", "inner.depth", "made", "late"]
    assert [name for name, setting in mine.items() if setting.required] == ["needed"]
    assert (mine["made"].default, mine["inner.depth"].default, mine["late"].default) == ([1], 1, None)


def test_type_is_named_in_plain_words() -> None:
    for annotation, kind in (
        (bool, "true or false"),
        (str | tuple[str, ...], "text or list of text"),
        (dict[str, Any], "table"),
        (list[Literal["x", "y"]], "list of x or y"),
        (Any, "any value"),
        (complex, "complex"),
        ("Later", "any value"),
    ):
        assert kind_of(annotation) == kind


def test_settings_of_every_installed_component_are_described() -> None:
    for registered in PluginSet().components():
        for setting in describe_settings(registered.component.config):
            assert setting.takes
            assert setting.description, f"{registered.role}.{registered.name}.{setting.name}"
