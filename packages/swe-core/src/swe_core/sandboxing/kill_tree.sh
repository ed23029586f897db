# Kills one command and all its descendants: kill_tree.sh ID
#
# Its processes are those with SWE_EXEC_ID=ID in their environment, in any session or process group, and their
# descendants, whatever their environment. The script uses shell built-ins only and forks nothing, so it works
# at the limit of processes. Exit code 0: none is left; 1: they multiply faster than they are killed.
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
