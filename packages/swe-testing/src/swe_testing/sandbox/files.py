"""Files: read, write, archives, assets, and the private repository."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from swe_core.api.sandbox import ASSETS_DIR, HOME_DIR, Asset, Sandbox, SandboxProvider, SandboxSpec
from swe_core.errors import SandboxError
from swe_testing.sandbox.base import SandboxSuite

_CHANGES = (
    'rm -f "$1"',
    'chmod 777 "$1"; chown 0 "$1"; echo changed >>"$1"',
    'echo changed >new; mv -f new "$1"',
    'echo changed >new; ln -f new "$1"',
    'mv "$1" gone',
    'umount "$1"; umount -l "$1"; mount -o remount,rw "$1"',
    'above=${1%/*}; mv "$above" away; mkdir -p "$above"; echo changed >"$1"',
    'mv package moved; mkdir -p "${1%/*}"; echo changed >"$1"',
)
"""Attempts of code inside to change the file $1."""


def archive_of(files: dict[str, bytes], mode: str) -> bytes:
    """Return a tar archive; `mode` as in tarfile.open, "w" or "w:gz"."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]  # `mode` is one of two
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class FileTests(SandboxSuite):
    """`read`, `write`, `put_archive`, assets and the repository."""

    @pytest.fixture
    def repository(self, tmp_path: Path) -> Path:
        """A host directory to open sandboxes with."""
        root = tmp_path / "repository"
        (root / "package" / "deep").mkdir(parents=True)
        (root / "package" / "module.py").write_text("original\n")
        (root / "package" / "deep" / "file").write_text("deep\n")
        (root / "script").write_text("#!/bin/sh\necho ran\n")
        (root / "script").chmod(0o755)
        (root / "link").symlink_to("package/module.py")
        return root

    @pytest.mark.parametrize(
        "content", [b"", b"text\n", bytes(range(256)) * 4, os.urandom(4_000_000)], ids=len
    )
    async def test_write_and_read(self, sandbox: Sandbox, content: bytes) -> None:
        """Bytes stay unchanged; parents are made; a second write replaces."""
        path = f"{HOME_DIR}/new/parents/file with 'odd' näme"
        await sandbox.write(path, b"something longer than nothing")
        await sandbox.write(path, content)
        assert await sandbox.read(path) == content

    async def test_write_mode(self, sandbox: Sandbox) -> None:
        """The mode applies also to an existing file."""
        path = f"{HOME_DIR}/secret"
        for mode in (0o600, 0o755):
            await sandbox.write(path, b"#!/bin/sh\nexit 5\n", mode=mode)
            assert (await sandbox.exec(["stat", "-c", "%a", path])).text.strip() == f"{mode:o}"
        assert (await sandbox.exec([path])).exit_code == 5

    async def test_read_errors_name_the_file(self, sandbox: Sandbox) -> None:
        """Absent, a directory, too large: a SandboxError with the path."""
        await sandbox.write(f"{HOME_DIR}/large", bytes(1001))
        for path, limit in ((f"{HOME_DIR}/absent", 10**6), (HOME_DIR, 10**6), (f"{HOME_DIR}/large", 1000)):
            with pytest.raises(SandboxError, match=repr(path)):
                await sandbox.read(path, max_bytes=limit)
        assert len(await sandbox.read(f"{HOME_DIR}/large", max_bytes=1001)) == 1001

    async def test_write_where_nothing_can_be(self, sandbox: Sandbox) -> None:
        """A path that cannot be written is a SandboxError that names it."""
        with pytest.raises(SandboxError, match="/proc/absent/file"):
            await sandbox.write("/proc/absent/file", b"")

    @pytest.mark.parametrize("mode", ["w", "w:gz"])
    async def test_put_archive(self, sandbox: Sandbox, mode: str) -> None:
        """Plain and gzip archives are unpacked into a new directory, with modes."""
        archive = archive_of({"top": b"#!/bin/sh\necho top\n", "sub/file": bytes(70_000)}, mode)
        await sandbox.put_archive(f"{HOME_DIR}/made/here", archive)
        assert (await sandbox.exec([f"{HOME_DIR}/made/here/top"])).stdout == b"top\n"
        assert await sandbox.read(f"{HOME_DIR}/made/here/sub/file") == bytes(70_000)

    async def test_put_archive_that_is_none(self, sandbox: Sandbox) -> None:
        with pytest.raises(SandboxError, match=f"{HOME_DIR}/nothing"):
            await sandbox.put_archive(f"{HOME_DIR}/nothing", b"this is no archive" * 100)

    async def test_assets(self, provider: SandboxProvider, spec: SandboxSpec, tmp_path: Path) -> None:
        """Assets are at ASSETS_DIR/name, executable, and read-only."""
        tool = tmp_path / "asset" / "bin" / "tool"
        tool.parent.mkdir(parents=True)
        tool.write_text("#!/bin/sh\necho tool\n")
        tool.chmod(0o755)
        asset = Asset(name="mine", path=tmp_path / "asset", digest="1")
        async with provider.open(spec.model_copy(update={"assets": (asset,)})) as sandbox:
            inside = f"{ASSETS_DIR}/mine"
            assert (await sandbox.exec([f"{inside}/bin/tool"])).stdout == b"tool\n"
            if self.isolates:
                script = f"echo x >{inside}/bin/tool || touch {inside}/new || rm {inside}/bin/tool"
                assert (await sandbox.exec(["sh", "-c", script])).exit_code != 0
                assert (await sandbox.exec([f"{inside}/bin/tool"])).stdout == b"tool\n"
        assert tool.read_text() == "#!/bin/sh\necho tool\n"
        assert os.listdir(tool.parent) == ["tool"]

    async def test_repository_is_private(
        self, provider: SandboxProvider, spec: SandboxSpec, repository: Path
    ) -> None:
        """Each sandbox changes its own copy, invisible to the host and other sandboxes."""
        spec = spec.model_copy(update={"repository": repository})
        change = (
            "echo changed >package/module.py && rm -r package/deep && mkdir package/deep && echo new "
            ">package/deep/new && mv script moved && ls package/deep && cat link && ./moved"
        )
        async with provider.open(spec) as one, provider.open(spec) as two:
            done = await one.exec(["sh", "-c", change])
            assert (done.text, done.stderr) == ("new\nchanged\nran\n", b"")
            seen = await two.exec(["sh", "-c", "cat link package/deep/file; ./script; ls"])
            assert seen.text == "original\ndeep\nran\nlink\npackage\nscript\n"
            wiped = await two.exec(["sh", "-c", "rm -rf ./* ./.[!.]*; ls -A; exec true"])
            assert (wiped.exit_code, wiped.stdout) == (0, b"")
        assert (repository / "link").read_text() == "original\n"
        assert (repository / "package" / "deep" / "file").read_text() == "deep\n"
        assert sorted(os.listdir(repository)) == ["link", "package", "script"]

    async def test_host_files_are_not_visible(self, sandbox: Sandbox, tmp_path: Path) -> None:
        if not self.isolates:
            pytest.skip("this provider does not isolate")
        secret = tmp_path / "secret"
        secret.write_text("key")
        assert secret.read_text() == "key"
        done = await sandbox.exec(["cat", str(secret)])
        assert (done.exit_code, done.stdout) == (1, b"")

    async def test_links_in_the_repository_are_no_way_out(
        self, provider: SandboxProvider, spec: SandboxSpec, tmp_path: Path
    ) -> None:
        if not self.isolates:
            pytest.skip("this provider does not isolate")
        secret = tmp_path / "secret"
        secret.write_text("key")
        repository = tmp_path / "repository"
        repository.mkdir()
        (repository / "way-out").symlink_to(secret)
        async with provider.open(spec.model_copy(update={"repository": repository})) as sandbox:
            done = await sandbox.exec(["cat", "way-out"])
            assert (done.exit_code, done.stdout) == (1, b"")

    async def test_protect(self, provider: SandboxProvider, spec: SandboxSpec, repository: Path) -> None:
        """Only a protected file stays unchanged; or the provider says that it cannot protect."""
        spec = spec.model_copy(update={"repository": repository, "write_protect": True})
        async with provider.open(spec) as sandbox:
            below = f"{spec.workdir}/package"
            await sandbox.exec(["sh", "-c", "mkdir made && echo made >made/file"], cwd=below)
            contents = {f"{below}/deep/file": b"deep\n", f"{below}/made/file": b"made\n"}
            await sandbox.kill_all()  # spares what protects
            protected = await sandbox.protect([*contents])
            for attempt in _CHANGES if protected else ():
                for path, content in contents.items():
                    await sandbox.exec(["sh", "-c", attempt, "sh", path])
                    assert await sandbox.read(path) == content, attempt
            script = "echo x >>../module.py; echo new >new; mv new newer; mkdir made; cat newer; rm newer"
            free = "" if protected else "echo changed >file; "
            done = await sandbox.exec(["sh", "-euc", free + script], cwd=f"{below}/deep")
            assert (done.exit_code, done.text) == (0, "new\n"), done.stderr
