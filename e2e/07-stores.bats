#!/usr/bin/env bats
# Data and checkpoints in an object store: docs/examples/s3.yaml with a real MinIO (tools/minio.sh)
# on this machine, and keys from a Secret. Method: a pod is deleted while it trains, the weights are
# those of `fleetjob run` on local files, and they come back out of the store.

load lib

host=172.31.250.1 # of this machine, for pods
user=fleetuser
secret=fleetsecret

setup_file() {
    minio=$("$repository/tools/minio.sh" --built 2>"$BATS_FILE_TMPDIR/why") || return 0
    start_installation
    start_store
    fill_store
    kubectl create secret generic s3-keys --from-literal=AWS_ACCESS_KEY_ID=$user \
        --from-literal=AWS_SECRET_ACCESS_KEY=$secret
    kubectl create secret generic s3-wrong --from-literal=AWS_ACCESS_KEY_ID=$user \
        --from-literal=AWS_SECRET_ACCESS_KEY=wrong
}

setup() {
    [ ! -s "$BATS_FILE_TMPDIR/why" ] || skip "$(cat "$BATS_FILE_TMPDIR/why")"
    eval "$("$cluster" env)"
    cd "$repository" || return
}

teardown_file() {
    [ ! -e "$BATS_FILE_TMPDIR/minio.pid" ] || kill "$(cat "$BATS_FILE_TMPDIR/minio.pid")"
    [ -s "$BATS_FILE_TMPDIR/why" ] ||
        kubectl delete secret s3-keys s3-wrong --ignore-not-found
    stop_installation
}

# A folder of MinIO's folder is a bucket.
start_store() {
    local port
    port=$(python3 -c "import socket; s = socket.create_server(('$host', 0)); print(s.getsockname()[1])")
    mkdir -p "$BATS_FILE_TMPDIR/store/fleet"
    MINIO_ROOT_USER=$user MINIO_ROOT_PASSWORD=$secret MINIO_UPDATE=off MINIO_BROWSER=off \
        HOME=$BATS_FILE_TMPDIR "$minio" server --quiet --address "$host:$port" \
        "$BATS_FILE_TMPDIR/store" >"$BATS_FILE_TMPDIR/minio.log" 2>&1 3>&- &
    echo $! >"$BATS_FILE_TMPDIR/minio.pid"
    export AWS_ENDPOINT_URL_S3=http://$host:$port AWS_ACCESS_KEY_ID=$user
    export AWS_SECRET_ACCESS_KEY=$secret FLEET_CACHE=$BATS_FILE_TMPDIR/cache
}

put() { # put FILE KEY
    curl --fail --silent --show-error --aws-sigv4 aws:amz:us-east-1:s3 --user "$user:$secret" \
        --upload-file "$1" "$AWS_ENDPOINT_URL_S3/fleet/$2"
}

# The data: some pages of the documentation, also as local files.
fill_store() {
    local page
    mkdir "$BATS_FILE_TMPDIR/words"
    for page in data failures glossary weights; do
        cp "$repository/docs/$page.md" "$BATS_FILE_TMPDIR/words"
        eventually "$LIMIT" put "$repository/docs/$page.md" "words/$page.md"
    done
}

# The example under another name, with this store and so many steps.
s3_job() { # s3_job NAME STEPS
    sed -e "s/name: s3\$/name: $1/" -e "s|http://minio.storage.svc:9000|$AWS_ENDPOINT_URL_S3|" \
        -e "s|s3://fleet/saved|s3://fleet/$1|" -e "s/steps: 300/steps: $2/" \
        "$repository/docs/examples/s3.yaml"
}

# The weights of `fleetjob run` with local files and without a kill.
local_weights() { # local_weights STEPS
    local file=$BATS_TEST_TMPDIR/local
    s3_job local "$1" | sed -e "s|s3://fleet/words|$BATS_FILE_TMPDIR/words|" \
        -e "s|s3://fleet/local|$file.saved|" >"$file.yaml"
    "$repository/build/bin/fleetjob" run "$file.yaml" --json >"$file.log" ||
        { cat "$file.log" >&2; return 1; }
    grep -oE '"weightsSha256":"[0-9a-f]{64}"' "$file.log" | tail -n 1 | cut -d'"' -f4
}

# 3: it was over before its pod was deleted.
strike() { # strike NAME STEPS
    s3_job "$1" "$2" | kubectl apply -n "$namespace" -f - || return
    eventually "$LIMIT" field_at_least "$1" progress.step 10 || return
    kubectl delete pod "$1-worker-1-0" -n "$namespace" --wait=false
    becomes "$1" Succeeded $((3 * LIMIT)) || return
    field_at_least "$1" rendezvous.generation 2 || return 3
}

@test "a job reads from s3:// and saves there, and a deleted pod changes nothing" {
    local steps code=0 name weights
    for steps in "$STEPS" "$((4 * STEPS))" "$((16 * STEPS))"; do
        name=s3-$steps code=0
        strike "$name" "$steps" || code=$?
        [ $code = 3 ] || break
        remove_job "$name"
    done
    [ $code = 0 ]
    weights=$(local_weights "$steps")
    echo "expected: $weights"
    [ -n "$weights" ]
    field_is "$name" result.weightsSha256 "$weights"
    [[ "$(field "$name" checkpoint.path)" == "s3://fleet/$name/step-"* ]]
    "$repository/build/bin/fleetjob" export "s3://fleet/$name" "$BATS_TEST_TMPDIR/w.safetensors" |
        tee "$BATS_TEST_TMPDIR/said"
    grep "weights SHA-256 $weights" "$BATS_TEST_TMPDIR/said"
    remove_job "$name"
}

@test "wrong keys end the job once: status, REASON and event say so" {
    s3_job wrong 20 | sed 's/name: s3-keys/name: s3-wrong/' | kubectl apply -n "$namespace" -f -
    becomes wrong Failed
    field_is wrong reason StoreRefused
    condition_says wrong Failed StoreRefused 'spec.training.data.path: s3://fleet/words' '403'
    eventually "$LIMIT" describes wrong Warning StoreRefused 's3://fleet/words' '403'
    field_is wrong restarts.total ''
    kubectl get fj wrong | grep 'Failed  *StoreRefused'
    remove_job wrong
}

@test "nothing is left of them" {
    eventually "$LIMIT" nothing_left
}
