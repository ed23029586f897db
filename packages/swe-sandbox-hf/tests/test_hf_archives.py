"""The cache of archives: what is made once, what is kept of it, and what is open stays whole."""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swe_core.api.sandbox import SandboxSpec
from swe_core.sandboxing.followed import archives
from swe_core.sandboxing.followed.archives import FORMAT, Archives, parts_of, size_of
from swe_core.system import seal


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """The directory of `_own_cache`."""
    return tmp_path / "cache" / "swe-core" / "archives"


def kept(cache: Path) -> set[str]:
    return {path.name.partition("-")[0].partition(".")[0] for path in cache.iterdir()}


def renamed(spec: SandboxSpec) -> SandboxSpec:
    """With its asset under another name."""
    return spec.model_copy(update={"assets": (spec.assets[0].model_copy(update={"name": "new"}),)})


def old(path: Path, days: float) -> None:
    then = time.time() - days * 24 * 3600
    os.utime(path, (then, then))


def test_archive_is_made_once_and_kept_while_it_is_used(with_asset: SandboxSpec, cache: Path) -> None:
    with Archives().of(with_asset):
        (path,) = cache.iterdir()
        old(path, 29)
        (cache / f"forgotten.{FORMAT}").write_bytes(b"1")
        old(cache / f"forgotten.{FORMAT}", 31)
        (cache / "left.0a1b2c3d").write_bytes(b"of a process that was killed")
        old(cache / "left.0a1b2c3d", 31)
    made = path.stat()
    with Archives().of(with_asset):  # which is a use
        pass
    assert path.stat().st_ino == made.st_ino
    assert path.stat().st_mtime > made.st_mtime
    assert kept(cache) == {"mine", "forgotten", "left"}
    with Archives().of(renamed(with_asset)):
        assert kept(cache) == {"mine", "new"}


def rewrite(path: Path) -> None:
    """A byte, with size and mtime as they were."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("poison", [rewrite, lambda path: os.truncate(path, 40)], ids=["byte", "truncated"])
def test_poisoned_archive_is_made_anew(
    with_asset: SandboxSpec,
    cache: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    poison: Callable[[Path], object],
) -> None:
    with Archives().of(with_asset):
        (path,) = cache.iterdir()
    read: list[str] = []
    monkeypatch.setattr(seal, "_sha256", lambda path, real=seal._sha256: read.append(path) or real(path))
    with Archives().of(with_asset):
        assert read == []
    poison(path)
    poisoned = path.read_bytes()
    with Archives().of(with_asset) as made:
        (file,) = made.values()
        assert file.read() == path.read_bytes() != poisoned
        tarfile.open(path).close()
    (record,) = caplog.records
    assert "cannot verify the cached archive" in record.message


def test_least_recently_used_archive_is_evicted(
    with_asset: SandboxSpec, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "KEEP_BYTES", 250_000)
    cache.mkdir(parents=True)
    for days, name in enumerate(("newest", "middle", "oldest")):
        (cache / f"{name}.{FORMAT}").write_bytes(bytes(100_000))
        old(cache / f"{name}.{FORMAT}", days + 1)
    (cache / "written.0a1b2c3d").write_bytes(bytes(1_000_000))  # by another process, now
    with Archives().of(with_asset):
        assert kept(cache) == {"mine", "newest", "middle", "written"}
    monkeypatch.setattr(archives, "KEEP_BYTES", 0)
    with Archives().of(renamed(with_asset)):
        assert kept(cache) == {"new", "written"}


def test_archive_that_is_removed_while_it_is_used(with_asset: SandboxSpec, cache: Path) -> None:
    """And made again when it is asked for anew."""
    with Archives().of(with_asset) as made:
        (file,) = made.values()
        (path,) = cache.iterdir()
        data = path.read_bytes()
        path.unlink()
        assert size_of(file) == len(data)
        assert b"".join(parts_of(file)) == b"".join(parts_of(file)) == data
    with Archives().of(with_asset):
        assert path.exists()


def test_cache_that_others_can_write_is_refused(
    with_asset: SandboxSpec, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that may only be read is used; what cannot be removed is let be."""
    (cache / f"somebody.{FORMAT}").mkdir(parents=True)
    foreign = cache / f"foreign.{FORMAT}"
    foreign.write_bytes(b"1")
    for path in cache.iterdir():
        old(path, 31)

    unlink = Path.unlink

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(
        Path, "unlink", lambda path, **options: refuse() if path == foreign else unlink(path, **options)
    )
    with Archives().of(with_asset):
        pass
    assert kept(cache) == {"mine", "somebody", "foreign"}
    monkeypatch.setattr(archives.os, "utime", refuse)
    with Archives().of(with_asset) as made:
        (file,) = made.values()
        assert size_of(file) > 0
