"""The address of one task of one server, which a task carries as its `image`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from swe_core.api.task import IMAGE_NAME

SPLIT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ADDRESS = re.compile(rf"(https?://.+)/({SPLIT.pattern})/([0-9]{{1,9}})")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a task is.

    Args:
        url: The server, without a slash at the end.
        split: Name of the split.
        index: Index in the split, from 0.
    """

    url: str
    split: str
    index: int

    def __str__(self) -> str:
        return f"{self.url}/{self.split}/{self.index}"

    @property
    def fits_image(self) -> bool:
        """Return whether `Task.image` can carry it."""
        return IMAGE_NAME.fullmatch(str(self)) is not None

    @classmethod
    def parse(cls, text: str) -> Address | None:
        """Return the address that `text` is; None if it is no address."""
        match = _ADDRESS.fullmatch(text)
        return cls(match[1], match[2], int(match[3])) if match else None
