"""`swe-core new`: a package that installs, passes its own tests, and runs."""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hatchling.builders.wheel import WheelBuilder

from swe_core.cli.new.command import SKELETONS, new
from swe_core.errors import UsageError
from swe_core.plugins.manager import PluginSet
from swe_core.run.described_settings import describe_settings

ROOT = Path(__file__).parents[4]
SWE_CORE = ("-c", "from swe_core.cli import main; main()")
DISTRIBUTIONS = {
    "agent": "swe-agents-my-agent",
    "sandbox": "swe-sandbox-my-sandbox",
    "grader": "swe-grader-my-grader",
    "engine": "swe-engine-my-engine",
    "tasks": "swe-tasks-my-tasks",
}
roles = pytest.mark.parametrize("role", SKELETONS)


def run(*args: str) -> Result:
    return CliRunner().invoke(new, args)


def make(role: str, parent: Path, *args: str) -> Path:
    """Write the skeleton of a role below `parent`."""
    folder = parent / DISTRIBUTIONS[role]
    done = run(role, f"my_{role}", "--dir", str(folder), *args)
    assert done.exception is None, done.exception
    return folder


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for distributions; the names of modules are those of one process, so each is forgotten."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    for module in [name for name in sys.modules if name.startswith("swe_") and "_my_" in name]:
        monkeypatch.delitem(sys.modules, module)
    return site


def installed(package: Path, site: Path) -> None:
    """Install a package as pip does, as far as plugins are concerned."""
    project = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    shutil.copytree(package / "src", site, dirs_exist_ok=True)
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    head = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(head)
    ((name, module),) = project["entry-points"]["swe_core"].items()
    (info / "entry_points.txt").write_text(f"[swe_core]\n{name} = {module}\n")


@roles
def test_skeleton_is_a_plugin_with_one_component(role: str, tmp_path: Path, install: Path) -> None:
    package = make(role, tmp_path)
    assert compileall.compile_dir(package, quiet=1, force=True)
    installed(package, install)
    plugin = PluginSet([f"my_{role}"]).plugins[f"my_{role}"]
    assert (plugin.origin, plugin.version, plugin.error) == (DISTRIBUTIONS[role], "0.1.0", None)
    ((registered),) = plugin.components
    assert (registered.role, registered.name) == (role, f"my_{role}")
    settings = list(describe_settings(registered.component.config))
    assert settings
    assert all(setting.description and not setting.required for setting in settings)
    registered.component.create(registered.component.config())


@roles
def test_next_steps_are_printed_and_in_the_readme(role: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    done = run(role, "mine", "--dir", str(folder))
    steps = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ")]
    assert steps[:4] == [f"cd '{folder}'", "pip install -e '.[test]'", "pytest", "swe-core plugins mine"]
    assert steps[4].startswith("swe-core run --plugins mine ")
    assert "\n".join(steps[1:]) in (folder / "README.md").read_text()
    shown = (folder / "README.md").read_text().split("`")
    for path in [name for name in shown if name.startswith(("src/", "tests/"))]:
        assert (folder / path).exists(), path


@roles
def test_skeleton_is_filled_in_everywhere(role: str, tmp_path: Path) -> None:
    package = make(role, tmp_path)
    files = [path for path in package.rglob("*") if path.is_file()]
    assert {"pyproject.toml", "README.md", ".gitignore", "conftest.py"} <= {path.name for path in files}
    for path in files:
        assert ".tmpl" not in path.name
        assert "PACKAGE" not in str(path)
        assert "${" not in path.read_text()


def test_folder_has_the_name_of_the_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("engine", "two_words").exception is None
    project = tomllib.loads(Path("swe-engine-two-words/pyproject.toml").read_text())
    assert project["project"]["entry-points"] == {"swe_core": {"two_words": "swe_engine_two_words.plugin"}}
    plugin = Path("swe-engine-two-words/src/swe_engine_two_words/plugin.py")
    assert "class TwoWordsEngine(" in plugin.read_text()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("my-agent", "such as 'my_agent'"),
        ("Mine", "such as 'mine'"),
        ("2fast", "expected small letters"),
        ("a__b", "such as 'a_b'"),
        ("..", "expected small letters"),
        ("mine\n", "such as 'mine'"),
        ("pi", "that of a plugin of swe-agents-pi"),
        ("openai", "that of a plugin of swe-core"),
        ("oracle", "that of a component of the plugin 'agents'"),
    ],
)
def test_unusable_name_is_an_error(name: str, says: str, tmp_path: Path) -> None:
    done = run("agent", name, "--dir", str(tmp_path / "new"))
    assert isinstance(done.exception, UsageError)
    assert says in str(done.exception)
    assert not (tmp_path / "new").exists()


