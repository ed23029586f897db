"""Which task a session gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from swe_core.errors import UsageError

_SHOWN = 60
"""Characters of a prompt that an error quotes."""
_LONGEST = 200
"""Characters of the longest task id."""


def choose(task: object, seed: int | None) -> dict[str, Any]:
    """Return the arguments of a reset that choose `task`.

    Args:
        task: A task id; a mapping with `task_id`, or with `index` and optionally `split`; or a list of
            messages whose last user message is a task id, or is empty.
        seed: Chooses the task where that message is empty: attempts of a group have the same seed.

    Raises:
        UsageError: It chooses no task.
    """
    if isinstance(task, str):
        return {"task_id": _task_id(task, "the task")}
    if isinstance(task, Mapping):
        return _of_mapping(task)
    if isinstance(task, list):
        text = _asked(task)
        if text.strip():
            return {"task_id": _task_id(text.strip(), "the prompt's last user message")}
        if seed is None:
            raise UsageError(
                "the prompt is empty, and there is no seed that chooses a task: give one of them"
            )
        return {"seed": seed}
    raise UsageError(
        f"the task is of the type {type(task).__name__!r}, expected a task id, a mapping with 'task_id' or "
        "'index', or a list of messages"
    )


def _of_mapping(task: Mapping[Any, Any]) -> dict[str, Any]:
    if ("task_id" in task) is ("index" in task):
        raise UsageError("the task is a mapping, expected one of 'task_id' and 'index' in it")
    if "task_id" in task:
        return {"task_id": task["task_id"]}
    return {"index": task["index"], "split": task.get("split")}


def _task_id(text: str, what: str) -> str:
    if len(text) > _LONGEST or len(text.split()) != 1:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise UsageError(
            f"{what} is {shown!r}, which is no task id: task_prompts() makes rows with the ids of the tasks"
        )
    return text


def _asked(messages: list[Any]) -> str:
    """Return the text of the last user message; empty without one."""
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role") == "user":
            content = message.get("content") or ""
            if isinstance(content, str):
                return content
            return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return ""
