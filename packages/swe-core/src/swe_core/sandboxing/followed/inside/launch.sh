# Starts one command exactly once, however often it is called, and then follows it:
#   launch.sh BASE MARK STDIN CWD DROP SUPERVISE FOLLOW OVER ARGV...
#
# STDIN is "none"; "inline N": this script's standard input has N bytes in base64; or "parts N": the files in.* of
# the command's directory have it, in order. DROP is a prefix of the command that drops capabilities. OVER names
# the directories of ended commands. The environment of this script is the command's. Exit code 73, with the
# reason: the command cannot be started.
path=$PATH
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
base=$1 mark=$2 stdin=$3 cwd=$4 drop=$5 supervise=$6 follow=$7
for over in $8; do rm -rf "$base/$over"; done
shift 8
d=$base/$mark
mkdir -p "$d" || exit 73
take() { # puts its standard input together, in a file of our own
  case $stdin in
    inline*) base64 -d >"$d/stdin.$$" ;;
    *) cat "$d"/in.* >"$d/stdin.$$" ;;
  esac || return
  size=$(wc -c 2>/dev/null <"$d/stdin.$$") # nothing, where the other request has removed it
  if [ "$((${size:-0}))" != "${stdin#* }" ]; then
    echo "its standard input did not arrive whole" >&2
    return 1
  fi
}
if [ ! -e "$d/run" ]; then
  # The same request may arrive twice, if its first answer was lost, and the other one may be faster.
  [ "$stdin" = none ] || take || [ -e "$d/run" ] || exit 73
  # Overwritten when the command ends, which works on a full disk too.
  echo ... >"$d/exit.$$" && : >>"$d/out" && : >>"$d/err" || exit 73
  # A session of its own, because the server may end processes of a request together with the request.
  export SWE_EXEC_ID="$mark"
  $(command -v setsid) /bin/sh -c "$supervise" sh "$d" $$ "$path" "$cwd" "$drop" "$@" </dev/null >/dev/null 2>&1 &
  unset SWE_EXEC_ID
fi
exec /bin/sh -c "$follow" sh "$d" 0 0 new
