"""Prepare the repository of a sandbox: for the agent before it starts, for the grader before the patch.

Both get the same base: the task's bug is in place, and nothing later than the base can be read. Images often
have a HEAD above the task's `base_commit`, and the commits between them may hold the fix: one commit replaces
them. A repository without `base_commit` is not the task's, unless it was made without a history: where HEAD
has no parents, the base is HEAD.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import replace

import anyio

from swe_core.api.sandbox import HOME_DIR, Sandbox
from swe_core.api.task import Task
from swe_core.errors import SandboxError, SandboxTimeout
from swe_core.sandboxing.repository.git import NO_FIT, UNKNOWN, failure, last_line, run_script
from swe_core.sandboxing.repository.patch import Base, as_patch, record_base
from swe_core.sandboxing.repository.truncate_history import cut_history, owns_disk

_COMMIT_ID = re.compile(r"[0-9a-f]{7,64}\^?")

_NEW_BASE = r"""
# new_base TREE OPTION...: make a commit of TREE, and bring the repository's HEAD to it.
new_base() {
  # The same commit in the agent's sandbox and in the grader's: with the date of the one that it replaces.
  date=$(git show -s --format=%cI "$commit")
  export GIT_AUTHOR_NAME=base GIT_AUTHOR_EMAIL=base@localhost GIT_AUTHOR_DATE="$date"
  export GIT_COMMITTER_NAME=base GIT_COMMITTER_EMAIL=base@localhost GIT_COMMITTER_DATE="$date"
  base=$(git commit-tree -m 'The base of the task' "$@")
  unset GIT_OBJECT_DIRECTORY GIT_INDEX_FILE
  git --git-dir="$real" -c core.hooksPath=/dev/null update-ref HEAD "$base"
}
"""

_DESCEND = r"""
enter "$1" "$2"
trap 'rm -rf "$HOME"' EXIT
wanted=$3
[ "$wanted" != "$commit" ] || exit 0
real=$(cd -- "$(git rev-parse --git-dir)" && pwd -P)
common=$(cd -- "$(git rev-parse --git-common-dir)" && pwd -P)
if [ "$4" = no ]; then  # a repository that is not the sandbox's own is refused later, and stays as it is
  case $common/ in "$root"/*) ;; *) exit 0 ;; esac
fi

# In a git directory of our own names are not known, only ids, and a partial clone fetches nothing.
new_git_dir "$HOME/git" "${#commit}" "$objects"
export GIT_OBJECT_DIRECTORY="$objects" GIT_NO_REPLACE_OBJECTS=1
if [ -f "$common/shallow" ]; then cp -- "$common/shallow" "$GIT_DIR"; fi
wanted=$(git rev-parse --verify --quiet "$wanted^{commit}") || {
  ! git rev-parse --verify --quiet "$commit^^{commit}" >/dev/null || quit 49 "$commit"
  echo unknown  # of an old history nothing is left
  exit 0
}
[ "$wanted" != "$commit" ] || exit 0
status=0
git merge-base --is-ancestor "$wanted" "$commit" || status=$?
[ "$status" != 1 ] || quit 47 "$commit"
[ "$status" = 0 ] || exit "$status"
new_base "$commit^{tree}" -p "$wanted"
"""

_REBASE = r"""
enter "$1" "$2"
trap 'rm -rf "$HOME"' EXIT
workdir=$1
shift 2
cat >"$HOME/bug"
real=$(cd -- "$(git rev-parse --git-dir)" && pwd -P)
for path; do
  case $path in "$workdir"/*) printf '%s\0' "${path#"$workdir"/}" ;; esac
done >"$HOME/hidden"

rules=$(line_ends)
new_git_dir "$HOME/git" "${#commit}" "$objects"
keep_rules "$rules" "$attributes"
export GIT_OBJECT_DIRECTORY="$objects" GIT_LITERAL_PATHSPECS=1
for file in "$real"/sharedindex.*; do if [ -f "$file" ]; then cp -- "$file" "$GIT_DIR"; fi; done
if [ -s "$HOME/bug" ]; then
  converting --work-tree="$root" apply --whitespace=nowarn "$HOME/bug" 2>/dev/null ||
    git --work-tree="$root" apply --whitespace=nowarn "$HOME/bug" 2>"$HOME/said" ||
    quit 47 "$(grep '^error' "$HOME/said" | head -n 1)"
  # What was compiled or built of these files shows them as they were.
  git apply --numstat -z "$HOME/bug" | tr '\0' '\n' | cut -f 3- | while IFS= read -r path; do
    case $path in */*) above=$root/${path%/*} ;; *) above=$root ;; esac
    name=${path##*/}
    rm -f -- "$above/__pycache__/${name%.py}".*.pyc "$root"/build/lib*/"${path#src/}"
  done
