#!/usr/bin/env bash
# image.sh [OPTION…] ARCHIVE NAME PROGRAM [ARGUMENT…]: an image of one program, for tests of the
# cluster. ARCHIVE is a docker archive that `cluster load` takes, NAME its reference with tag; the
# program becomes /bin/<its name> and the ENTRYPOINT, the arguments its CMD.
#   --with FILE        FILE, too, where it lies here, with loader and libraries that it needs
#   --user UID         the user it runs as
#   --folder PATH      where it runs
#   --no-entrypoint    without ENTRYPOINT and CMD
set -euo pipefail
with=() options=() has_entrypoint=1
while [[ ${1:-} == --* ]]; do
    case $1 in
    --with) with+=("$2"); shift ;;
    --user) options+=(--config.user "$2"); shift ;;
    --folder) options+=(--config.workingdir "$2"); shift ;;
    --no-entrypoint) has_entrypoint=0 ;;
    *) echo "image.sh: unknown option $1" >&2; exit 2 ;;
    esac
    shift
done
[ $# -ge 3 ] || { sed -n '2,8s/^# //p' "$0" >&2; exit 2; }
archive=$1 name=$2 program=$3
shift 3
temporary=$(mktemp -d)
trap 'rm -rf "$temporary"' EXIT

insert() { # insert FILE PATH
    umoci insert --image "$temporary/oci:1" "$1" "$2" 2>/dev/null
}

umoci init --layout "$temporary/oci"
umoci new --image "$temporary/oci:1"
insert "$program" "/bin/$(basename "$program")"
for file in "${with[@]}"; do
    insert "$(realpath "$file")" "$file"
    while read -r library; do
        insert "$(realpath "$library")" "$library"
    done < <(ldd "$file" | sed -nE 's/^\t(.* => )?(\/[^ ]+) \(0x.*/\2/p')
done
if [ $has_entrypoint = 1 ]; then
    options+=(--config.entrypoint "/bin/$(basename "$program")")
    for argument in "$@"; do
        options+=(--config.cmd "$argument")
    done
fi
[ ${#options[@]} = 0 ] || umoci config --image "$temporary/oci:1" "${options[@]}"
rm -f "$archive"
skopeo --insecure-policy copy --quiet "oci:$temporary/oci:1" "docker-archive:$archive:$name"
