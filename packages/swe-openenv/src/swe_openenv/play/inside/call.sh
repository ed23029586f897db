# Answers one call of the host: call.sh FIRST SECOND ROOM BASE MODE ARGUMENTS...
#
# The answer is FIRST SECOND < fields > SECOND FIRST, without blanks. The two halves are apart in the call, so a
# tool that repeats its command does not repeat the answer. Fields end with ";", their parts are apart by ",":
#
#   b,PATH            the directory for files of commands (base64)
#   l,COUNT           the length of the padding of a probe
#   m,MARK            the next fields are about this command
#   o,FROM,SIZE,DATA  its standard output from byte FROM (base64); e is standard error
#   x,CODE            it has ended, and all of its output was sent
#   g,                nobody knows how it ended: its files are gone
#   k,CODE            the end of kill_tree.sh
#   n,PROGRAM         it is not there any more
#   c,DATA            a sample of what the programs do
#   f,TEXT            the call failed (base64)
#
# ROOM is the number of bytes of output that an answer may hold.
first=$1 second=$2 room=$3 base=$4 mode=$5
shift 5
full=67108864 # bytes that nobody has fetched yet, with which a command has to wait

coded() { base64 | tr -d '\r\n'; }
present() { # sets missing
  missing=
  for tool in base64 cat chmod head kill mkdir mv rm sleep stat tail tar tr; do
    command -v $tool >/dev/null || missing="$missing $tool"
  done
}
fail() {
  printf 'f,%s;' "$(printf %s "$1" | coded)"
  exit 0
}
ending() { # sets code: "..." while the command runs, nothing where nobody knows
  code=
  read -r code 2>/dev/null <"$d/exit"
  case $code in
    *.*) code=... ;; # half of it may be the old one
    [01][0-9][0-9] | 2[0-4][0-9] | 25[0-5]) ;;
    *) code= ;;
  esac
}
show() { # LETTER FILE FROM TO
  size=$(($4 - $3))
  [ "$size" -le "$room" ] || size=$room
  [ "$size" -gt 0 ] || return 0
  printf '%s,%s,%s,' "$1" "$3" "$size"
  tail -c "+$(($3 + 1))" "$2" | head -c "$size" | coded
  printf ';'
  room=$((room - size))
  left=$((left - size))
}
report() { # MARK OUT ERR
  d=$base/$1
  printf 'm,%s;' "$1"
  ending
  if [ "$code" = ... ] && read -r pid 2>/dev/null <"$d/pid"; then
    # If a command is killed together with its supervisor, its exit code is not recorded.
    read -r stat 2>/dev/null <"/proc/$pid/stat" || stat=') X'
    case ${stat##*) } in
      [ZX]*)
        ending
        [ "$code" != ... ] || code=137
        ;;
    esac
  fi
  set -- "$2" "$3" $(stat -c %s "$d/out" "$d/err" 2>/dev/null)
  if [ $# != 4 ] || [ -z "$code" ]; then
    printf 'g,;'
    return
  fi
  left=$(($3 - $1 + $4 - $2))
  show o "$d/out" "$1" "$3"
  show e "$d/err" "$2" "$4"
  if [ "$code" != ... ]; then
    [ "$left" -gt 0 ] || printf 'x,%s;' "$((1$code - 1000))"
  elif [ "$left" -gt "$full" ]; then
    [ -e "$d/stopped" ] || { : >"$d/stopped" && kill -STOP "-$pid" 2>/dev/null; }
  elif [ -e "$d/stopped" ]; then
    rm -f "$d/stopped" && kill -CONT "-$pid" 2>/dev/null
  fi
}

printf '%s%s<' "$first" "$second"
trap 'printf ">%s%s\n" "$second" "$first"' EXIT
case $mode in
  probe) # PADDING
    printf 'l,%s;o,0,%s,' "${#1}" "$room"
    head -c "$room" /dev/zero | coded
    printf ';'
    ;;
  setup) # NAME HOME WORKDIR
    present
    [ -z "$missing" ] || fail "it has no$missing"
    [ -d "$3" ] || fail "it has no directory $3"
    mkdir -p "$2" 2>/dev/null && chmod 700 "$2" 2>/dev/null || fail "$2 cannot be made"
    for place in /var/tmp /tmp; do
      if mkdir -p "$place/$1" 2>/dev/null && chmod 700 "$place/$1"; then
        printf 'b,%s;' "$(printf %s "$place/$1" | coded)"
        exit 0
      fi
    done
    fail 'neither /var/tmp nor /tmp can be written'
    ;;
  put) # MARK FILE DATA: append to a file of a command
    mkdir -p "$base/$1" && printf %s "$3" | base64 -d >>"$base/$1/$2" || fail 'its disk takes no more'
    ;;
  run) # MARK COMMAND INPUT SUPERVISE OVER: COMMAND and INPUT are base64, or "-" where they were put
    for over in $5; do rm -rf "${base:?}/$over"; done
    d=$base/$1
    mkdir -p "$d" || fail 'its disk takes no more'
    [ "$2" = - ] || printf %s "$2" | base64 -d >"$d/command" || fail 'its disk takes no more'
    [ "$3" = - ] || printf %s "$3" | base64 -d >"$d/in" || fail 'its disk takes no more'
    echo ... >"$d/exit" && : >"$d/out" && : >"$d/err" || fail 'its disk takes no more'
    # A session of its own, because the tool may end what it started when a call is over.
    SWE_EXEC_ID=$1 $(command -v setsid) sh -c "$4" sh "$d" </dev/null >/dev/null 2>&1 &
    for nap in 0.005 0.01 0.02 0.04; do
      sleep $nap
      ending
      [ "$code" = ... ] || break
    done
    report "$1" 0 0
    ;;
  poll) # MARK OUT ERR...
    while [ $# -ge 3 ]; do
      report "$1" "$2" "$3"
      shift 3
    done
    ;;
  kill) # KILL_TREE ID MARK...: kill what has an ID that begins so
    sh -c "$1" sh "$2"
    printf 'k,%s;' $?
    shift 2
    for mark; do
      d=$base/$mark
      ending
      [ "$code" != ... ] || printf 137 1<>"$d/exit"
    done
    ;;
  check) # in the shell of the tool itself, with as few programs as can be
    present
    command -v sh >/dev/null || missing="$missing sh"
    for tool in $missing; do printf 'n,%s;' $tool; done
    printf 'c,%s;' "$(sh -c 'head -c 5 /dev/zero | tail -c +1' | coded)"
    ;;
  remove)
    rm -rf "${base:?}"
    ;;
esac
exit 0
