"""The input files of a run, found by its settings, which are part of a deployment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from swe_core.errors import ConfigError
from swe_core.run.settings import Settings

_ROWS = (".jsonl", ".json", ".parquet")


def input_files(config: Path, settings: Settings, include: Iterable[Path] = ()) -> dict[str, Path]:
    """Return every file that the run reads, by its path in the working directory of the deployed run.

    The path is the same as here, since settings name files relative to the working directory.

    Args:
        config: The settings file, which is placed at the top.
        settings: Its settings.
        include: Files and directories that no setting of the core names.

    Raises:
        ConfigError: A file is missing or not below the working directory, or a link in a directory leads out
            of it.
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
    """Yield each path in the settings, after a description of the setting."""
    run = settings.run
    for name in ("verified", "image_map", "recording"):
        path: Path | None = getattr(run, name)
        if path is not None:
            yield f"run.{name} {str(path)!r}", str(path)
    if run.tasks is not None and (Path(run.tasks).suffix.lower() in _ROWS or _local(run.tasks)):
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
    """Return whether a text is a path rather than a name on the Hub."""
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
    """Yield the files of a directory, without hidden ones such as `.git` and `.env`.

    The directory itself may be a link, since the user named it. A link below it must not add files from
    outside.
    """
    here, root = Path.cwd().resolve(), directory.resolve()
    for path in sorted(directory.rglob("*")):
        if any(part.startswith(".") for part in path.relative_to(directory).parts):
            continue
        if path.is_symlink() and path.exists():  # skip broken and circular links
            target = path.resolve()
            if not (target.is_relative_to(here) or target.is_relative_to(root)):
                raise ConfigError(
                    f"{what}: {str(path)!r} is a link that leads out of the working directory: put a copy "
                    "there, or leave it out"
                )
        if path.is_file():
            yield path
