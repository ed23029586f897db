"""Export the agent's change of the repository as a patch.

`record_base` records the working state before the agent starts; `export_patch` compares the working state
after the agent with it. Only files in the work tree count, not commits, branches, stashes or the
configuration, and no command that the agent planted there is run (`swe_core.sandboxing.repository.git`). Of
the files that git ignores those count that the index names: the agent added them with `git add -f`.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from swe_core.api.sandbox import HOME_DIR, Sandbox
from swe_core.errors import SandboxTimeout, SweError
from swe_core.sandboxing.repository.git import (
    NO_BASE,
    NO_GIT,
    NO_ROOM,
    NO_WORKTREE,
    TOO_BIG,
    failure,
    last_line,
    run_script,
)

MAX_PATCH_BYTES = 32 * 1024 * 1024
"""Bytes of the largest patch, and of the largest changed file."""

ALIVE_TIMEOUT = 30.0
"""Seconds in which a living sandbox says that it has no such program."""


def as_patch(text: str) -> bytes:
    """Return a data set's patch in the form that git accepts: empty, or with a final newline.

    Where even its headers end with CR, something converted the whole text, which is undone. Git ignores
    a last binary file without a blank line after it.
    """
    text = text.strip("\n")
    if text.partition("\n")[0].endswith("\r"):
        text = text.replace("\r\n", "\n").rstrip("\r\n")
    end = "\n\n" if "\nGIT binary patch\n" in text else "\n"
    return f"{text}{end}".encode() if text else b""


class PatchUnavailable(SweError):
    """The agent left the repository in a state without a patch: unresolved, not an error."""


@dataclass(frozen=True, slots=True)
class Base:
    """The state of a repository before the agent.

    Args:
        commit: HEAD's commit.
        tree: Id of a git tree of the whole working state: committed, modified and untracked files, without
            ignored untracked ones.
        root: The repository's physical path inside the sandbox.
        store: A private git directory below HOME_DIR. It has the objects of `tree` that the repository lacks;
            its index is at `tree`, and `ignored` lists what git ignores (`git ls-files --directory -z`).
        objects: The repository's object directory.
        unchecked: Why it is unknown whether HEAD is at the task's `base_commit`; empty where it is known.
    """

    commit: str
    tree: str
    root: str
    store: str
    objects: str
    unchecked: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """What the agent changed.

    Args:
        patch: A binary git diff; empty without changes. `git apply` on the same base gives the same files.
        ignored: How many changed files are not in it, because git ignores them. Hidden ones and build
            products (`build`, `__pycache__`, `node_modules`) do not count.
        names: The first of these.
    """

    patch: bytes
    ignored: int = 0
    names: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what a user should know of the files that are not in the patch, as sentences."""
        if not self.ignored:
            return ()
        more = f" and {self.ignored - len(self.names)} more" if self.ignored > len(self.names) else ""
        names = ", ".join(repr(name[:200]) for name in self.names)
        return (
            f"git ignores changed files, which are not in the patch (git add -f adds one): {names}{more}",
        )


_NAMED = 5
_COUNT = re.compile(r"\s*[0-9]{1,9}")  # some versions of `wc` write blanks before it

RECORD = r"""
rules=$(line_ends)
new_git_dir "$HOME" "${#commit}" "$objects"
keep_rules "$rules" "$attributes"
export GIT_WORK_TREE="$root"
git read-tree "$commit"
# Sub-repositories become ordinary directories, so that their files count.
git ls-files --stage | sed -n 's/^160000 \([0-9a-f]*\) 0/0 \1/p' | git update-index --index-info
add_named "$commit" "$index"
tree=$(take_all)
git ls-files --others --ignored --exclude-standard --directory -z >"$GIT_DIR/ignored"
printf '%s\n' "$commit" "$tree" "$root" "$HOME" "$objects"
"""

_EXPORT = r"""
tree=$1 root=$2 store=$3 objects=$4 cap=$5 shown=$7
{ cd -- "$root" && [ "$(pwd -P)" = "$root" ]; } 2>/dev/null || {
  [ -d "$root" ] && [ ! -L "$root" ] && chmod u+rwx "$root" && cd -- "$root"
} 2>/dev/null || quit 42 'no such directory'
mkdir -p "$6" 2>/dev/null || { rm -rf "$6" && mkdir -p "$6"; } 2>/dev/null || :  # a file in its place
{ HOME=$(mktemp -d "$6/.swe-export-XXXXXXXX") && head -c 262144 /dev/zero >"$HOME/room"; } 2>/dev/null ||
  quit 46 'no room'
trap 'rm -rf "$HOME"' EXIT
find "$root" -type d ! -perm -0700 -exec chmod u+rwx {} \; -o -type f ! -perm -0400 -exec chmod u+r {} \; \
  2>/dev/null || :
moved=$(if [ -f .git ]; then sed -n 's/^gitdir: //p' .git; fi)
new_git_dir "$HOME" "${#tree}" "$store/objects" "$objects" .git/objects "$moved/objects"
export GIT_WORK_TREE="$root"
git read-tree "$tree" 2>/dev/null || quit 44 'objects are gone'
if ! git diff --quiet "$tree" -- '*.gitignore'; then  # what the image has, and was ignored, is no change
  head -c 1048576 "$store/ignored" 2>/dev/null | tr '\0' '\n' | head -n 1000 |
    sed -e 's/[[*?\\ ]/\\&/g' -e 's|^|/|' >>"$GIT_DIR/info/exclude"
fi
add_named "$tree" "${moved:-.git}/index"

find "$root" -name .git -prune -o -type f -size "+${cap}c" -print >"$HOME/big"
while IFS= read -r file; do
  file=${file#"$root"/}
  if git check-ignore --quiet -- "$file"; then continue; fi
  if [ "$(git cat-file -s "$tree:$file" 2>/dev/null)" = "$(wc -c <"$file")" ]; then continue; fi
  if ! git cat-file -e "$tree:$file" 2>/dev/null && git check-ignore --quiet --no-index -- "$file"; then
    git update-index --force-remove -- "$file"
    continue
  fi
  quit 45 "the file $file is larger than that"
done <"$HOME/big"

while :; do
  new=$(take_all)
  git diff --binary --full-index --no-renames --no-color --no-ext-diff --no-textconv \
    "$tree" "$new" >"$HOME/patch"
  [ "$(wc -c <"$HOME/patch")" -gt "$cap" ] || break
  [ -s "$GIT_DIR/named" ] || quit 45 'the whole patch is larger than that'
  : >"$GIT_DIR/named"  # again, without what git ignores
  git read-tree "$tree"
done

# What git ignores, and the agent changed: all but what is hidden or built.
since=-newer
if find "$store/HEAD" -prune -cnewer "$store/HEAD" 2>/dev/null; then since=-cnewer; fi
find . \( -name '.?*' -o -name __pycache__ -o -name '*.py[co]' -o -name '*.egg-info' \
  -o -name node_modules -o -name build -o -name dist -o -name venv \) -prune \
  -o \( -type f -o -type l \) $since "$store/HEAD" -print0 2>/dev/null |
  head -c 16777216 | git check-ignore -z --stdin 2>/dev/null >"$HOME/ignored" || :
printf '%s\0' "$(tr -cd '\0' <"$HOME/ignored" | wc -c)"
if [ -s "$HOME/ignored" ]; then
  tr '\0\n' '\n\0' <"$HOME/ignored" | sort | head -n "$shown" | sed 's|^\./||' | tr '\n\0' '\0\n'
fi
printf '\0'
cat "$HOME/patch"
"""


