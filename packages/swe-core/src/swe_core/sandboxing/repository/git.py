"""Run git inside a sandbox, or on this host, without the repository's own configuration.

A repository can carry commands: hooks, filter and diff drivers, an fsmonitor, aliases, an editor. All of them
are named in a git directory's config, so the scripts here use a private git directory. It borrows the
repository's objects as alternates (plain data, addressed by content) and its work tree, but not its config,
hooks, index, refs, excludes or attributes:

- `env -i` clears the environment, `HOME` is the private directory: no global, system or injected config.
- `info/attributes` overrules every `.gitattributes` in the tree: files are read and written byte by byte,
  without filters, conversions, `$Id$` or diff drivers. Only `converting` has them, without filters: a patch
  that was made from git's own files (line ends LF) is to fit those of the work tree (CRLF).
- `.gitignore` files in the tree count; the repository's `info/exclude` does not. What the repository's index
  names counts, too: `git add -f` put it there.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from swe_core.api.sandbox import MAX_OUTPUT, ExecResult, Sandbox
from swe_core.errors import SandboxError

NO_GIT, NO_WORKTREE, NO_COMMIT, NO_BASE, TOO_BIG, NO_ROOM, NO_FIT, ODD, UNKNOWN = range(41, 50)
"""Exit codes of the scripts, apart from git's own (1, 128, 129) and the shell's (126, 127)."""

_CLEAN = (
    'exec env -i PATH="$PATH" HOME=/nonexistent LC_ALL=C GIT_CONFIG_NOSYSTEM=1 GIT_ATTR_NOSYSTEM=1 '
    'GIT_TERMINAL_PROMPT=0 GIT_OPTIONAL_LOCKS=0 sh -c "$@"'
)

_LIBRARY = r"""
set -eu
quit() { code=$1; shift; printf '%s\n' "$*" >&2; exit "$code"; }
command -v git >/dev/null 2>&1 || quit 41 'git: not found'

# enter WORKDIR DIR: enter the repository WORKDIR, with any owner; HOME becomes a new directory in DIR. Sets
# the physical paths of the work tree (root), of its git directory (real), of that which worktrees share
# (common) and of its objects; and the commit of HEAD, attributes, index.
enter() {
  cd -- "$1" 2>/dev/null || quit 42 'no such directory'
  root=$(pwd -P)
  mkdir -p "$2"
  HOME=$(mktemp -d "$2/.swe-git-XXXXXXXX")
  printf '[safe]\n  directory = *\n' >"$HOME/.gitconfig"  # the repository may have another owner
  found=$(git rev-parse --show-toplevel 'HEAD^{commit}' --git-path objects --git-path info/attributes \
    --git-path index --git-dir --git-common-dir 2>/dev/null) || found=
  [ -n "$found" ] || top=$(git rev-parse --show-toplevel 2>/dev/null) || quit 42 'not a git repository'
  {
    IFS= read -r top
    for name in commit objects attributes index real common; do IFS= read -r "$name" || :; done
  } <<END
${found:-$top}
END
  [ "$(cd -- "$top" && pwd -P)" = "$root" ] || quit 42 "a directory inside the repository $top"
  [ -n "$found" ] || quit 43 'no commit'
  objects=$(cd -- "$objects" && pwd -P) real=$(cd -- "$real" && pwd -P) common=$(cd -- "$common" && pwd -P)
}

# new_git_dir DIR ID_LENGTH ALTERNATE...: make DIR a git directory of our own and use it.
new_git_dir() {
  export GIT_DIR="$1" GIT_INDEX_FILE="$1/index"
  format='repositoryformatversion = 0'
  [ "$2" = 40 ] || format='repositoryformatversion = 1'
  shift 2
  mkdir -p "$GIT_DIR/objects/info" "$GIT_DIR/refs" "$GIT_DIR/info"
  echo 'ref: refs/heads/none' >"$GIT_DIR/HEAD"
  cat >"$GIT_DIR/config" <<END
[core]
  $format
  bare = false
  hooksPath = /dev/null
  attributesFile = /dev/null
  excludesFile = /dev/null
  fsmonitor = false
  untrackedCache = false
  splitIndex = false
  fileMode = true
  symlinks = true
  ignoreCase = false
  autocrlf = false
  safecrlf = false
  protectHFS = false
  protectNTFS = false
  looseCompression = 1
[gc]
  auto = 0
END
  case $format in *1) printf '[extensions]\n  objectFormat = sha256\n' >>"$GIT_DIR/config" ;; esac
  echo '* -text -filter -ident !eol !working-tree-encoding !diff !whitespace' >"$GIT_DIR/info/attributes"
  echo '.[gG][iI][tT]' >"$GIT_DIR/info/exclude"  # git refuses such names, so leave them out
  for objects in "$@"; do
    if [ -d "$objects" ]; then (cd "$objects" && pwd -P); fi
  done >"$GIT_DIR/objects/info/alternates"
}

# line_ends: print what the repository's settings say of them; before `new_git_dir`.
line_ends() {
  git config --get-regexp '^core\.(autocrlf|eol)$' || :
}

# keep_rules LINE_ENDS ATTRIBUTES: note for `converting` what the repository itself says; after `new_git_dir`.
keep_rules() {
  autocrlf=false eol=native
  while IFS=' ' read -r key value; do
    case $key=$value in
      *=[iI][nN][pP][uU][tT]) autocrlf=input ;;
      core.autocrlf=[fFnN0]* | core.autocrlf=[oO][fF]*) autocrlf=false ;;
      core.autocrlf=*) autocrlf=true ;;
      *=[cC][rR][lL][fF]) eol=crlf ;;
      *) eol=native ;;  # which is LF
    esac
  done <<END
