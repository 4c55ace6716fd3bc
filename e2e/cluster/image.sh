#!/usr/bin/env bash
# image.sh ARCHIVE NAME PROGRAM [ARGUMENT…]: an image of one static program, for tests of the
# cluster. ARCHIVE is a docker archive that `cluster load` takes, NAME its reference with tag; the
# program becomes /bin/<its name> and, with the arguments, the command.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
archive=$1 name=$2 program=$3
shift 3
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT
umoci init --layout "$temporary/oci"
umoci new --image "$temporary/oci:1"
umoci insert --image "$temporary/oci:1" "$program" "/bin/$(basename "$program")" 2>/dev/null
arguments=(--config.entrypoint "/bin/$(basename "$program")")
for argument in "$@"; do
    arguments+=(--config.cmd "$argument")
done
umoci config --image "$temporary/oci:1" "${arguments[@]}"
rm -f "$archive"
skopeo --insecure-policy copy --quiet "oci:$temporary/oci:1" "docker-archive:$archive:$name"
