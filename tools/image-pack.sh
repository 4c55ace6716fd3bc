#!/usr/bin/env bash
# image-pack.sh RECIPE ROOT NAME:TAG ARCHIVE: an image archive of a root folder, without a daemon.
#
# The archive is an OCI layout (containerd, skopeo, podman) with Docker's manifest.json beside it,
# so that `docker load` takes it, too. One layer. The same root gives the same bytes: names are
# sorted, times are SOURCE_DATE_EPOCH (0), owners are root.
set -euo pipefail
[ $# = 4 ] || { sed -n '2s/^# //p' "$0" >&2; exit 2; }
recipe=$1 root=$2 name=$3 archive=$4
export LC_ALL=C
umask 022
epoch=${SOURCE_DATE_EPOCH:-0}
layout=$(mktemp -d)
trap 'rm -rf "$layout"' EXIT

value() { # value WORD: of the recipe
    awk -v word="$1" '$1 == word {print $2; exit}' "$recipe"
}

pack() { # pack FOLDER: as tar, always the same bytes
    local names
    mapfile -t names < <(ls -A "$1")
    tar --format=gnu --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner -cf - -C \
        "$1" "${names[@]}"
}

# Move a file among the blobs; prints its digest.
keep() { # keep FILE
    local digest
    digest=$(sha256sum "$1" | cut -d' ' -f1)
    mv "$1" "$layout/blobs/sha256/$digest"
    printf '%s\n' "$digest"
}

size() { # size DIGEST
    stat -c %s "$layout/blobs/sha256/$1"
}

mkdir -p "$layout/blobs/sha256"
pack "$root" >"$layout/layer"
unpacked=$(sha256sum "$layout/layer" | cut -d' ' -f1)
gzip -n -6 "$layout/layer"
layer=$(keep "$layout/layer.gz")

created=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
cat >"$layout/config" <<END
{"architecture": "amd64", "os": "linux", "created": "$created",
 "config": {"User": "$(value user)", "Entrypoint": ["$(value entrypoint)"], "Env": ["PATH=/fleetjob/bin"],
  "WorkingDir": "/", "Labels": {"org.opencontainers.image.title": "${recipe##*/}",
  "org.opencontainers.image.version": "${name##*:}", "org.opencontainers.image.licenses": "Apache-2.0"}},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$unpacked"]},
 "history": [{"created": "$created", "created_by": "images/${recipe##*/}"}]}
END
config=$(keep "$layout/config")
cat >"$layout/manifest" <<END
{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
 "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
  "digest": "sha256:$config", "size": $(size "$config")},
 "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
  "digest": "sha256:$layer", "size": $(size "$layer")}]}
END
manifest=$(keep "$layout/manifest")
cat >"$layout/index.json" <<END
{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
 "manifests": [{"mediaType": "application/vnd.oci.image.manifest.v1+json",
  "digest": "sha256:$manifest", "size": $(size "$manifest"),
  "platform": {"architecture": "amd64", "os": "linux"},
  "annotations": {"io.containerd.image.name": "$name", "org.opencontainers.image.ref.name": "${name##*:}"}}]}
END
cat >"$layout/manifest.json" <<END
[{"Config": "blobs/sha256/$config", "RepoTags": ["$name"], "Layers": ["blobs/sha256/$layer"]}]
END
printf '{"imageLayoutVersion": "1.0.0"}' >"$layout/oci-layout"
mkdir -p "$(dirname "$archive")"
pack "$layout" >"$archive.new"
mv "$archive.new" "$archive"
printf '  %-40s %5.1f MB unpacked, %4.1f MB to pull, sha256:%s\n' "$name" \
    "$(du -sb --apparent-size "$root" | awk '{print $1 / 1e6}')" \
    "$(awk -v b="$(size "$layer")" 'BEGIN {print b / 1e6}')" "$manifest"
