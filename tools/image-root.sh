#!/usr/bin/env bash
# image-root.sh RECIPE PROGRAMS ROOT: the root folder of an image, from a recipe of images/ and the
# programs that `make closure` has linked.
#
# A closure needs nothing of the image it lies in: the programs name their loader and their
# libraries by /fleetjob/lib (the Makefile's CLOSURE_LDFLAGS), and everything they open is copied
# there. What a library's package says of its licence, and the package's record, come along for
# people and scanners.
#
# CUDA_LIBRARIES is the folder of `tools/cuda-toolkit.sh libraries`, for recipes with wheels.
set -euo pipefail
[ $# = 3 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
recipe=$1 programs=$2 root=$3
umask 022
export LC_ALL=C

die() {
    printf 'image-root.sh: %s: %s\n' "$recipe" "$*" >&2
    exit 1
}

# The file behind a library's name, as the loader finds it here.
find_library() { # find_library NAME
    local path
    path=$(/sbin/ldconfig -p | awk -v name="$1" '$1 == name && /x86-64/ {print $NF; exit}')
    [ -n "$path" ] || die "library $1 is not installed on this machine"
    printf '%s\n' "$path"
}

# The Debian package of a file: its record and its licence. Packages from before the merge of /usr
# are listed without it.
add_package() { # add_package PATH
    local path=$1 package='' other
    command -v dpkg-query >/dev/null || return 0
    for other in "$path" "/usr$path" "${path#/usr}"; do
        package=$(dpkg-query -S "$other" 2>/dev/null | sed -n '1s/[:,].*//p') &&
            [ -n "$package" ] && break
    done
    [ -n "$package" ] || die "$path belongs to no Debian package"
    [ ! -e "$root/var/lib/dpkg/status.d/$package" ] || return 0
    mkdir -p "$root/var/lib/dpkg/status.d" "$root/usr/share/doc/$package"
    dpkg-query -s "$package" >"$root/var/lib/dpkg/status.d/$package"
    cp -L "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"
}

add_library() { # add_library PATH
    local path=$1 target
    target=$root/fleetjob/lib/${path##*/}
    [ ! -e "$target" ] || return 0
    install -D -m 644 "$path" "$target"
    add_package "$path"
    add_libraries_of "$path"
}

# A library of a wheel, with its licence. Its own libraries are Debian's.
add_wheel() { # add_wheel WHEEL PATH
    local path=${CUDA_LIBRARIES:?names the folder of the wheels}/nvidia/$2 about
    [ -f "$path" ] || die "$path does not exist"
    install -D -m 644 "$path" "$root/fleetjob/lib/${path##*/}"
    about=("$CUDA_LIBRARIES/$1"-*.dist-info)
    [ -f "${about[0]}/METADATA" ] || die "wheel $1 has no METADATA"
    install -D -m 644 "${about[0]}/METADATA" "$root/usr/share/doc/$1/METADATA"
    find "${about[0]}" -iname 'licen[cs]e*' -type f \
        -exec install -D -m 644 {} "$root/usr/share/doc/$1/copyright" \;
    [ -f "$root/usr/share/doc/$1/copyright" ] || die "wheel $1 has no licence"
    add_libraries_of "$path"
}

# Those of Debian's package, and none that the machine of the build trusts besides.
add_certificates() { # add_certificates FOLDER PATH
    local files=("$1"/*.crt)
    [ -f "${files[0]}" ] || die "no certificates in $1: the package ca-certificates is missing"
    mkdir -p "$root${2%/*}"
    cat "${files[@]}" >"$root$2"
    add_package "${files[0]}"
}

# Everything the loader would open for a program or library, the loader included.
add_libraries_of() { # add_libraries_of PATH
    local listed path
    listed=$(ldd "$1") || die "ldd $1 failed"
    ! grep -F 'not found' <<<"$listed" >&2 || die "$1 needs what is not on this machine"
    while read -r path; do
        add_library "$path"
    done < <(sed -nE 's/^\t(.* => )?(\/[^ ]+) \(0x.*/\2/p' <<<"$listed")
}

rm -rf "$root"
mkdir -p "$root"
while read -r word value more; do
    case $word in
    '' | '#'*) ;;
    program)
        [ -f "$programs/$value" ] || die "program $value is not in $programs"
        install -D -m 755 "$programs/$value" "$root/fleetjob/bin/$value"
        strip "$root/fleetjob/bin/$value"
        add_libraries_of "$programs/$value"
        ;;
    preload)
        [ -f "$programs/$value" ] || die "$value is not in $programs"
        install -D -m 644 "$programs/$value" "$root/fleetjob/lib/$value"
        strip "$root/fleetjob/lib/$value"
        ;;
    module)
        [ -f "$programs/$value" ] || die "$value is not in $programs"
        install -D -m 644 "$programs/$value" "$root/fleetjob/bin/$value"
        strip "$root/fleetjob/bin/$value"
        add_libraries_of "$programs/$value"
        ;;
    wheel) add_wheel "$value" "$more" ;;
    library) add_library "$(find_library "$value")" ;;
    plugin)
        [ -f "$value" ] || die "plugin $value is not on this machine"
        install -D -m 644 "$value" "$root$value"
        add_package "$value"
        add_libraries_of "$value"
        ;;
    notice) add_package "$value" ;;
    certificates) add_certificates "$value" "$more" ;;
    folder) install -d -m "$more" "$root$value" ;;
    user | entrypoint) ;; # image-pack.sh
    *) die "unknown word '$word'" ;;
    esac
done <"$recipe"
chmod 755 "$root"/fleetjob/lib/ld-linux*
