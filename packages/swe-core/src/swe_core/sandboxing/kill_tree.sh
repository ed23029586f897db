# Kills one command and all that it started: kill_tree.sh ID
#
# Its processes are those whose environment carries SWE_EXEC_ID=ID, wherever they went (also into a session
# or a process group of their own), and the descendants of those, whatever environment they gave themselves.
# Only what the shell itself can do: nothing is forked, so it works where no process may be added.
# Ends with 0 when none is left, with 1 when they multiply faster than they are killed.
marker=SWE_EXEC_ID=$1
known=' ' # those that were found before, some of which may still be dying
births=0  # rounds that found others
while [ "$births" -lt 10 ]; do
  found=' '
  for directory in /proc/[0-9]*; do
    while read -r line || [ -n "$line" ]; do
      case $line in
        *"$marker"*)
          found="$found${directory#/proc/} "
          break
          ;;
      esac
    done 2>/dev/null <"$directory/environ"
  done
  grew=1
  while [ -n "$grew" ]; do
    grew=
    for directory in /proc/[0-9]*; do
      case $found in *" ${directory#/proc/} "*) continue ;; esac
      read -r stat 2>/dev/null <"$directory/stat" || continue
      set -- ${stat##*) } # state, parent, ...
      [ "$1" = Z ] && continue
      case $found in
        *" $2 "*)
          found="$found${directory#/proc/} "
          grew=1
          ;;
      esac
    done
  done
  [ "$found" = ' ' ] && exit 0
  kill -9 $found 2>/dev/null
  born=
  for process in $found; do
    case $known in *" $process "*) ;; *) known="$known$process " born=1 ;; esac
  done
  [ -z "$born" ] || births=$((births + 1))
done
exit 1
