"""Honest patches resolve through the whole grader; test_graded_tree.py has the cheats."""

from __future__ import annotations

import pytest

from swe_core.api.sandbox import SandboxProvider
from swe_testing.records import make_task

from ...repositories import Repo, swe_grader

FIX = "sed -i 's/a - b/a + b/' pkg/calc.py"
BASE = """
mkdir pkg tests
touch pkg/__init__.py conftest.py
printf 'def add(a, b):\\r\\n    return a - b\\r\\n' >pkg/calc.py
echo 'def test_beside(): pass' >pkg/test_calc.py
printf 'import pytest\\n@pytest.fixture\\ndef one(): return 1\\n' >tests/conftest.py
printf 'from pkg.calc import add\\ndef test_zero(one): assert add(0, 0) == one - 1\\n' >tests/test_add.py
printf '[metadata]\\nname = calc\\n[tool:pytest]\\naddopts = -p no:cacheprovider\\n' >setup.cfg
git add -A; git commit -qm base
"""

HONEST = (
    FIX,
    "echo 'def test_new(): assert 0' >tests/test_new.py; echo x >>tests/test_add.py",  # tests of its own
    "printf '@pytest.fixture\\ndef two(): return 2\\n' >>tests/conftest.py",
    "sed -i 's/name = calc/name = calculator/' setup.cfg",
    "git mv pkg/calc.py pkg/core.py; echo 'from pkg.core import add' >pkg/calc.py",
    "printf 'x = 1\\r\\n' >pkg/dos.py; printf '\\0\\377' >pkg/data.bin; chmod +x setup.cfg",
    "echo mine >tests/data.txt; echo 'x = 2' >pkg/extra.py",  # other patches have them too
    "mkdir testing; touch testing/__init__.py; echo 'x = 1' >pkg/test_utils.py",
    "echo 'def test_more(): pass' >>pkg/test_calc.py; echo y=1 >>pkg/__init__.py",
)


@pytest.mark.slow
async def test_honest_patch_resolves(repo: Repo, provider: SandboxProvider) -> None:
    repo.sh(BASE)
    task = make_task(
        base_commit=repo.head,
        patch=repo.diff(f"{FIX}; echo 'x = 1' >pkg/extra.py"),
        test_patch=repo.diff(
            "echo 'def test_add(): assert add(1, 2) == 3' >>tests/test_add.py; echo its >tests/data.txt"
        ),
        fail_to_pass=("tests/test_add.py::test_add",),
        pass_to_pass=("tests/test_add.py::test_zero",),
        setup="export PYTEST_DISABLE_PLUGIN_AUTOLOAD=1",
        test_command="python -m pytest -rA",
    )
    patch = await repo.patch_by("; ".join(HONEST), provider)
    grade = (await swe_grader().grade(task, patch, provider, repo.spec, 120)).grade
    assert grade.resolved, grade.reason
    assert {found.kind for found in grade.tampering} <= {"tests", "runner-config"}
    assert grade.suspicious == ()
