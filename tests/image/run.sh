#!/usr/bin/env bash
# Goal: an image holds everything its programs need, and nothing depends on where it was made.
# Method: the images' own roots and archives. Programs run by chroot in a root that holds nothing
# but the image; a whole job is trained there, so that what is opened at run time (plug-in, trainer,
# loader) is met. Needs root and an x86-64 Debian.
#
#   tests/image/run.sh [FOLDER]     what `make image` has built (build/images)
#
# The last line is "N passed, N failed, N skipped".
set -uo pipefail
repository=$(cd "$(dirname "$0")/../.." && pwd)
images=$(realpath "${1:-$repository/build/images}")
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
passed=0 failed=0 skipped=0
chroot=$(command -v chroot)
loader=/fleetjob/lib/ld-linux-x86-64.so.2

check() { # check NAME COMMAND…: one test; its output is shown if it fails
    local name=$1
    shift
    if "$@" >"$work/output" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf '  FAIL  %s\n' "$name"
        sed 's/^/    | /' "$work/output"
    fi
}

expect() { # expect EXPECTED ACTUAL WHAT
    [ "$1" = "$2" ] || { printf '%s: expected %s\n%*s actual %s\n' "$3" "$1" "${#3}" '' "$2";
        return 1; }
}

# In a root, as the image's user, with an empty environment; the output must match.
starts_in() { # starts_in ROOT PATTERN COMMAND…
    local root=$1 pattern=$2 output
    shift 2
    output=$(env -i "$chroot" --userspec=65532:65532 "$root" "$@" 2>&1) || {
        echo "$* ended with $?: $output"; return 1; }
    # shellcheck disable=SC2053 # a pattern it is
    [[ $output == $pattern ]] || { echo "$*: expected $pattern, actual $output"; return 1; }
}

# With what every container has besides: /proc, /dev with a few devices and /dev/shm.
in_container() { # in_container ROOT COMMAND…
    mkdir -p "$1"/{proc,dev}
    # shellcheck disable=SC2016 # expanded inside
    timeout 600 unshare --mount --pid --fork --kill-child bash -c '
        root=$1 chroot=$2
        shift 2
        mount -t proc proc "$root/proc" && mount -t tmpfs dev "$root/dev" && mkdir -m 1777 "$root/dev/shm" || exit
        for device in null zero random urandom; do
            touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device" || exit
        done
        exec env -i "$chroot" --userspec=65532:65532 "$root" "$@"' - "$1" "$chroot" "${@:2}"
}

# ---- programs in an otherwise empty root --------------------------------------------------------

# Each object of the image finds all its libraries in /fleetjob/lib, by the image's own loader.
is_closed() { # is_closed ROOT
    local root=$1 object listed bad=0
    while read -r object; do
        listed=$(env -i "$chroot" "$root" "$loader" --library-path /fleetjob/lib --list "$object" 2>&1)
        if grep -vE 'linux-vdso|=> /fleetjob/lib/|^\s*/fleetjob/lib/ld-linux|statically linked' \
            <<<"$listed"; then
            echo "… of $object"
            bad=1
        fi
    done < <(cd "$root" && find fleetjob usr/lib -type f \
        \( -path '*/bin/*' -o -name '*.so*' \) -not -name 'ld-linux*' | sed 's/^/\//')
    return $bad
}

# A library that goes into programs of any C library depends on none.
depends_on_nothing() { # depends_on_nothing LIBRARY
    ! readelf -dW "$1" | grep -E 'NEEDED|VERNEED|RELR' && ! nm -D --undefined-only "$1" | grep .
}

# An image that sets LD_LIBRARY_PATH to libraries of its own does not disturb the closure.
ignores_foreign_libraries() { # ignores_foreign_libraries ROOT
    local library
    cp -a "$1" "$work/foreign"
    mkdir -p "$work/foreign/opt/lib"
    for library in "$1"/fleetjob/lib/lib*; do
        echo "not a library" >"$work/foreign/opt/lib/${library##*/}"
    done
    env -i LD_LIBRARY_PATH=/opt/lib "$chroot" "$work/foreign" /fleetjob/bin/fleetjob-agent --version
}

