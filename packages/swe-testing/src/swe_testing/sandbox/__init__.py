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
from swe_testing.sandbox.network import NetworkTests


class SandboxConformance(CommandTests, FileTests, LimitTests, NetworkTests, KernelTests, LifecycleTests):
    """All tests. `swe_testing.sandbox.base.SandboxSuite` lists what a subclass provides."""


__all__ = ["SandboxConformance"]