$1
END
  echo "$autocrlf $eol" >"$GIT_DIR/line-ends"
  : >"$GIT_DIR/info/own"
  if [ -f "$2" ]; then head -c 1048576 -- "$2" | tr -d '\0' >"$GIT_DIR/info/own"; fi
}

# converting ARGUMENT...: run git with the attributes and line ends of the repository. It knows no filter, so
# nothing is executed.
converting() {
  autocrlf=false eol=native
  if [ -f "$GIT_DIR/line-ends" ]; then IFS=' ' read -r autocrlf eol <"$GIT_DIR/line-ends" || :; fi
  case $autocrlf in true | input) ;; *) autocrlf=false ;; esac
  case $eol in crlf) ;; *) eol=native ;; esac
  mv "$GIT_DIR/info/attributes" "$GIT_DIR/info/none"
  cat "$GIT_DIR/info/own" >"$GIT_DIR/info/attributes" 2>/dev/null || :
  status=0
  git -c core.autocrlf=$autocrlf -c core.eol=$eol "$@" || status=$?
  mv "$GIT_DIR/info/none" "$GIT_DIR/info/attributes"
  return $status
}

# add_named TREE INDEX: give each file that INDEX names, and TREE does not, an entry; `add` brings it to the
# state of the work tree, although git ignores the file. $GIT_DIR/named lists them. More than a thousand
# were hardly added on purpose, and are left out.
add_named() {
  : >"$GIT_DIR/named"
  [ -f "$2" ] || return 0  # a pipe has no end
  for file in "${2%/*}"/sharedindex.*; do if [ -f "$file" ]; then cp -- "$file" "$GIT_DIR"; fi; done
  GIT_INDEX_FILE=$2 \
    git diff-index --cached --ita-visible-in-index --no-renames --diff-filter=A "$1" 2>/dev/null |
    grep -v '^:000000 160000' | cut -f 2- >"$GIT_DIR/named"
  [ -s "$GIT_DIR/named" ] || return 0
  empty=$(git hash-object -w --stdin </dev/null)
  {
    [ "$(wc -l <"$GIT_DIR/named")" -le 1000 ] &&
      sed "s|^|100644 $empty	|" "$GIT_DIR/named" | git update-index --index-info 2>/dev/null
  } || : >"$GIT_DIR/named"
}

# take_all: bring the index to the state of the work tree, like `git add -A`, and print its tree.
take_all() {
  # git would take a repository inside the work tree as a link to a commit, without its files. A directory
  # that has an entry in the index counts as an ordinary one, so give each an entry; `add` removes it again.
  while :; do
    git ls-files --others --exclude-standard >"$GIT_DIR/others"
    sed -n -e 's|/$|/.swe-core|p' -e 's|/"$|/.swe-core"|p' "$GIT_DIR/others" >"$GIT_DIR/nested"
    [ -s "$GIT_DIR/nested" ] || break
    empty=$(git hash-object -w --stdin </dev/null)
    sed "s|^|100644 $empty	|" "$GIT_DIR/nested" | git update-index --index-info
  done
  rm -f "$GIT_DIR/others" "$GIT_DIR/nested"
  git add -A >/dev/null
  git write-tree
}
"""


async def run_script(
    sandbox: Sandbox,
    script: str,
    *args: str,
    stdin: bytes | None = None,
    timeout: float | None = None,
    max_output: int = MAX_OUTPUT,
) -> ExecResult:
    """Run a POSIX shell script that has the functions of this module, in a clean environment.

    Args:
        script: Its parameters `$1…` are `args`.
        stdin: Its standard input; None is empty.
        timeout: Seconds; None is no limit of its own.

    Raises:
        SandboxTimeout: The script ran longer than `timeout`.
        SandboxDied: The sandbox has exited.
    """
    argv = ["sh", "-c", _CLEAN, "sh", _LIBRARY + script, "swe-git", *args]
    return await sandbox.exec(argv, cwd="/", stdin=stdin, timeout=timeout, max_output=max_output)


def run_here(script: str, *args: str) -> ExecResult:
    """Run such a script on this host, blocking. `args` are its parameters `$1…`."""
    done = subprocess.run(
        ["sh", "-c", _CLEAN, "sh", _LIBRARY + script, "swe-git", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return ExecResult(done.returncode, done.stdout, done.stderr)


def failure(done: ExecResult, workdir: str, what: str) -> SandboxError:
    """Return the error of a failed script that begins with `enter`; `what` describes unknown failures."""
    message = last_line(done)
    match done.exit_code:
        case code if code == NO_GIT or code == 127:
            return SandboxError("the sandbox has no git: use an image that has git and a POSIX shell")
        case code if code == NO_WORKTREE:
            return SandboxError(f"{workdir!r} in the sandbox is not the top of a git work tree: {message}")
        case code if code == NO_COMMIT:
            return SandboxError(f"the repository {workdir!r} in the sandbox has no commit to start from")
        case _:
            return SandboxError(f"the repository {workdir!r} in the sandbox {what}: {message}")


def last_line(done: ExecResult) -> str:
    """Return the last line of a failed command's output, at most 300 characters."""
    lines: Sequence[str] = [line.strip() for line in done.stderr.decode(errors="replace").splitlines()]
    shown = [line for line in lines if line and not line.startswith(("warning:", "hint:"))]
    message = shown[-1].removeprefix("error: ").removeprefix("fatal: ") if shown else ""
    return message[:300] or f"exit code {done.exit_code}"
