#!/usr/bin/env bash
# image.sh PROGRAMS FOLDER REGISTRY VERSION: every image of images/ as FOLDER/fleetjob-NAME.tar,
# with its root folder beside it as FOLDER/fleetjob-NAME.
set -euo pipefail
[ $# = 4 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
programs=$1 folder=$2 registry=$3 version=$4
tools=$(dirname "$0")
for recipe in "$tools"/../images/*; do
    name=fleetjob-${recipe##*/}
    "$tools/image-root.sh" "$recipe" "$programs" "$folder/$name"
    "$tools/image-pack.sh" "$recipe" "$folder/$name" "$registry/$name:$version" "$folder/$name.tar"
done
