"""The files that a run reads, found from its settings: they travel to where it is deployed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from swe_core.errors import ConfigError
from swe_core.run.settings import Settings

_ROWS = (".jsonl", ".json", ".parquet")


def input_files(config: Path, settings: Settings, include: Iterable[Path] = ()) -> dict[str, Path]:
    """Every file that the run reads, by its path in the working directory there, which is the one here: the
    settings name them relative to it.

    Args:
        config: The settings file; it lies at the top there.
        settings: What it says.
        include: Files and directories that no setting of the core names.

    Raises:
        ConfigError: One is missing, or not below the working directory, or a link in a directory leads out.
    """
    found = {config.name: config}
    for what, text in (*_named(settings), *((f"--include {str(path)!r}", str(path)) for path in include)):
        for path in _files(what, Path(text)):
            place = PurePosixPath(path).as_posix()
            if found.setdefault(place, path).resolve() != path.resolve():
                raise ConfigError(
                    f"{what}: {place!r} is also where the settings file {str(config)!r} goes: rename one"
                )
    return dict(sorted(found.items()))


def _named(settings: Settings) -> Iterator[tuple[str, str]]:
    """What the settings say in words, and the path that they name."""
    run = settings.run
    for name in ("verified", "image_map", "recording"):
        path: Path | None = getattr(run, name)
        if path is not None:
            yield f"run.{name} {str(path)!r}", str(path)
    if Path(run.tasks).suffix.lower() in _ROWS or _local(run.tasks):
        yield f"run.tasks {run.tasks!r}", run.tasks
    for plugin in run.extra_plugins:
        if plugin.endswith(".py"):
            yield f"run.extra_plugins {plugin!r}", plugin
    for what, model in (("run.model", run.model), *_models(settings.worker)):
        if model is not None and _local(model):
            yield f"{what} {model!r}", model


def _models(workers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, options in workers.items():
        if isinstance(options.get("model"), str):
            yield f"worker.{name}.model", options["model"]


def _local(text: str) -> bool:
    """Whether this is a path and no name on the Hub."""
    return text.startswith((".", "/", "~")) or Path(text).exists()


def _files(what: str, path: Path) -> Iterator[Path]:
    if path.is_absolute() or ".." in path.parts or path.parts[:1] == ("~",):
        raise ConfigError(
            f"{what} is not below the working directory, which is what is copied: name it relative to there"
        )
    if path.is_dir():
        yield from _below(what, path)
    elif path.is_file():
        yield path
    else:
        raise ConfigError(f"{what}: there is no such file in {str(Path.cwd())!r}")


def _below(what: str, directory: Path) -> Iterator[Path]:
    """The files of a directory, but those that nobody sees in it: `.git`, `.env`.

    The directory itself may be a link, since it was named. What lies below it was not, so a link there must
    not bring in files from elsewhere.
    """
    here, root = Path.cwd().resolve(), directory.resolve()
    for path in sorted(directory.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(directory).parts):
            continue
        if path.is_symlink() and path.exists():  # else it leads nowhere, or to itself
            target = path.resolve()
            if not (target.is_relative_to(here) or target.is_relative_to(root)):
                raise ConfigError(
                    f"{what}: {str(path)!r} is a link that leads out of the working directory: put a copy "
                    "there, or leave it out"
                )
        if path.is_file():
            yield path
