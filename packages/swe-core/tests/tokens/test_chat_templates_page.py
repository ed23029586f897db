"""Compare docs/internals/chat-templates.md with the code, for every chat template of TRL."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from swe_core.tokens.renderer import THINKING

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate_chat_templates.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


@pytest.fixture(scope="module")
def table(generator: ModuleType) -> list:
    return list(generator.rows())


@pytest.mark.slow
def test_page_matches_the_code(generator: ModuleType, table: list) -> None:
    written = generator.PAGE.read_text(encoding="utf-8")
    if generator.VERSIONS not in written:
        pytest.skip(f"the page was written with other versions of the libraries than {generator.VERSIONS}")
    assert generator.page(table) == written, f"run python {generator.__file__}"


@pytest.mark.slow
def test_page_has_every_template(generator: ModuleType, table: list) -> None:
    assert {row.template for row in table} == {name for name, _ in generator.templates()}
    assert all(set(row.outcomes) == set(generator.CONVERSATIONS) for row in table)


@pytest.mark.slow
def test_proven_templates_never_fork(table: list) -> None:
    """Nor on conversations that the proof did not see."""
    assert [row for row in table if "proven" in row.renderer and "forks" in row.outcomes.values()] == []


@pytest.mark.slow
def test_recognised_families_print_as_the_template(table: list) -> None:
    assert [row for row in table if not {*row.differs} <= {THINKING}] == []


@pytest.mark.slow
def test_renderer_names_match_outcomes(table: list) -> None:
    for row in table:
        found = set(row.outcomes.values())
        assert "bridged" not in found or row.renderer.startswith("renderers/"), row
        assert "extended" not in found or "(proven)" in row.renderer, row
        assert ("refused" in found) == bool(row.words), row


@pytest.mark.parametrize(
    ("template", "renderer", "outcomes"),
    [
        ("qwen3", "renderers/qwen3", {"bridged"}),
        ("qwen3_training", "template (proven)", {"extended"}),
        pytest.param("qwen3_5_think", "renderers/qwen3.5", {"bridged"}, marks=pytest.mark.slow),
        pytest.param("glm4moe", "renderers/glm-4.5", {"bridged"}, marks=pytest.mark.slow),
        ("llama3_1", "template (proven)", {"extended", "refused"}),  # only one call at once
        pytest.param("gptoss", "template", {"kept", "forks"}, marks=pytest.mark.slow),
    ],
)
def test_well_known_templates_have_expected_outcomes(
    generator: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    template: str,
    renderer: str,
    outcomes: set[str],
) -> None:
    source = dict(generator.templates())[template]
    monkeypatch.setattr(generator, "templates", lambda: [(template, source)])
    row = next(generator.rows())  # the first one is with thinking
    assert (row.template, row.thinking) == (template, True)
    assert (row.renderer, set(row.outcomes.values())) == (renderer, outcomes)
