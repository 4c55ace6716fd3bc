#!/usr/bin/env bash
# folder_image.sh ARCHIVE NAME FOLDER [TAR-ARGUMENT…]: an image made from folders, without a build:
# what FOLDER has, and what tar packs of this machine's root by the arguments (paths without the
# first /, --exclude=…), where it lies here. ARCHIVE is a docker archive that `cluster load` takes.
# Nothing is compressed, since the archive goes to nodes of this machine.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
archive=$1 name=$2 folder=$3
shift 3
temporary=$(mktemp -d "$(dirname "$archive")/folder_image.XXXXXX")
trap 'rm -rf "$temporary"' EXIT

tar --owner=0 --group=0 --numeric-owner -cf "$temporary/layer.tar" -C "$folder" . -C / "$@"
digest=$(sha256sum "$temporary/layer.tar" | cut -d' ' -f1)
cat >"$temporary/config.json" <<END
{"architecture": "amd64", "os": "linux", "config": {"WorkingDir": "/"},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$digest"]}}
END
cat >"$temporary/manifest.json" <<END
[{"Config": "config.json", "RepoTags": ["$name"], "Layers": ["layer.tar"]}]
END
tar -cf "$archive" -C "$temporary" manifest.json config.json layer.tar
