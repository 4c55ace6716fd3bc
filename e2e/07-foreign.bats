#!/usr/bin/env bats
# Scripts of PyTorch, Paddle and MindSpore train in the cluster, in images made from folders
# (tests/foreign), all at the same time. A process of each is killed, all its ranks start again, and
# losses and weights must be those of a training without a framework. Skipped where no python3 has
# the framework; `make check-foreign` fetches them.

load lib

setup_file() {
    local framework python has_any=''
    for framework in torch paddle mindspore; do
        python=$("$repository/tests/foreign/find.sh" "$framework") || continue
        echo "$python" >"$BATS_FILE_TMPDIR/$framework"
        has_any=yes
    done
    [ -n "$has_any" ] || return 0
    start_installation
    for framework in torch paddle mindspore; do
        [ ! -e "$BATS_FILE_TMPDIR/$framework" ] ||
            trains "$framework" "$(cat "$BATS_FILE_TMPDIR/$framework")" >"$BATS_FILE_TMPDIR/$framework.log" 2>&1 3>&- &
    done
}

trains() { # trains FRAMEWORK PYTHON: the exit code goes to a file
    local framework=$1 python=$2 archive=$BATS_FILE_TMPDIR/$1.tar mount code=0
    mount=$("$repository/tests/foreign/image.sh" "$framework" "$python" "$archive") &&
        "$cluster" load "$archive" &&
        undisturbed "$framework" plays "$framework" "$python" ${mount:+"$mount"} || code=$?
    rm -f "$archive"
    echo "$code" >"$BATS_FILE_TMPDIR/$framework.code"
}

plays() { # plays FRAMEWORK PYTHON [MOUNT]
    python3 "$repository/tests/foreign/cluster.py" "$1" "$2" "$cluster" "$(volume_folder "$1")" "${@:3}"
}

has_trained() { # has_trained FRAMEWORK
    local file=$BATS_FILE_TMPDIR/$1
    [ -e "$file" ] || skip "no python3 has $1; make check-foreign fetches it from PyPI"
    eventually $((6 * LIMIT)) test -s "$file.code"
    [ "$(cat "$file.code")" = 0 ] || { cat "$file.log"; return 1; }
    tail -n 1 "$file.log" | sed 's/^/# /' >&3
    remove_job "$1"
}

@test "a PyTorch script: a killed rank restarts all, and they end as an undisturbed one" {
    has_trained torch
}

@test "a Paddle script, which reads the job's strategy" {
    has_trained paddle
}

@test "a MindSpore script, which gets the job's context" {
    has_trained mindspore
}

@test "nothing is left of any of them" {
    [ -z "$(ls "$BATS_FILE_TMPDIR"/*.code 2>/dev/null)" ] || eventually "$LIMIT" nothing_left
}