installs_itself() { # installs_itself ROOT
    mkdir -p "$work/init/target"
    cp -a "$1/fleetjob" "$work/init/"
    chown 65532:65532 "$work/init/target"
    in_container "$work/init" /fleetjob/bin/fleetjob-agent --install /target || return 1
    rmdir "$work/init"/{proc,dev}
    mv "$work/init/target" "$work/init/copy"
    diff -r "$1/fleetjob" "$work/init/copy" || return 1
    mkdir "$work/user"
    mv "$work/init/copy" "$work/user/fleetjob"
    starts_in "$work/user" 'fleetjob-agent *' /fleetjob/bin/fleetjob-agent --version &&
        starts_in "$work/user" 'fleetjob-train *' /fleetjob/bin/fleetjob-train --version
}

# Hub, TLS, agents, trainers, collectives, checkpoint: all from the image, as its user.
trains() { # trains ROOT
    cp -a "$1" "$work/train"
    mkdir -p "$work/train"/{data,checkpoints}
    chown 65532:65532 "$work/train/checkpoints"
    head -c 20000 "$repository/README.md" >"$work/train/data/text"
    sed -e 's/^    replicas:.*/    replicas: 2/' -e 's/^      - {name: .*//' \
        -e 's/^    volumes:.*//' \
        -e 's|/usr/share/common-licenses|/data/text|' -e 's|/tmp/fleetjob|/checkpoints|' \
        -e 's/^    steps:.*/    steps: 3/' -e 's/layers: 4/layers: 1/' \
        "$repository/docs/examples/gpt-text.yaml" >"$work/train/data/job.yaml"
    in_container "$work/train" /fleetjob/bin/fleetjob run /data/job.yaml --json || return 1
    find "$work/train/checkpoints/gpt-text" -name '*.safetensors' | grep .
}

# The libraries and the font that draw are in the image, with their licences.
draws() { # draws ROOT
    local package
    in_container "$work/train" /fleetjob/bin/fleetjob curve /checkpoints/gpt-text -o - \
        --format png >"$work/curve.png" || return 1
    expect 89504e470d0a1a0a "$(head -c 8 "$work/curve.png" | od -An -tx1 | tr -d ' \n')" signature &&
        expect yes "$([ "$(stat -c %s "$work/curve.png")" -gt 10000 ] && echo yes)" picture ||
        return 1
    for package in fonts-dejavu-core libfreetype6 libpng16-16; do
        [ -s "$1/usr/share/doc/$package/copyright" ] || { echo "no licence of $package"; return 1; }
    done
}

# Libcurl finds certificates of public servers where it looks for them.
has_certificates() { # has_certificates ROOT
    local file=$1/etc/ssl/certs/ca-certificates.crt
    expect yes "$([ "$(grep -c 'BEGIN CERTIFICATE' "$file")" -gt 50 ] && echo yes)" certificates &&
        expect yes "$([ -s "$1/usr/share/doc/ca-certificates/copyright" ] && echo yes)" licence &&
        openssl x509 -noout -subject -in "$file"
}

# ---- archives ------------------------------------------------------------------------------------

# Every blob has the digest of its name; the layer unpacks to the root; user and command are right.
is_sound() { # is_sound NAME
    local folder=$work/oci-$1 blob layer
    mkdir -p "$folder"
    tar -C "$folder" -xf "$images/fleetjob-$1.tar" || return 1
    for blob in "$folder"/blobs/sha256/*; do
        expect "${blob##*/}" "$(sha256sum "$blob" | cut -d' ' -f1)" "digest of a blob" || return 1
    done
    python3 - "$folder" "$repository/images/$1" <<'END' || return 1
import json, sys
folder, recipe = sys.argv[1:]
def blob(descriptor):
    text = open(f"{folder}/blobs/{descriptor['digest'].replace(':', '/')}", "rb").read()
    assert len(text) == descriptor["size"], (descriptor, len(text))
    return text
