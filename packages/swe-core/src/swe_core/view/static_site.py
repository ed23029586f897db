"""A static copy of the pages: a folder that any web server, a Space or a browser can open."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

from swe_core.errors import UsageError
from swe_core.view.render import ASSETS, Links, render
from swe_core.view.routes import all_paths, page_at
from swe_core.view.searching import write_index
from swe_core.view.site import Site

_FILE = "index.html"


def write_site(site: Site, out: Path) -> int:
    """Write every page of `site` below the folder `out`, which must be new or empty.

    Returns:
        The number of pages.

    Raises:
        UsageError: `out` is not empty or cannot be written, or records of a run are damaged.
    """
    try:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(f"{str(out)!r} exists and is not empty: give another folder with --export")
        (out / "assets").mkdir(parents=True, exist_ok=True)
        for name in ASSETS:
            shutil.copyfile(str(files("swe_core.view") / "assets" / name), out / "assets" / name)
        pages = 0
        for parts in all_paths(site):
            if any("/" in part or part in (".", "..") for part in parts):
                continue  # a damaged or hostile record: it would lead out of the folder
            text = render(page_at(site, parts, {}), Links(len(parts), _FILE), live=False)
            folder = out.joinpath(*parts)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / _FILE).write_text(text, encoding="utf-8", errors="replace")
            pages += 1
        write_index(site, out / "search")
        return pages
    except OSError as error:
        raise UsageError(f"the pages cannot be written to {str(out)!r}: {error.strerror or error}") from None
