"""Read the rows of a local file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from swe_core.builtin.rows.row import Unreadable, found
from swe_core.errors import TaskError
from swe_core.system import strict_json

_BOM = b"\xef\xbb\xbf"


def read_rows(file: Path) -> Iterator[tuple[str, object]]:
    """Yield each row of a `.jsonl`, `.json` or `.parquet` file with its place, such as `line 3`.

    A line that is no JSON is an `Unreadable` row.

    Raises:
        TaskError: The file cannot be read, or is of another kind.
    """
    suffix = file.suffix.lower()
    if suffix == ".jsonl":
        # Lines end at b"\n" only: str.splitlines would cut a row at U+2028 and the like.
        for number, line in enumerate(_content(file).split(b"\n"), 1):
            if line.strip():
                yield f"line {number}", _parse(line, "the row")
    elif suffix == ".json":
        data = _content(file)
        rows = _parse(data, "the file") if data.strip() else []
        if isinstance(rows, Unreadable):
            raise TaskError(f"{str(file)!r}: {rows.sentence}")
        if not isinstance(rows, list):
            raise TaskError(
                f"{str(file)!r}: expected a list of rows, found {found(rows)}; write one row a line into a "
                ".jsonl file"
            )
        for number, row in enumerate(rows, 1):
            yield f"row {number}", row
    elif suffix == ".parquet":
        for number, row in enumerate(_parquet(file), 1):
            yield f"row {number}", row
    else:
        raise TaskError(
            f"{str(file)!r} is not a file of tasks: expected a name that ends in .jsonl (one row a line), "
            ".json (a list of rows) or .parquet"
        )


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes().removeprefix(_BOM)
    except OSError as error:
        raise TaskError(f"cannot read the tasks in {str(file)!r}: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise TaskError(f"cannot read the tasks in {str(file)!r}: {error}") from None


def _parse(data: bytes, what: str) -> object:
    try:
        return strict_json.loads(data.decode())
    except strict_json.DuplicateKey as error:
        return Unreadable(f"the key {found(error.key)} is twice in one object; leave one of them out")
    except UnicodeDecodeError as error:
        return Unreadable(
            f"{what} is not UTF-8 text (byte {error.start + 1}: {error.reason}); save the file as UTF-8"
        )
    except (ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        several = str(error).startswith("Extra data")
        hint = "; a file with one row a line ends in .jsonl" if several and what == "the file" else ""
        return Unreadable(f"{what} is not JSON: {error}{hint}")


def _parquet(file: Path) -> Iterator[object]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise TaskError(
            f"{str(file)!r}: reading a .parquet file needs pyarrow: pip install 'swe-core[datasets]'"
        ) from None
    try:
        table = parquet.ParquetFile(file)
        for batch in table.iter_batches():
            yield from batch.to_pylist()
    except OSError as error:
        raise TaskError(f"cannot read the tasks in {str(file)!r}: {error}") from None
    except (pyarrow.ArrowException, ValueError) as error:  # ValueError: a time that Python has no type for
        raise TaskError(f"{str(file)!r} is not a .parquet file that can be read: {error}") from None