words = dict(line.split()[:2] for line in open(recipe) if line.strip() and line[0] != "#")
index = json.load(open(f"{folder}/index.json"))
manifest = json.loads(blob(index["manifests"][0]))
config = json.loads(blob(manifest["config"]))
import gzip, hashlib
layer = gzip.decompress(blob(manifest["layers"][0]))
assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()], config
assert config["config"]["User"] == words["user"] and not words["user"].startswith("0"), config
assert config["config"]["Entrypoint"] == [words["entrypoint"]], config
docker = json.load(open(f"{folder}/manifest.json"))
assert docker[0]["Config"].endswith(manifest["config"]["digest"][7:]), docker
END
    mkdir -p "$folder/root"
    for layer in "$folder"/blobs/sha256/*; do
        gzip -t "$layer" 2>/dev/null && tar -C "$folder/root" -xzf "$layer"
    done
    diff -r --no-dereference "$images/fleetjob-$1" "$folder/root"
}

# From the same programs the same bytes, at any time, with any mask and any order of files.
is_reproducible() { # is_reproducible NAME
    local programs=$work/programs-$1 name
    name=$(python3 -c 'import json, sys; print(json.load(sys.stdin)[0]["RepoTags"][0])' <"$work/oci-$1/manifest.json")
    mkdir -p "$programs"
    cp "$images/fleetjob-$1"/fleetjob/bin/* "$programs/"
    awk '$1 == "preload" {print $2}' "$repository/images/$1" | while read -r library; do
        cp "$images/fleetjob-$1/fleetjob/lib/$library" "$programs/"
    done
    (umask 077 && touch -d yesterday "$programs"/* &&
        "$repository/tools/image-root.sh" "$repository/images/$1" "$programs" "$work/again-$1" &&
        "$repository/tools/image-pack.sh" "$repository/images/$1" "$work/again-$1" "$name" "$work/again-$1.tar") || return 1
    expect "$(sha256sum <"$images/fleetjob-$1.tar")" "$(sha256sum <"$work/again-$1.tar")" \
        "digest of the archive"
}

is_read_by_skopeo() { # is_read_by_skopeo NAME
    skopeo inspect "oci-archive:$images/fleetjob-$1.tar" &&
        skopeo inspect "docker-archive:$images/fleetjob-$1.tar"
}

# The Dockerfile ends in the same: the same recipe makes the root; user and entry are the recipe's.
agrees_with_dockerfile() { # agrees_with_dockerfile NAME
    local recipe=$repository/images/$1 stage
    stage=$(awk -v stage="$1" 'toupper($1) == "FROM" {inside = $NF == stage} inside' "$repository/Dockerfile")
    expect "USER $(awk '$1 == "user" {print $2}' "$recipe")" "$(grep '^USER' <<<"$stage")" user &&
        expect "ENTRYPOINT [\"$(awk '$1 == "entrypoint" {print $2}' "$recipe")\"]" \
        "$(grep '^ENTRYPOINT' <<<"$stage")" entry &&
        grep -E "^COPY --from=build(-cuda)? /image/$1/ /\$" <<<"$stage" &&
        grep -F "tools/image-root.sh images/$1 " "$repository/Dockerfile"
}

[ "$(id -u)" = 0 ] || { echo "tests/image/run.sh needs root for chroot";
    echo "0 passed, 0 failed, 1 skipped"; exit 0; }
for recipe in "$repository"/images/*; do
    name=${recipe##*/} root=$images/fleetjob-${recipe##*/}
    check "$name: the Dockerfile agrees" agrees_with_dockerfile "$name"
    # The libraries of this image are gigabytes of wheels; everything else must have been made.
    if [ "$name" = runtime-cuda ] && [ ! -e "$root.tar" ]; then
        echo "  skip  $name was not made: make image-cuda"
        skipped=$((skipped + 1))
        continue
    fi
    check "$name was made" test -d "$root" -a -s "$root.tar"
    while read -r program; do
        check "$program starts in an empty root" starts_in "$root" "$program *" \
            "/fleetjob/bin/$program" --version
        check "$program starts by the loader" starts_in "$root" "$program *" "$loader" \
            --library-path /fleetjob/lib "/fleetjob/bin/$program" --version
    done < <(awk '$1 == "program" {print $2}' "$recipe")
    while read -r library; do
        check "$library depends on nothing" depends_on_nothing "$root/fleetjob/lib/$library"
    done < <(awk '$1 == "preload" {print $2}' "$recipe")
    check "$name needs nothing but itself" is_closed "$root"
    check "$name: the archive is sound" is_sound "$name"
    check "$name: made again, the same bytes" is_reproducible "$name"
    ! command -v skopeo >/dev/null ||
        check "$name: skopeo reads the archive" is_read_by_skopeo "$name"
done
check "another image's libraries do not disturb" ignores_foreign_libraries \
    "$images/fleetjob-runtime"
check "the agent installs its closure" installs_itself "$images/fleetjob-runtime"
check "a job trains inside the image" trains "$images/fleetjob-runtime"
check "its curve is drawn inside the image" draws "$images/fleetjob-runtime"
check "it has certificates for stores with TLS" has_certificates "$images/fleetjob-runtime"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
