"""Prepare the repository of a sandbox: for the agent before it starts, for the grader before the patch.

Both get the same base: the task's bug is in place, and nothing later than the base can be read. Images often
have a HEAD above the task's `base_commit`, and the commits between them may hold the fix: one commit replaces
them. A repository without `base_commit` is not the task's, unless it was made without a history: where HEAD
has no parents, the base is HEAD.
"""

from __future__ import annotations

import posixpath
import re

import anyio

from swe_core.api.sandbox import HOME_DIR, ExecResult, Sandbox
from swe_core.api.task import Task
from swe_core.errors import SandboxError, SandboxTimeout
from swe_core.sandboxing.repository.git import NO_FIT, UNKNOWN, failure, last_line, run_script
from swe_core.sandboxing.repository.patch import RECORD, Base, as_patch
from swe_core.sandboxing.repository.truncate_history import CUT

_COMMIT_ID = re.compile(r"[0-9a-f]{7,64}\^?")

_BEGIN = r"""
export GIT_NO_REPLACE_OBJECTS=1
enter "$1" "$2"
step=  # which one fails is the output
trap 'status=$?; rm -rf "$HOME"; [ $status = 0 ] || echo "$step"' EXIT
work=$HOME/work
mkdir "$work"
workdir=$1 home=$2 private=$3 wanted=$4 is_id=$5
shift 5

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
# descend: squash the commits above `wanted`. Prints what keeps it from comparing them, if so.
descend() (
  if [ "$private" = no ]; then  # one that is not the sandbox's own is refused later, and stays as it is
    case $common/ in "$root"/*) ;; *) exit 0 ;; esac
  fi

  # In a git directory of our own names are not known, only ids, and a partial clone fetches nothing.
  new_git_dir "$work/descend" "${#commit}" "$objects"
  export GIT_OBJECT_DIRECTORY="$objects"
  if [ -f "$common/shallow" ]; then cp -- "$common/shallow" "$GIT_DIR"; fi
  wanted=$(git rev-parse --verify --quiet "$wanted^{commit}") || {
    if ! git rev-parse --verify --quiet "$commit^^{commit}" >/dev/null; then
      echo 'the repository has no history'  # nothing is left of an old one
    elif [ "$is_id" = no ]; then
      echo "base_commit is no commit's id"
    else
      quit 49 "$commit"
    fi
    exit 0
  }
  [ "$wanted" != "$commit" ] || exit 0
  status=0
  git merge-base --is-ancestor "$wanted" "$commit" || status=$?
  [ "$status" != 1 ] || quit 47 "$commit"
  [ "$status" = 0 ] || exit "$status"
  new_base "$commit^{tree}" -p "$wanted"
)

step=base unchecked=
if [ "$wanted" != "$commit" ]; then
  unchecked=$(descend)
  commit=$(git rev-parse 'HEAD^{commit}')
fi
"""

_REBASE = r"""
# rebase HIDDEN...: apply the bug, and commit it without the hidden files as HEAD.
rebase() (
  cat >"$work/bug"
  for path; do
    case $path in "$workdir"/*) printf '%s\0' "${path#"$workdir"/}" ;; esac
  done >"$work/hidden"

  rules=$(line_ends)
  new_git_dir "$work/rebase" "${#commit}" "$objects"
  keep_rules "$rules" "$attributes"
  export GIT_OBJECT_DIRECTORY="$objects" GIT_LITERAL_PATHSPECS=1
  for file in "$real"/sharedindex.*; do if [ -f "$file" ]; then cp -- "$file" "$GIT_DIR"; fi; done
  if [ -s "$work/bug" ]; then
    converting --work-tree="$root" apply --whitespace=nowarn "$work/bug" 2>/dev/null ||
      git --work-tree="$root" apply --whitespace=nowarn "$work/bug" 2>"$work/said" ||
      quit 47 "$(grep '^error' "$work/said" | head -n 1)"
    # What was compiled or built of these files shows them as they were.
    git apply --numstat -z "$work/bug" | tr '\0' '\n' | cut -f 3- | while IFS= read -r path; do
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
    if [ -s "$work/bug" ]; then
      git apply --cached --whitespace=nowarn "$work/bug" 2>"$work/said" ||
        quit 47 "what is staged: $(grep '^error' "$work/said" | head -n 1)"
    fi
    if [ -s "$work/hidden" ]; then
      xargs -0 git rm -r -q -f --cached --ignore-unmatch -- <"$work/hidden"
    fi
  done
  export GIT_INDEX_FILE="$GIT_DIR/index"
  new=$(git write-tree)
  [ "$new" != "$old" ] || exit 0
  new_base "$new"
)

step=base
rebase "$@"
commit=$(git rev-parse 'HEAD^{commit}')
"""

