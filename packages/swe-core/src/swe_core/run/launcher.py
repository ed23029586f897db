"""Launcher: a worker that runs in a process of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swe_core.run.settings import Settings


@dataclass(frozen=True, slots=True)
class Launch:
    """A run that is about to start.

    Args:
        settings: All settings, including plugins, so that another process can make the same plan.
        directory: The run directory. Without `resume` it is absent or empty.
        resume: Whether to resume the run in `directory`.
    """

    settings: Settings
    directory: Path
    resume: bool


class Launcher(ABC):
    """A worker with a process of its own beside the rollouts, such as a trainer.

    `launch` is called in the main thread, outside any event loop. It calls `swe_core.run.execute.execute`
    with a `RolloutWorker` of its own, in a process of its choice.
    """

    @abstractmethod
    def launch(self, launch: Launch) -> bool:
        """Run to the end. Every process that it started has exited when it returns or raises.

        Returns:
            Whether the run was interrupted.

        Raises:
            SweError: The run cannot start or cannot continue.
        """

    def preview(self, launch: Launch, say: Callable[[str], None]) -> None:  # noqa: B027  # nothing to add is fine
        """Tell what `launch` would do beside the rollouts, for `swe-core run --dry-run`.

        It starts no server and writes no file.

        Args:
            say: Prints lines for the user. What was said before an error is printed too.

        Raises:
            SweError: `launch` would refuse the run.
        """
