# Kills one command and all its descendants, and records the kill: kill.sh KILL_TREE MARK DIR
# Exit code 1: they multiply faster than they are killed.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
/bin/sh -c "$1" sh "$2" || exit 1
read -r code 2>/dev/null <"$3/exit" || exit 0
[ "$code" != ... ] || printf 137 1<>"$3/exit"
