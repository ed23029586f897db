# Runs a command with its streams in files, and records its exit code:
#   supervise.sh DIR REQUEST PATH CWD DROP ARGV...
#
# Only the first supervisor of a command does so; REQUEST names the files of this one.
d=$1 request=$2 path=$3 cwd=$4 drop=$5
shift 5
if ! mkdir "$d/run" 2>/dev/null || ! mv "$d/exit.$request" "$d/exit"; then
  rm -f "$d/exit.$request" "$d/stdin.$request"
  exit
fi
echo $$ >"$d/pid"
(
  # Standard input may be secret: the command has it open, and its file is deleted.
  if [ -e "$d/stdin.$request" ]; then
    exec <"$d/stdin.$request"
    rm -f "$d"/in.* "$d"/stdin.*
  fi
  cd "$cwd" || exit 126
  PATH=$path
  exec $drop "$@"
) >>"$d/out" 2>>"$d/err"
printf %03d $? 1<>"$d/exit"
