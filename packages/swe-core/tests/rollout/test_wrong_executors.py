"""An executor of a plugin that breaks its contract is named, and records nothing twice."""

from __future__ import annotations

from typing import Any

import pytest

from swe_core.builtin.executors import LocalExecutor
from swe_core.errors import PluginError

from .runner_bench import Bench

pytestmark = pytest.mark.anyio


class Silent(LocalExecutor):
    async def submit(self, request: Any, observer: Any, commit: Any, agent: Any = None) -> None:
        """Return without a commit."""


class Twice(LocalExecutor):
    async def submit(self, request: Any, observer: Any, commit: Any, agent: Any = None) -> None:
        def both(finished: Any) -> None:
            commit(finished)
            commit(finished)

        await super().submit(request, observer, both, agent)


class Failing(LocalExecutor):
    async def submit(self, request: Any, observer: Any, commit: Any, agent: Any = None) -> None:
        raise KeyError("node-1")


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Silent, r"Silent returned from submit\(\) without a call of commit"),
        (Twice, "Twice committed '.*' twice"),
        (Failing, r"Failing failed in submit\(\): KeyError: 'node-1'"),
    ],
)
async def test_executor_that_breaks_its_contract_is_named(
    bench: Bench, kind: type[LocalExecutor], says: str
) -> None:
    wrong = kind()
    wrong._site, wrong._engine = bench.runner._executor._site, bench.engine  # type: ignore[attr-defined]  # the bench's is local
    bench.runner._executor = wrong
    with pytest.raises(PluginError, match=says):
        await bench.runner.run(bench.first)
    assert len(bench.run.rollouts()) == (1 if kind is Twice else 0)
