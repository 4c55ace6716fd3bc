#!/usr/bin/env bash
# image.sh PROGRAMS FOLDER REGISTRY VERSION RECIPE…: images of images/ as
# FOLDER/fleetjob-RECIPE.tar, with their root folders beside them as FOLDER/fleetjob-RECIPE.
set -euo pipefail
[ $# -gt 4 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
programs=$1 folder=$2 registry=$3 version=$4
tools=$(dirname "$0")
for name in "${@:5}"; do
    recipe=$tools/../images/$name
    name=fleetjob-$name
    "$tools/image-root.sh" "$recipe" "$programs" "$folder/$name"
    "$tools/image-pack.sh" "$recipe" "$folder/$name" "$registry/$name:$version" "$folder/$name.tar"
done
