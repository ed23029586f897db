# Prints a command's output in base64 from these offsets, and its end: follow.sh DIR OUT ERR [new]
#
#   .s           the command has started
#   .o N, .e N   the next lines of base64 are standard output, or error, from byte N
#   .t           no new output for a while
#   .x CODE      the command has ended with this exit code
#
# A later call with other offsets resumes there. Exit code 74: the files no longer exist; 75: the "new" command
# has not started after ten seconds.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:$PATH
d=$1 out=$2 err=$3 new=$4
chunk=1048576  # bytes that are encoded at a time
full=67108864  # bytes that nobody has fetched yet, with which the command has to wait
pause=0.005 naps=0

ending() { # sets code: "..." while it runs, nothing where nobody knows
  code=
  read -r code 2>/dev/null <"$d/exit"
  case $code in *.*) code=... ;; esac  # some shells read bytewise: half of it may be the old one, the first half
}
nap() {
  sleep $pause 2>/dev/null || sleep 1
  naps=$((naps + 1))
  case $naps in 8) pause=0.01 ;; 16) pause=0.02 ;; 24) pause=0.05 ;; 32) pause=0.1 ;; 40) pause=0.25 ;; esac
}
show() { # LETTER FROM TO, and the file's descriptor as standard input
  at=$2
  while [ "$at" -lt "$3" ]; do
    size=$(($3 - at))
    [ "$size" -le "$chunk" ] || size=$chunk
    printf '.%s %s\n' "$1" "$at"
    dd bs="$size" count=1 2>/dev/null | base64
    at=$((at + size))
  done
}
skip() { # BYTES, and a descriptor as standard input
  dd bs=65536 skip=$(($1 / 65536)) count=0 2>/dev/null
  [ $(($1 % 65536)) = 0 ] || dd bs=$(($1 % 65536)) count=1 >/dev/null 2>&1
}

until [ -s "$d/pid" ]; do
  [ -n "$new" ] && [ -d "$d" ] || exit 74
  [ "$naps" -lt 80 ] || exit 75
  nap
done
read -r pid <"$d/pid"
command exec 3<"$d/out" 4<"$d/err" || exit 74  # a failed exec alone ends some shells with another code
skip "$out" <&3
skip "$err" <&4
echo .s
pause=0.005 naps=0 quiet=0
while :; do
  ending
  if [ "$code" = ... ]; then
    # If a command is killed together with its supervisor, its exit code is not recorded.
    read -r stat 2>/dev/null <"/proc/$pid/stat" || stat=') X'
    case ${stat##*) } in
      [ZX]*)
        ending
        [ "$code" != ... ] || code=137
        ;;
    esac
  fi
  set -- $(stat -c %s "$d/out" "$d/err" 2>/dev/null)
  [ $# = 2 ] && [ -n "$code" ] || exit 74
  if [ $(($1 - out + $2 - err)) -gt "$full" ]; then
    [ -e "$d/stopped" ] || { : >"$d/stopped" && kill -STOP "-$pid" 2>/dev/null; }
  fi
  if [ "$1" -gt "$out" ] || [ "$2" -gt "$err" ]; then
    quiet=0
    show o "$out" "$1" <&3
    show e "$err" "$2" <&4
    out=$1 err=$2
    [ ! -e "$d/stopped" ] || { rm "$d/stopped" && kill -CONT "-$pid" 2>/dev/null; }
  fi
  if [ "$code" != ... ]; then
    echo ".x $((1$code - 1000))"
    exit 0
  fi
  nap
  quiet=$((quiet + 1))
  [ $((quiet % 40)) != 0 ] || echo .t
done
