"""What every sandbox provider must do, as a test class to inherit from.

    from swe_testing.sandbox import SandboxConformance

    class TestMine(SandboxConformance):
        @pytest.fixture
        def provider(self): return MyProvider()

        @pytest.fixture
        def spec(self): return SandboxSpec(image="...")

        def leftovers(self, provider): return provider.everything_that_exists_on_the_host()

The tests are async: the `anyio_backend` fixture of your conftest.py should be "asyncio". They need `sh`, the
coreutils, `setsid` and `python3` inside the sandbox, and talk to nothing but this host.
"""

from swe_testing.sandbox.commands import CommandTests
from swe_testing.sandbox.files import FileTests
from swe_testing.sandbox.kernel import KernelTests
from swe_testing.sandbox.lifecycle import LifecycleTests
from swe_testing.sandbox.limits import LimitTests
from swe_testing.sandbox.machine import MachineTests
from swe_testing.sandbox.network import NetworkTests


class SandboxConformance(
    CommandTests, FileTests, LimitTests, NetworkTests, KernelTests, LifecycleTests, MachineTests
):
    """All tests. `swe_testing.sandbox.base.SandboxSuite` lists what a subclass provides."""


ESSENTIAL = {
    "test_assets", "test_cancellation_kills", "test_closing_leaves_nothing", "test_environment",
    "test_host_files_are_not_visible", "test_kill", "test_kill_all_ends_commands", "test_machine[llm]",
    "test_memory_is_limited",
    "test_no_other_address_is_reachable[llm]", "test_notes", "test_output_comes_while_the_command_runs",
    "test_processes_are_limited", "test_reach", "test_reap_spares_the_living",
    "test_repository_is_private", "test_stdin",
    "test_streams_are_kept_apart", "test_timeout_kills_the_whole_tree",
}  # fmt: skip
"""Names of the tests for every change of a provider. The rest is breadth: each test opens a sandbox."""

__all__ = ["ESSENTIAL", "MachineTests", "SandboxConformance"]
