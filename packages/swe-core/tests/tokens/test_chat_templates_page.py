"""Compare docs/internals/chat-templates.md with the code, for every chat template of TRL."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from swe_core.tokens.renderer import THINKING

GENERATOR = Path(__file__).parents[4] / "docs" / "generate_chat_templates.py"


@pytest.mark.long
def test_page_matches_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no proven template forks, nor on conversations that the proof did not see."""
    spec = importlib.util.spec_from_file_location("generate", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, generator)  # where dataclasses look up their module
    spec.loader.exec_module(generator)
    table = list(generator.rows())
    assert {row.template for row in table} == {name for name, _ in generator.templates()}
    for row in table:
        found = set(row.outcomes.values())
        assert set(row.outcomes) == set(generator.CONVERSATIONS), row
        assert "proven" not in row.renderer or "forks" not in found, row
        assert {*row.differs} <= {THINKING}, row
        assert "bridged" not in found or row.renderer.startswith("renderers/"), row
        assert "extended" not in found or "(proven)" in row.renderer, row
        assert ("refused" in found) == bool(row.words), row
    written = generator.PAGE.read_text(encoding="utf-8")
    if generator.VERSIONS not in written:
        pytest.skip(f"the page was written with other versions of the libraries than {generator.VERSIONS}")
    assert generator.page(table) == written, f"run python {generator.__file__}"
