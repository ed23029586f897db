# Runs a command with its streams in files, and records its exit code: supervise.sh DIR
#
# DIR/command is a script that removes itself and the input, which may be secret, before it runs the program.
d=$1
echo $$ >"$d/pid"
(. "$d/command") <"$d/in" >>"$d/out" 2>>"$d/err"
printf %03d $? 1<>"$d/exit"
