"""Rewards that plugins shape: their order, and what they may not return."""

from __future__ import annotations

from pathlib import Path

import pytest

from swe_core.errors import PluginError
from swe_core.plugins.manager import PluginSet
from swe_core.plugins.reward_shaper import RewardShaper
from swe_testing.records import make_rollout

pytestmark = pytest.mark.usefixtures("no_installed_plugins")
HEAD = "from swe_core import hookimpl\n\n"


def shaper(folder: Path, **code: str) -> RewardShaper:
    """The shaper of plugins from files, loaded in the order of the arguments."""
    for name, text in code.items():
        (folder / f"{name}.py").write_text(HEAD + text)
    return RewardShaper(PluginSet(extra=[str(folder / f"{name}.py") for name in code], allow=[]))


def hook(expression: str, mark: str = "@hookimpl", arguments: str = "rollout, reward") -> str:
    return f"{mark}\ndef swe_shape_reward({arguments}):\n    return {expression}\n"


def test_without_a_plugin_a_reward_stays_and_any_real_number_is_one(tmp_path: Path) -> None:
    shape = shaper(tmp_path)
    assert (shape.names, shape(make_rollout(), 0.25)) == ([], 0.25)
    for value in ("2", "__import__('numpy').float32(2)"):
        shaped = shaper(tmp_path, one=hook(value))(make_rollout(), 1.0)
        assert (type(shaped), shaped) == (float, 2.0)


def test_plugins_shape_in_the_order_of_loading(tmp_path: Path) -> None:
    shape = shaper(
        tmp_path,
        last=hook("reward * 10", "@hookimpl(trylast=True)"),
        second=hook("reward + 1"),
        third=hook("reward * 2", arguments="reward"),
        first=hook("rollout.turns", "@hookimpl(tryfirst=True)"),
    )
    assert shape.names == ["first", "second", "third", "last"]
    assert shape(make_rollout(turns=3), 1.0) == (3 + 1) * 2 * 10


def test_other_values_are_one_sentence(tmp_path: Path) -> None:
    for value, said in (
        ("float('nan')", "returned nan from"),
        ("__import__('numpy').float32('nan')", "returned an object of the class float32 from"),
        ("-float('inf')", "returned -inf from"),
        ("10 ** 400", "returned 1000"),
        ("None", "returned None from"),
        ("reward > 0", "returned True from"),
    ):
        shape = shaper(tmp_path, bad=hook(value))
        with pytest.raises(
            PluginError, match=r"expected a number from -1e6 to 1e6: return the reward"
        ) as raised:
            shape(make_rollout(), 1.0)
        text = str(raised.value)
        assert text.startswith("the plugin 'bad' " + said)
        assert "swe_shape_reward() at 't-0'" in text


def test_error_and_exit_of_a_plugin_name_its_line(tmp_path: Path) -> None:
    for code, said in (("rollout.tokens", "bad.py, line 5"), ("exit(3)", "SystemExit: 3")):
        shape = shaper(tmp_path, bad=hook(code))
        says = r"the plugin 'bad' failed in swe_shape_reward\(\) at 't-0': "
        with pytest.raises(PluginError, match=says) as raised:
            shape(make_rollout(), 1.0)
        assert said in str(raised.value)


def test_record_of_a_plugin_has_the_unshaped_reward(tmp_path: Path) -> None:
    """Also behind another plugin, so that it cannot take a shaped reward for a verdict."""
    shape = shaper(tmp_path, one=hook("0.0"), two=hook("rollout.reward"))
    assert shape(make_rollout(), 1.0) == 1.0


def test_hook_with_a_wrong_argument_is_an_error_at_loading(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="score"):
        shaper(tmp_path, bad=hook("reward", arguments="rollout, score"))