async def record_base(sandbox: Sandbox, *, timeout: float | None = None) -> Base:
    """Record the working state of the repository in `sandbox.spec.workdir`, before the agent starts.

    The repository itself is not written to.

    Args:
        timeout: Seconds; None is no limit of its own.

    Raises:
        SandboxError: `workdir` is not the top of a git work tree with a commit, or git is missing.
    """
    workdir = sandbox.spec.workdir
    done = await run_script(sandbox, f'enter "$1" "$2"\n{RECORD}', workdir, HOME_DIR, timeout=timeout)
    if done.exit_code == 0:
        return Base(*done.text.splitlines())
    raise failure(done, workdir, "has a state that could not be recorded")


async def export_patch(
    sandbox: Sandbox, base: Base, *, timeout: float | None = None, max_bytes: int = MAX_PATCH_BYTES
) -> bytes:
    """Return the patch of `export_change`, and raise its errors."""
    return (await export_change(sandbox, base, timeout=timeout, max_bytes=max_bytes)).patch


async def export_change(
    sandbox: Sandbox, base: Base, *, timeout: float | None = None, max_bytes: int = MAX_PATCH_BYTES
) -> Change:
    """Return the agent's change as a binary git diff from the recorded base to the present work tree.

    No process of the agent may be running (`Sandbox.kill_all`). Unreadable files are made readable. Files
    that git ignores are in the diff if the repository's index names them and they fit `max_bytes`.

    Args:
        timeout: Seconds; None is no limit of its own.
        max_bytes: Limit of the patch and of each changed file.

    Returns:
        The diff, and the changed files that git ignores and that are not in it.

    Raises:
        PatchUnavailable: The agent deleted the repository or its objects, or changed too much.
        SandboxError: The sandbox failed.
    """
    try:
        args = (base.tree, base.root, base.store, base.objects, str(max_bytes), HOME_DIR, str(_NAMED))
        room = max_bytes + 4096 * (_NAMED + 1)
        done = await run_script(sandbox, _EXPORT, *args, timeout=timeout, max_output=room)
    except SandboxTimeout:
        await check_alive(sandbox)
        raise PatchUnavailable(
            f"the change in {base.root!r} could not be read within {timeout:g} s: "
            "the agent left too many or too odd files"
        ) from None
    if done.exit_code == 0:
        head, _, patch = done.stdout.partition(b"\0\0")
        count, *names = head.decode(errors="backslashreplace").split("\0")
        if not _COUNT.fullmatch(count):
            raise PatchUnavailable(f"no patch can be taken from {base.root!r}: the agent replaced a program")
        return Change(patch, int(count), tuple(names[:_NAMED]))
    why = last_line(done)
    match done.exit_code:
        case code if code == NO_GIT or code == 127:
            raise PatchUnavailable("the agent removed git or the shell from the sandbox")
        case code if code == NO_WORKTREE:
            raise PatchUnavailable(f"the agent deleted or replaced the repository {base.root!r}")
        case code if code == NO_BASE:
            raise PatchUnavailable(f"the agent deleted the git objects of the repository {base.root!r}")
        case code if code == NO_ROOM:
            raise PatchUnavailable(
                "no patch can be taken: the agent filled the sandbox, whose disk is full (resources.disk_mb)"
            )
        case code if code == TOO_BIG:
            raise PatchUnavailable(f"the change exceeds the {max_bytes} bytes allowed: {why}")
        case _:
            raise PatchUnavailable(f"no patch can be taken from {base.root!r} as the agent left it: {why}")


async def check_alive(sandbox: Sandbox) -> None:
    """Kill all processes of the sandbox, and check that it still answers.

    It is asked for a program that nobody can know of. Code inside may have replaced or removed any other.

    Raises:
        SandboxError: It does not.
    """
    await sandbox.kill_all()
    await sandbox.exec([f"/swe-core-{secrets.token_hex(16)}"], cwd="/", timeout=ALIVE_TIMEOUT)
