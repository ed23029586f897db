"""Read usable tasks, their images and test times from a report of `tasks verify`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from swe_core.api.records import Rollout
from swe_core.api.task import Task
from swe_core.errors import UsageError
from swe_core.run.verify.report import VerifyReport


def usable_ids(path: Path, tasks: Iterable[Task]) -> set[str]:
    """Return the ids of the `tasks` that the report in `path` calls usable.

    Args:
        tasks: Candidate tasks. A task that is not in the report is not usable.

    Raises:
        UsageError: `path` is no report, or a usable task has changed since or was verified without cheats.
    """
    usable = {task.task_id: task for task in VerifyReport.read(path).tasks if task.verdict == "usable"}
    known = [task for task in tasks if task.instance_id in usable]
    changed = [task.instance_id for task in known if usable[task.instance_id].digest != task.digest]
    if changed:
        raise UsageError(
            f"--verified {str(path)!r}: the patch, tests, image or commands of {_listed(changed)} have "
            "changed since the report: run `swe-core tasks verify` again"
        )
    untried = [task.instance_id for task in known if not usable[task.instance_id].cheated_at]
    if untried:
        raise UsageError(
            f"--verified {str(path)!r}: no cheat was tried on {_listed(untried)}, so a patch that fixes "
            "nothing may earn a reward: run `swe-core tasks verify` again without `--cheats none`"
        )
    return {task.instance_id for task in known}


def image_ids(path: Path) -> dict[str, str]:
    """Return task id → id of the image that the report in `path` verified it in, where known.

    Raises:
        UsageError: `path` is no report.
    """
    return {
        task.task_id: task.image_id for task in VerifyReport.read(path).tasks if task.image_id is not None
    }


def gold_seconds(path: Path) -> dict[str, float]:
    """Return task id → duration of the longest test run with the gold patch [s], where known.

    Raises:
        UsageError: `path` is no report.
    """
    found = {
        task.task_id: max((one.test_seconds for one in task.checks if one.name == "gold"), default=0.0)
        for task in VerifyReport.read(path).tasks
    }
    return {name: seconds for name, seconds in found.items() if seconds > 0}


def other_images(verified: Mapping[str, str], rollouts: Iterable[Rollout]) -> list[str]:
    """Return a note on each task that was graded in another image than it was verified in.

    Args:
        verified: The result of `image_ids`. Tasks without an image id on either side are left out.
    """
    graded = {(one.task_id, one.grade.image_id) for one in rollouts if one.grade and one.grade.image_id}
    return [
        f"the task {name!r} was verified in the image {verified[name]!r} and graded in {image!r}: "
        "its image name has moved; run `swe-core tasks verify` again"
        for name, image in sorted(graded)
        if verified.get(name, image) != image
    ]


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more
