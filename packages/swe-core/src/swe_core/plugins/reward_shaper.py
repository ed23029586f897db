"""RewardShaper: call the plugins' hook that shapes rewards."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TypeGuard

from pluggy import HookImpl

from swe_core.api.contracts import failed, shown
from swe_core.api.records import Rollout
from swe_core.errors import PluginError
from swe_core.plugins.manager import PluginSet

HOOK = "swe_shape_reward"
_MOST = 1e6
"""Beyond some 1e154 the deviation of a group of rewards is no number."""


class RewardShaper:
    """Returns the reward of a rollout after all plugins, each of which gets what the one before returned.

    The order is that of loading: built-ins, installed plugins by name, those of `-p`. `tryfirst` and
    `trylast` of `@hookimpl` precede it.

    Attributes:
        names: The plugins that shape rewards, in this order.
    """

    def __init__(self, plugins: PluginSet) -> None:
        loaded = list(plugins.plugins)

        def place(implementation: HookImpl) -> tuple[int, int]:
            rank = bool(implementation.trylast) - bool(implementation.tryfirst)
            return rank, loaded.index(implementation.plugin_name)

        self._implementations = sorted(getattr(plugins.manager.hook, HOOK).get_hookimpls(), key=place)
        self.names: Sequence[str] = [one.plugin_name for one in self._implementations]

    def __call__(self, rollout: Rollout, reward: float) -> float:
        """Return the shaped reward of a rollout whose unshaped one is `reward`.

        Raises:
            PluginError: A plugin raised an exception, or returned something else than a number between
                -1e6 and 1e6.
        """
        for implementation in self._implementations:
            given = {"rollout": rollout, "reward": reward}
            try:
                value: object = implementation.function(*(given[name] for name in implementation.argnames))
            except (Exception, SystemExit) as error:  # plugin code may raise anything
                raise PluginError(
                    f"the plugin {implementation.plugin_name!r} failed in {HOOK}() at {rollout.id!r}: "
                    f"{failed(error)}"
                ) from error
            if not _is_reward(value):
                raise PluginError(
                    f"the plugin {implementation.plugin_name!r} returned {shown(value)} from {HOOK}() at "
                    f"{rollout.id!r}, expected a number from -1e6 to 1e6: return the reward, changed or not"
                )
            reward = float(value)
        return reward


def _is_reward(value: object) -> TypeGuard[Real]:
    """Return whether `value` is a number from which advantages can be computed; not NaN, nor a bool."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return abs(float(value)) <= _MOST
    except OverflowError:  # an integer beyond the largest float
        return False
