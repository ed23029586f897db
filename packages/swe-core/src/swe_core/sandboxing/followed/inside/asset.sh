# Unpacks a gzipped asset and makes it read-only: asset.sh DIRECTORY [ARCHIVE], default standard input.
# If possible its owner is a user without processes, so that root without capabilities cannot change it.
mkdir -p "$1" && tar -x -z -f "${2:--}" -C "$1" || exit 73
chown -R 65432:65432 "$1" 2>/dev/null
chmod -R a-w,a+rX "$1"
