"""Settings of a push to the Hub, and what a run with them has beside its rollouts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from swe_core.api.component import Config

if TYPE_CHECKING:
    from swe_core.hub.push import HubPush


def _repository(name: str) -> str:
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name, re.ASCII):
        raise ValueError("expected OWNER/NAME")
    return name


class PushOptions(Config):
    """`[push]`: push finished rollouts to a data set on the Hugging Face Hub."""

    to: Annotated[str, AfterValidator(_repository)] | None = Field(
        default=None, description="OWNER/NAME of the data set; unset pushes nothing"
    )
    private: bool = Field(default=True, description="create private repositories and reject public ones")
    every: float = Field(default=300.0, gt=0, description="minimum seconds between two commits")


def hub_extensions(options: PushOptions) -> tuple[HubPush, ...]:
    """Return the extensions of a run with these options: none where there is no data set to push to."""
    if options.to is None:
        return ()
    from swe_core.hub.push import HubPush  # with numpy, for the rows

    return (HubPush(options),)
