"""Cut the history of a sandbox's repository at HEAD, so that nothing later can be read.

Images of tasks are made from clones: branches, tags, remotes, reflogs and packs hold the commits after the
base, and with them the fix. HEAD, its ancestors, the tags on them and staged content stay. This list of what
stays is complete; all else is removed:

- objects that are not reachable from these. Where a pack has some, the reachable ones go into one new pack
  with their deltas, which replaces all object files;
- refs other than HEAD's branch and those tags; reflogs, notes, stashes, replacements, grafts;
- each file of the git directory that git does not need: FETCH_HEAD, ORIG_HEAD, a merge or rebase in progress,
  bundles, other worktrees;
- remotes in the configuration, and alternates, whose objects are copied.

The git directories of submodules are cut in the same way, at their own HEAD. The work tree, the index and the
configuration are kept, so git works as before.
"""

from __future__ import annotations

CUT = r"""
# Reads the variables of `enter`, `work` and `private`, and sets none.
# within DIR: refuse a directory outside of the repository, unless all of this disk is the sandbox's own.
within() {
  [ "$private" = yes ] && return
  case $1/ in "$root"/*) ;; *) quit 48 "$1 lies outside of it, and is not the sandbox's own" ;; esac
}

# keep_only DIR NAME...: remove all other entries of DIR.
keep_only() {
  dir=$1
  shift
  for name; do
    set -- "$@" ! -name "$name"
    shift
  done
  [ ! -d "$dir" ] || find "$dir/." -mindepth 1 -maxdepth 1 "$@" -exec rm -rf {} +
}

# clean_objects DIR: remove all files of a directory of objects that are neither objects nor packs.
clean_objects() {
  find "$1" -type f ! \( -path '*/[0-9a-f][0-9a-f]/*' ! -name '*[!0-9a-f]*' \) \
    ! -path '*/pack/pack-*.pack' ! -path '*/pack/pack-*.idx' ! -path '*/pack/pack-*.rev' \
    ! -path '*/pack/pack-*.promisor' -exec rm -f {} +
}

# drop_remotes CONFIG: remove its remotes; of one that has objects still to send, its name stays.
drop_remotes() {
  [ -f "$1" ] && grep -q -i -e remote -e branch -- "$1" || return 0
  promisors=$(git config --file "$1" --name-only --get-regexp '^remote\..*\.promisor$' || :)
  git config --file "$1" --name-only --get-regexp '^(remote|branch)\..*\.' >"$work/keys" || :
  sed 's/\.[^.]*$//' "$work/keys" | sort -u >"$work/sections"
  while IFS= read -r section; do git config --file "$1" --remove-section "$section"; done <"$work/sections"
  for key in $promisors; do git config --file "$1" "$key" true; done
}

# cut GIT_DIR: keep of this repository what HEAD is made of. A subshell, for it has a git of its own.
cut_at_head() (
  own=$(cd -- "$1" && pwd -P)
  real() { git --git-dir="$own" --work-tree="$root" -c core.hooksPath=/dev/null "$@"; }
  {
    IFS= read -r common
    IFS= read -r head && IFS= read -r branch || head= branch=
  } <<END
$(real rev-parse --git-common-dir 'HEAD^{commit}' --symbolic-full-name HEAD 2>/dev/null || :)
END
  [ "$branch" != HEAD ] || branch=  # HEAD itself has the commit
  common=$(cd -- "$own" && cd -- "$common" && pwd -P)
  within "$common"
  [ ! -d "$common/reftable" ] || quit 48 'its refs are a reftable, which is not supported'
  [ ! -L "$common/objects" ] || quit 48 'its directory of objects is a symbolic link'
  store=$common/objects
  notes=$(mktemp -d "$work/cut-XXXXXXXX")
  : >"$notes/tags" >"$notes/alternates"

  if [ -z "$head" ]; then  # a submodule without a commit: nothing of it is used
    keep_only "$store"
  else
    set -- "$store"
    if [ -f "$store/info/alternates" ]; then  # git takes a relative one only from the repository itself
      while IFS= read -r line; do
        case $line in '' | '#'*) ;; /*) set -- "$@" "$line" ;; *) set -- "$@" "$store/$line" ;; esac
      done <"$store/info/alternates"
    fi
    new_git_dir "$notes/git" "${#head}" "$@"
    export GIT_INDEX_FILE="$own/index"
    for file in "$common/shallow" "$own"/sharedindex.*; do
      if [ -f "$file" ]; then cp -- "$file" "$GIT_DIR"; fi
    done
    missing=
    for file in "$store"/pack/*.promisor; do  # a partial clone lacks objects, and may
      if [ -e "$file" ]; then missing=--missing=allow-any; fi
    done
    real for-each-ref --format='%(objectname) %(refname)' refs/tags >"$notes/all-tags" 2>/dev/null
    if [ -s "$notes/all-tags" ]; then
      git rev-list "$head" >"$notes/commits"
      sed 's/ .*/^{commit}/' "$notes/all-tags" | git cat-file --batch-check='%(objectname)' >"$notes/peeled"
      paste -d ' ' "$notes/peeled" "$notes/all-tags" |
        awk 'NR == FNR { old[$1]; next } NF == 3 && $1 in old { print $2, $3 }' \
          "$notes/commits" - >"$notes/tags"
    fi
    { echo "$head"; cut -d ' ' -f 1 "$notes/tags"; } |
      git rev-list --objects --indexed-objects $missing --stdin >"$notes/kept"
    git cat-file --batch-all-objects --batch-check='%(objectname)' >"$notes/all"
    if [ -f "$store/info/alternates" ]; then
      git count-objects -v | sed -n 's/^alternate: //p' | grep -Fxv -- "$store" >"$notes/alternates" || :
    fi
    cut -d ' ' -f 1 "$notes/kept" | LC_ALL=C sort | LC_ALL=C comm -13 - "$notes/all" >"$notes/dropped"
    if [ -s "$notes/dropped" ] && ! find "$store/." -maxdepth 1 -type l | grep -q .; then
      (cd "$store" && sed 's|^..|&/|' "$notes/dropped" | xargs rm -f)
    fi
    if [ -s "$notes/alternates" ] ||
      git cat-file --batch-check <"$notes/dropped" | grep -q -v ' missing$'; then  # a pack has it
      # On the same disk, so that it can take the place of the old one.
      mkdir "$common/objects.new" "$common/objects.new/info" "$common/objects.new/pack"
      cp -- "$GIT_DIR/objects/info/alternates" "$common/objects.new/info"
      GIT_OBJECT_DIRECTORY=$common/objects.new \
        git pack-objects -q --delta-base-offset --window-memory=100m "$common/objects.new/pack/pack" \
        <"$notes/kept" >"$notes/pack"
      if [ -n "$missing" ]; then : >"$common/objects.new/pack/pack-$(cat "$notes/pack").promisor"; fi
      rm -rf -- "$store" "$common/objects.new/info/alternates"
      mv -- "$common/objects.new" "$store"
      while IFS= read -r alternate; do
        if [ "$private" = yes ]; then keep_only "$alternate"; fi
      done <"$notes/alternates"
    else
      clean_objects "$store"
    fi
    if [ -f "$common/shallow" ]; then
      sed 's/$/^{commit}/' "$common/shallow" | git cat-file --batch-check='%(objectname)' |
        grep -v ' ' >"$notes/shallow" || :
    fi
  fi

  worktrees=worktrees
  [ "$own" != "$common" ] || worktrees=
  keep_only "$common" HEAD config config.worktree description hooks index 'sharedindex.*' info objects \
    modules $worktrees
  if [ -d "$common/info" ]; then keep_only "$common/info" exclude attributes sparse-checkout; fi
  if [ "$own" != "$common" ]; then  # a worktree of a repository that has a HEAD of its own
    echo "$head" >"$common/HEAD"
    rm -f -- "$common/index" "$common"/sharedindex.*
    keep_only "${own%/*}" "${own##*/}"
    keep_only "$own" HEAD config.worktree index 'sharedindex.*' info commondir gitdir
  fi
  mkdir -p "$common/refs/heads" "$common/refs/tags" "$common/${branch%/*}"
  cp -- "$notes/tags" "$common/packed-refs"
  if [ -s "$notes/shallow" ]; then cp -- "$notes/shallow" "$common/shallow"; fi
  if [ -n "$branch" ]; then echo "$head" >"$common/$branch"; fi
  drop_remotes "$common/config"
  drop_remotes "$common/config.worktree"
)

cut_at_head "$real"
if [ -d "$common/modules" ]; then
  find "$common/modules" -type f -name HEAD >"$work/modules"
  while IFS= read -r file; do
    if [ -d "${file%/*}/objects" ]; then cut_at_head "${file%/*}"; fi
  done <"$work/modules"
fi
git ls-files --stage | sed -n 's/^160000 [0-9a-f]* 0	//p' >"$work/links"
while IFS= read -r link; do  # a submodule in the old way has its git directory in the work tree
  if [ -d "$link/.git" ]; then cut_at_head "$link/.git"; fi
done <"$work/links"
"""
