"""Shared by the tests of every package: what is slow, what runs in which worker, and the event loop."""

import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from swe_core.builtin.local.bwrap import find_bwrap, why_not

FEW_EXAMPLES = 10
"""Of a property in `make test`. `make test-slow` takes as many as the property asks for."""

# A test on a busy machine is slow now and then, which says nothing of the code.
hypothesis.settings.register_profile("untimed", hypothesis.settings(), deadline=None)
hypothesis.settings.load_profile("untimed")

pytest_plugins = [
    "swe_testing.serving.fixtures",
    "swe_testing.hf.fixtures",
    "swe_testing.bad_inputs",
    "swe_testing.registry",
    *(["swe_sandbox_docker.testing"] if find_spec("swe_sandbox_docker") else []),
]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """aiohttp's server needs asyncio, so asyncio is what everything is tested on."""
    return "asyncio"


@pytest.fixture(scope="session")
def local_sandbox() -> None:
    """A machine on which local sandboxes isolate; elsewhere the test is skipped with the remedy."""
    obstacle = why_not(find_bwrap())
    if obstacle is not None:
        pytest.skip(obstacle)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory for TMPDIR, with a short name: it holds unix sockets."""
    with tempfile.TemporaryDirectory(prefix="swe-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's caches and seals out of the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def no_installed_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """None but the built-in plugins, and those that a command names."""
    monkeypatch.setenv("SWE_PLUGINS", "")


@pytest.fixture(scope="session")
def demo_layout(demo_root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The image of the demo and of the Docker tests, made without an engine."""
    from swe_testing.registry import make_image  # not before pytest has loaded it as a plugin

    directory = tmp_path_factory.mktemp("demo") / "layout"
    config = ("--config.env=LANG=C.UTF-8", "--config.workingdir=/testbed")
    return make_image(directory, [demo_root], *config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make two tests of each property and state machine that is not slow: `few` examples, and slow `many`."""
    slow = metafunc.definition.get_closest_marker("slow")
    has_examples = hypothesis.is_hypothesis_test(metafunc.function) or "run_machine" in metafunc.fixturenames
    if has_examples and slow is None:
        many = pytest.param("many", marks=pytest.mark.slow)
        metafunc.parametrize("_examples", ["few", many], indirect=True)


@pytest.fixture(autouse=True)
def _examples(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Take no more than `FEW_EXAMPLES` in the fast test of a property. Returns whether it is one."""
    few = getattr(request, "param", None) == "few"
    # Hypothesis fixes a test's settings where it is decorated; its own pytest plugin reads them here.
    test = getattr(request.function, "__func__", request.function)
    if few and hypothesis.is_hypothesis_test(test):
        asked = test._hypothesis_internal_use_settings
        fewer = hypothesis.settings(asked, max_examples=min(FEW_EXAMPLES, asked.max_examples))
        monkeypatch.setattr(test, "_hypothesis_internal_use_settings", fewer)
    return few


@pytest.fixture
def run_machine(_examples: bool) -> Callable[..., None]:
    """Run a state machine: `run_machine(Machine, examples=100, steps=30)`.

    In the fast test it has no more than `FEW_EXAMPLES`, the same ones each time.
    """

    def run(machine: type[RuleBasedStateMachine], examples: int = 100, steps: int = 30) -> None:
        few: dict[str, Any] = {"max_examples": min(FEW_EXAMPLES, examples), "derandomize": True}
        more = {**few, "database": None} if _examples else {"max_examples": examples}
        settings = hypothesis.settings(**more, stateful_step_count=steps)
        run_state_machine_as_test(machine, settings=settings)

    return run


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give each test to a worker of pytest-xdist: tests of a real model share one, as do those of a file.

    Not later: pytest-xdist reads the groups before a conftest.py may modify the items.
    """
    item.add_marker(pytest.mark.xdist_group(_group(item)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with real models, then the whole program: a long group at the end leaves a core idle.

    The core's tests are last, for they are the shortest.
    """
    order = ("packages/", "packages/swe-core/")
    items.sort(key=lambda item: (_group(item) != "engine", *map(item.nodeid.startswith, order)))


def _group(item: pytest.Item) -> str:
    return "engine" if item.get_closest_marker("engine") else item.nodeid.partition("::")[0]