def test_name_of_an_installed_plugin_is_taken(tmp_path: Path, install: Path) -> None:
    installed(make("agent", tmp_path), install)
    done = run("grader", "my_agent", "--dir", str(tmp_path / "new"))
    assert "that of a plugin of swe-agents-my-agent" in str(done.exception)


def test_existing_folder_is_refused_and_stays(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("kept")
    (tmp_path / "file").write_text("kept")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        done = run("agent", "mine", "--dir", str(tmp_path / name))
        assert isinstance(done.exception, UsageError)
        assert "exists already" in str(done.exception)
    assert os.listdir(tmp_path / "full") == ["mine"]
    assert run("agent", "mine", "--dir", str(tmp_path / "empty")).exception is None


def test_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("agent", "mine", "--dir", str(tmp_path / "file" / "below"))
    assert isinstance(done.exception, UsageError)
    assert "cannot write" in str(done.exception)


def test_unknown_role_is_an_error() -> None:
    done = run("worker", "mine")
    assert done.exit_code == 2
    assert "'agent', 'sandbox', 'grader', 'engine', 'tasks'" in done.output


def test_wheel_has_the_templates() -> None:
    source = ROOT / "packages" / "swe-core"
    templates = {
        str(path.relative_to(source / "src")) for path in (source / "src").glob("swe_core/cli/new/**/*.tmpl")
    }
    assert len(templates) > 20
    packed = {file.distribution_path for file in WheelBuilder(str(source)).recurse_included_files()}
    assert templates <= packed


def must(command: list[str], cwd: Path, **env: str) -> str:
    """Run a command that must succeed; return what it prints."""
    here = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SWE_"))}
    env = {**here, "PYTHONDONTWRITEBYTECODE": "1", **env}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@roles
@pytest.mark.slow
def test_installed_skeleton_passes_its_tests_and_runs(role: str, tmp_path: Path) -> None:
    """The printed steps, without an index, and with a folder of its own for the distribution."""
    package, name, site = make(role, tmp_path), f"my_{role}", tmp_path / "site"
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "-q")
    must([sys.executable, "-m", "pip", "install", *options, "--target", str(site), "."], package)
    python, seen = sys.executable, {"PYTHONPATH": str(site)}
    tested = must([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"], package, **seen)
    assert " passed" in tested
    shown = must([python, *SWE_CORE, "plugins", name], package, **seen)
    assert f"{name}: a plugin, {DISTRIBUTIONS[role]} 0.1.0" in shown
    (line,) = [line for line in (package / "README.md").read_text().splitlines() if "swe-core run" in line]
    words = [*line.split()[1:], "--set", "sandbox.local.unisolated=true", "--out", str(tmp_path / "out")]
    ran = must([python, *SWE_CORE, *words], package, **seen)
    assert ("resolved 0 of 1" if role == "engine" else "resolved 1 of 1") in ran


@pytest.mark.slow
def test_skeletons_pass_linters(tmp_path: Path) -> None:
    packages = [make(role, tmp_path) for role in SKELETONS]
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["--isolated", "--line-length", "110"]
    for package in packages:
        must([*ruff, "check", "--no-cache", *rules, "--select", "E,F,I,B,UP,SIM,RUF", "."], package)
        must([*ruff, "format", "--no-cache", "--check", *rules, "."], package)
    sources = [str(path) for package in packages for path in sorted((package / "src").iterdir())]
    tests = [str(path) for package in packages for path in (package / "tests").glob("test_*.py")]
    roots = [str(package / "src") for package in packages]
    ours = [str(ROOT / "packages" / name / "src") for name in ("swe-core", "swe-testing")]
    config = tmp_path / "mypy.ini"
    paths = ":".join([*roots, *ours])
    # The tasks' own code is no part of the package. Ours is checked elsewhere.
    config.write_text(
        f"[mypy]\nstrict = True\nmypy_path = {paths}\nexplicit_package_bases = True\nexclude = /folders/\n"
        "[mypy-swe_core.*,swe_testing.*]\nfollow_imports = silent\n"
    )
    mypy = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    must([*mypy, *sources, *tests], tmp_path)