fi
git read-tree "$commit"
old=$(git write-tree)
for index in "$GIT_DIR/index" "$real/index"; do
  [ -f "$index" ] || continue
  export GIT_INDEX_FILE="$index"
  if [ -s "$HOME/bug" ]; then
    git apply --cached --whitespace=nowarn "$HOME/bug" 2>"$HOME/said" ||
      quit 47 "what is staged: $(grep '^error' "$HOME/said" | head -n 1)"
  fi
  if [ -s "$HOME/hidden" ]; then
    xargs -0 git rm -r -q -f --cached --ignore-unmatch -- <"$HOME/hidden"
  fi
done
export GIT_INDEX_FILE="$GIT_DIR/index"
new=$(git write-tree)
[ "$new" != "$old" ] || exit 0
new_base "$new"
"""

_HIDE = 'rm -rf -- "$@"'

_SETTINGS = r"""
home=$(awk -F : -v "id=$(id -u)" '$3 == id { print $6; exit }' /etc/passwd)
if [ -f "$home/.gitconfig" ] && ! [ -e "$1/.gitconfig" ]; then
  head -c 65536 "$home/.gitconfig" >"$1/.gitconfig"
fi
"""


async def prepare_repository(
    sandbox: Sandbox, task: Task, *, hide: bool, timeout: float | None = None
) -> Base:
    """Bring the repository in `sandbox.spec.workdir` to the task's base and record that state.

    With a `bug_patch`, or with committed files to hide, the base is a new commit without parents, since the
    history shows the fix. Else, where HEAD is above `base_commit`, the base is a new commit of HEAD's files
    directly above `base_commit`. Git's settings of the image's user are in HOME, too.

    Args:
        hide: Whether to remove `task.hidden` first: True in the agent's sandbox, False in the grader's.
        timeout: Seconds in total; None is no limit of its own.

    Raises:
        SandboxError: `workdir` is not the top of a git work tree with a commit, git is missing, HEAD is older
            than `base_commit` or on another branch, `base_commit` is missing from a history, or the
            preparation failed.
    """
    workdir = sandbox.spec.workdir
    hidden = [posixpath.normpath(path) for path in task.hidden] if hide else []
    try:
        with anyio.fail_after(timeout):
            # With a bug, the base has no parents.
            unchecked = "" if task.bug_patch else await _descend(sandbox, task)
            if task.bug_patch or any(path.startswith(f"{workdir}/") for path in hidden):
                await _rebase(sandbox, task, hidden)
            if hidden:
                await _hide(sandbox, hidden)
            if owns_disk(sandbox):
                await copy_git_settings(sandbox)
            await cut_history(sandbox)
            return replace(await record_base(sandbox), unchecked=unchecked)
    except TimeoutError:
        raise SandboxTimeout(
            f"the repository {workdir!r} in the sandbox could not be prepared within {timeout:g} s"
        ) from None


async def copy_git_settings(sandbox: Sandbox) -> None:
    """Give HOME, which is a new directory, the git settings of the image's user: who commits."""
    await sandbox.exec(["sh", "-c", _SETTINGS, "sh", HOME_DIR], cwd="/")


async def _descend(sandbox: Sandbox, task: Task) -> str:
    """Squash the commits above the task's `base_commit`. Return why they cannot be compared, if so."""
    workdir, private = sandbox.spec.workdir, "yes" if owns_disk(sandbox) else "no"
    done = await run_script(sandbox, _NEW_BASE + _DESCEND, workdir, HOME_DIR, task.base_commit, private)
    unknown = done.exit_code == UNKNOWN
    if unknown and not _COMMIT_ID.fullmatch(task.base_commit):  # names are not looked up
        return "base_commit is no commit's id"
    if unknown or done.exit_code == NO_FIT:
        head, image = last_line(done), sandbox.spec.image
        where = f"the repository {workdir!r} in the sandbox{f' of the image {image!r}' if image else ''}"
        why = f"an ancestor of the HEAD {head!r} of {where}"
        if unknown:
            why = f"in {where}, whose HEAD is {head!r}"
        raise SandboxError(
            f"the base_commit {task.base_commit!r} of the task {task.instance_id!r} is not {why}: use an "
            "image or a repository that is at base_commit"
        )
    if done.exit_code != 0:
        raise failure(done, workdir, "could not be brought to the task's base")
    return "the repository has no history" if done.text else ""


async def _rebase(sandbox: Sandbox, task: Task, hidden: list[str]) -> None:
    """Apply the bug, and commit it without the hidden files as HEAD."""
    workdir = sandbox.spec.workdir
    bug = as_patch(task.bug_patch)
    done = await run_script(sandbox, _NEW_BASE + _REBASE, workdir, HOME_DIR, *hidden, stdin=bug)
    if done.exit_code == NO_FIT:
        raise SandboxError(
            f"the bug_patch of the task {task.instance_id!r} does not apply to its repository: "
            f"{last_line(done)}"
        )
    if done.exit_code != 0:
        raise failure(done, workdir, "could not be brought to the task's base")


async def _hide(sandbox: Sandbox, hidden: list[str]) -> None:
    done = await sandbox.exec(["sh", "-c", _HIDE, "sh", *hidden], cwd="/")
    if done.exit_code != 0:
        raise SandboxError(
            f"what the task hides from the agent cannot be removed from the sandbox: {last_line(done)}"
        )