_HIDE = r"""
step=hide
(cd / && rm -rf -- "$@")
"""

SETTINGS = r"""
user=$(awk -F : -v "id=$(id -u)" '$3 == id { print $6; exit }' /etc/passwd 2>/dev/null) || user=
if [ -f "$user/.gitconfig" ] && ! [ -e "$home/.gitconfig" ]; then
  head -c 65536 "$user/.gitconfig" >"$home/.gitconfig" || :
fi
"""
"""Gives $home, which is a new directory, the git settings of the image's user: who commits."""

_WORD = {True: "yes", False: "no"}
_FAILED = {
    "cut": "cannot be freed of what came after its base",
    "record": "has a state that could not be recorded",
}


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
    workdir, private = sandbox.spec.workdir, owns_disk(sandbox)
    bug = as_patch(task.bug_patch)
    hidden = [posixpath.normpath(path) for path in task.hidden] if hide else []
    steps = [
        _BEGIN,
        *(() if bug else (_DESCEND,)),  # with a bug, the base has no parents
        *((_REBASE,) if bug or any(path.startswith(f"{workdir}/") for path in hidden) else ()),
        *((_HIDE,) if hidden else ()),
        *((SETTINGS,) if private else ()),
        f'step=cut\n{CUT}\nrm -rf "$work"\nstep=record\n{RECORD}',
        'echo "${unchecked-}"\ntrap - EXIT\n',
    ]
    is_id = _COMMIT_ID.fullmatch(task.base_commit) is not None
    given = (workdir, HOME_DIR, _WORD[private], task.base_commit, _WORD[is_id], *hidden)
    try:
        with anyio.fail_after(timeout):
            done = await run_script(sandbox, "".join(steps), *given, stdin=bug or None)
    except TimeoutError:
        raise SandboxTimeout(
            f"the repository {workdir!r} in the sandbox could not be prepared within {timeout:g} s"
        ) from None
    if done.exit_code == 0:
        return Base(*done.text.split("\n")[:-1])
    raise _failure(sandbox, task, done)


def owns_disk(sandbox: Sandbox) -> bool:
    """Return whether the sandbox has its own disk, so that files outside of `workdir` may change."""
    return sandbox.spec.image is not None and sandbox.spec.repository is None


def _failure(sandbox: Sandbox, task: Task, done: ExecResult) -> SandboxError:
    workdir, step = sandbox.spec.workdir, done.text.strip()
    if step == "base" and done.exit_code in (UNKNOWN, NO_FIT):
        if task.bug_patch:
            return SandboxError(
                f"the bug_patch of the task {task.instance_id!r} does not apply to its repository: "
                f"{last_line(done)}"
            )
        head, image = last_line(done), sandbox.spec.image
        where = f"the repository {workdir!r} in the sandbox{f' of the image {image!r}' if image else ''}"
        why = f"an ancestor of the HEAD {head!r} of {where}"
        if done.exit_code == UNKNOWN:
            why = f"in {where}, whose HEAD is {head!r}"
        return SandboxError(
            f"the base_commit {task.base_commit!r} of the task {task.instance_id!r} is not {why}: use an "
            "image or a repository that is at base_commit"
        )
    if step == "hide":
        return SandboxError(
            f"what the task hides from the agent cannot be removed from the sandbox: {last_line(done)}"
        )
    return failure(done, workdir, _FAILED.get(step, "could not be brought to the task's base"))
