"""The one prompt builder: what every agent is told about a task, on every path."""

from __future__ import annotations

from swe_core.api.task import Task

_TEMPLATE = """\
<repository>
{workdir}
</repository>

<issue>
{problem_statement}
</issue>

Fix the issue above by changing the source code of the repository at {workdir}. Read the code first, \
change as little as needed, and check your change by running what the repository offers. Hidden tests decide \
whether the issue is fixed; do not change existing tests. Work alone: nobody answers questions. \
When you are done, end with a short summary of what you changed.\
"""


def build_prompt(task: Task) -> str:
    """The user prompt for `task`: its problem statement, where the repository is and what counts."""
    return _TEMPLATE.format(workdir=task.workdir, problem_statement=task.problem_statement.strip())
