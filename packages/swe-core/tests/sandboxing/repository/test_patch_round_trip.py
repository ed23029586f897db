"""Any exported patch, applied to a fresh copy of its repository, gives the same files."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swe_core.api.sandbox import Sandbox, SandboxProvider
from swe_core.builtin.swe.git_trees import Trees
from swe_core.builtin.swe.graded_tree import References, prepare_tree
from swe_core.builtin.swe.protected import Protection
from swe_core.sandboxing.repository.patch import export_patch, record_base
from swe_testing.records import make_task

from ...repositories import Repo, sh

File = tuple[str, bytes]  # "644" | "755" | "link", content
Files = Mapping[str, File]

names = st.one_of(
    st.sampled_from(["a", "b", "c", "x.py", "sp ace", "-dash", "é", "日本", 'q"uote', "tab\t", "new\nline"]),
    st.sampled_from(["back\\slash", "trail ", "dev null", "b/", ".gitattributes", "*", "[x]", ":(top)"]).map(
        lambda name: name.rstrip("/")
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=8),
).filter(lambda name: name not in (".", "..") and ".git" not in name.lower().replace(".gitattributes", ""))
PUT_BACK = Protection(Trees({}, {}, tests={}, reference={}, ignored=[]), make_task())
# Below a directory whose name ends in a blank, git cannot apply its own diff of an empty file: the header
# `diff --git a/x /y b/x /y` is all there is, and it is ambiguous.
paths = (
    st.lists(names, min_size=1, max_size=3)
    .map("/".join)
    .filter(lambda path: " /" not in path and PUT_BACK.kind(path) in (None, "attributes"))
)
lines = st.lists(
    st.sampled_from([b"one", b"two", b"  three\t", b"", b"\xff\xfe", b"--- a/x", b"+++ b/x", b"@@ -1 +1 @@"])
)
contents = st.one_of(
    st.builds(
        lambda parts, end, last: end.join(parts) + last, lines, *[st.sampled_from([b"\n", b"\r\n"])] * 2
    ),
    lines.map(b"\n".join),
    st.binary(max_size=40),
    st.just(b"text\n" * 3000 + b"\0binary after eight thousand bytes\n"),
    st.sampled_from(
        [b"text eol=crlf", b"-diff filter=x", b"working-tree-encoding=UTF-16 ident", b"binary"]
    ).map(lambda attributes: b"* %b\n" % attributes),
)
targets = st.sampled_from([b"missing", b"./not/there", b"two words"])  # all inside
files = st.one_of(st.tuples(st.sampled_from(["644", "755"]), contents), st.tuples(st.just("link"), targets))
trees = st.dictionaries(paths, files, max_size=8)


def fitting(tree: Files) -> dict[str, File]:
    """`tree` without the files that stand where another one needs a directory."""
    return {path: file for path, file in tree.items() if not any(p.startswith(f"{path}/") for p in tree)}


@st.composite
def changes(draw: st.DrawFn) -> tuple[Files, Files]:
    """Two trees, the second made from the first by edits, deletions and additions."""
    before = draw(trees)
    after = dict(before)
    for path in draw(st.lists(st.sampled_from(sorted(before)), unique=True) if before else st.just([])):
        kind, content = after.pop(path)
        what = draw(st.sampled_from(["delete", "append", "mode", "replace"]))
        if what == "append" and kind != "link":
            after[path] = (kind, content + draw(contents))
        elif what == "mode" and kind != "link":
            after[path] = ("755" if kind == "644" else "644", content)
        elif what == "replace":
            after[path] = draw(files)
    return fitting(before), fitting({**after, **draw(trees)})


def archive(tree: Files) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, (kind, content) in tree.items():
            entry = tarfile.TarInfo(f"./{path}")
            if kind == "link":
                entry.type, entry.linkname = tarfile.SYMTYPE, content.decode()
                tar.addfile(entry)
            else:
                entry.mode, entry.size = int(kind, 8), len(content)
                tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def unpack(packed: bytes) -> dict[str, File]:
    found: dict[str, File] = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for entry in tar:
            path = entry.name.removeprefix("./")
            if entry.issym():
                found[path] = ("link", entry.linkname.encode())
            elif entry.isfile():
                content = tar.extractfile(entry)
                assert content is not None
                found[path] = ("755" if entry.mode & 0o100 else "644", content.read())
    return found


async def replace_files(sandbox: Sandbox, tree: Files) -> None:
    await sh(sandbox, "find . -mindepth 1 -maxdepth 1 ! -name .git -exec rm -rf {} +")
    await sandbox.put_archive(sandbox.spec.workdir, archive(tree))


async def round_trip(sandbox: Sandbox, before: Files, after: Files) -> tuple[bytes, dict[str, File]]:
    await replace_files(sandbox, before)
    base = await record_base(sandbox)
    await replace_files(sandbox, after)
    patch = await export_patch(sandbox, base)
    await replace_files(sandbox, before)
    fresh = await record_base(sandbox)
    assert fresh.tree == base.tree
    await prepare_tree(sandbox, fresh, make_task(), patch, References(), timeout=60)
    packed = await sandbox.exec(["tar", "-c", "--format=pax", "--exclude=./.git", "."], timeout=60)
    await sh(sandbox, f"rm -rf {base.store} {fresh.store}")
    return patch, unpack(packed.stdout)


def counting(tree: Files, before: Files) -> dict[str, File]:
    """`tree` without what every grade puts back, whatever a patch does, and without what is in its way."""
    kept = [path for path in before if path.rpartition("/")[2] == ".gitattributes"]
    return {
        path: file
        for path, file in tree.items()
        if ".gitattributes" not in path.split("/") and not any(p.startswith(f"{path}/") for p in kept)
    }


@settings(
    max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(data=st.data())
def test_exported_patch_round_trips(
    data: st.DataObject, shared_sandbox: tuple[BlockingPortal, Sandbox]
) -> None:
    before, after = data.draw(changes())
    portal, sandbox = shared_sandbox
    patch, found = portal.call(round_trip, sandbox, before, after)
    assert counting(found, before) == counting(after, before), patch.decode(errors="replace")
    assert (patch == b"") == (before == after)


@pytest.fixture
def shared_sandbox(provider: SandboxProvider, repo: Repo) -> Iterator[tuple[BlockingPortal, Sandbox]]:
    """One sandbox for all examples: what is random is in the repository."""
    repo.commit()
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(provider.open(repo.spec)) as sandbox:
            yield portal, sandbox
