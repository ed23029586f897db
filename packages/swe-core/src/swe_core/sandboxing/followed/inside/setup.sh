# Examines a sandbox and creates its directories: setup.sh NAME HOME WORKDIR PLACE...
#
# Prints the directory for the files of commands, below the first writable PLACE, and a prefix of commands that
# drops capabilities. The prefix is empty if the image lacks setpriv(1) of util-linux, or if WORKDIR belongs to
# another user, because root needs capabilities for its files.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
missing=
for tool in base64 cat chmod dd mkdir mv rm sleep stat tar wc; do
  command -v $tool >/dev/null || missing="$missing $tool"
done
[ -z "$missing" ] || { echo "its image has no$missing" >&2; exit 69; }
mkdir -p "$2" "$3" && chmod 700 "$2" || exit 73
name=$1 workdir=$3
shift 3
base=
for place in "$@"; do
  place=${place:-$HOME}
  base=$({ mkdir -p "$place/$name" && chmod 700 "$place/$name" && cd "$place/$name" && pwd -P; } 2>/dev/null) && break
done
[ -n "$base" ] || { echo "none of $* can be written" >&2; exit 73; }
echo "$base"
if [ "$(stat -c %u "$workdir")" = "$(id -u)" ]; then
  set -- "$(command -v setpriv)" --nnp --inh-caps=-all --bounding-set=-all
  "$@" true 2>/dev/null && echo "$*"
fi
exit 0
