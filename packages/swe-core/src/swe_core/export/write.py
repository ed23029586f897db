"""Export runs into a new folder, which appears whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from swe_core.errors import UsageError, sentence
from swe_core.export.card import MARK, README, card
from swe_core.export.choice import Choice
from swe_core.export.formats import format_named
from swe_core.export.source import rollouts
from swe_core.export.writer import Reason, Writer
from swe_core.hub.secrets import push_redactor

DAMAGED = Reason("rollout", "with damaged files")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Args:
        rows: Rows, conversations or other units.
        size: Bytes of all files.
        left_out: What is not written → how often.
        damaged: A sentence for each rollout that could not be read.
    """

    folder: Path
    rows: int
    size: int
    left_out: Mapping[Reason, int]
    damaged: Sequence[str]


def export(choice: Choice, out: Path, force: bool, progress: Callable[[int], object]) -> Exported:
    """Write the chosen rollouts of runs.

    Secrets of this process's environment are removed, as in a push to the Hub.

    Args:
        out: The folder. It is new, empty, or with `force` an earlier export, which is replaced.
        progress: Called with the number of rollouts that were read since the last call.

    Raises:
        UsageError: A library is missing, the folder cannot be written, or nothing is left to write.
    """
    form = format_named(choice.format)
    kind = form.open()
    with _new_folder(out, force) as folder:
        rows, left_out, damaged = _written(kind(folder, choice.runs), choice, progress)
        if not rows:
            why = [reason.of(count) for reason, count in left_out.items()]
            raise UsageError(f"there is no {form.unit} to write: {'; '.join([*damaged[:1], *why])}")
        text = card(choice, rows, left_out, out.name)
        (folder / README).write_text(text, encoding="utf-8")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Exported(out, rows, size, left_out, damaged)


def _written(
    writer: Writer, choice: Choice, progress: Callable[[int], object]
) -> tuple[int, Mapping[Reason, int], Sequence[str]]:
    """Return the number of rows, what was left out, and a sentence for each damaged rollout."""
    rows, damaged = 0, list[str]()
    try:
        for rollout in rollouts(choice.runs, push_redactor()):
            try:
                rollout.require_safe()
                rows += writer.add(rollout)
            except (OSError, MemoryError):
                raise
            except Exception as error:  # a downloaded run may hold anything: it costs this rollout only
                rollout.run.damaged.add(rollout.id)
                damaged.append(f"{rollout.id}: {sentence(error)}")
            progress(1)
        writer.close()
    except BaseException:  # an interrupt too: it is raised again
        writer.abort()
        raise
    left_out = Counter({DAMAGED: len(damaged)}) + writer.left_out  # without zeros
    return rows, left_out, damaged


@contextmanager
def _new_folder(out: Path, force: bool) -> Iterator[Path]:
    """Yield an empty folder that gets the name `out` if the block succeeds, and is removed otherwise.

    Raises:
        UsageError: `out` is in use, or cannot be written.
    """
    require_free(out, force)
    target = Path(os.path.abspath(out))
    try:
        if not target.parent.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
        around = Path(tempfile.mkdtemp(prefix=".swe-core-", dir=target.parent))
    except OSError as error:
        raise _failure(error, out, target.parent) from None
    unfinished, earlier = around / "new", around / "new-earlier"
    try:
        unfinished.mkdir()
        yield unfinished
        require_free(out, force)  # again: an export may take hours
        _rename(unfinished, target, earlier if force else None)
        shutil.rmtree(earlier, ignore_errors=True)
    except OSError as error:
        raise _failure(error, out, around) from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
        with suppress(OSError):  # an earlier export that could not be put back is still in it
            around.rmdir()


def _rename(unfinished: Path, target: Path, earlier: Path | None) -> None:
    """Rename a folder. A folder in its place gets the name `earlier`; without one it must be empty."""
    if earlier is None or not target.exists():
        unfinished.rename(target)  # the system refuses it where a folder is that is not empty
        return
    target.rename(earlier)
    try:
        unfinished.rename(target)
    except BaseException:  # an interrupt too: it is raised again
        earlier.rename(target)
        raise


def _failure(error: OSError, out: Path, folder: Path) -> UsageError:
    """Return what went wrong, for users; `folder` is where the export is written."""
    place = folder if error.filename is None else Path(os.path.abspath(os.fsdecode(error.filename)))
    written = place.is_relative_to(folder) or folder.is_relative_to(place)
    what = f"the export {str(out)!r} cannot be written" if written else f"cannot read {error.filename!r}"
    hint = "; make room or give another --out" if written else ""
    return UsageError(f"{what}: {error.strerror or error}{hint}")


def require_free(out: Path, force: bool) -> None:
    """Check that an export may take the name `out`.

    Raises:
        UsageError: Something else has it.
    """
    if not os.path.lexists(out):
        return
    if not out.is_dir() or out.is_symlink():
        raise UsageError(f"{str(out)!r} is there and is no folder: give another --out")
    if not any(out.iterdir()):
        return
    try:
        ours = MARK in (out / README).read_text(encoding="utf-8", errors="replace")
    except OSError:
        ours = False
    if not ours:
        raise UsageError(f"the folder {str(out)!r} is not empty and no earlier export: give another --out")
    if not force:
        raise UsageError(
            f"the folder {str(out)!r} has an earlier export: replace it with --force, or give another --out"
        )
