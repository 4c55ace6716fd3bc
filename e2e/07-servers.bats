#!/usr/bin/env bats
# A job with a parameter server (docs/parameter-server.md): the click-through example with two
# servers and two workers. Method: a server's and a worker's pod are deleted while it trains, and
# the last line is the one that `fleetjob run` prints with one server.

load lib

clicks=fleet.local/clicks:1

setup_file() {
    start_installation
    cc -O1 -I"$repository/include" -o "$BATS_FILE_TMPDIR/clicks" \
        "$repository/docs/examples/click-through.c" -L"$repository/build/lib" -lfleet -lm \
        -Wl,-rpath,"$repository/build/lib"
    chmod 755 "$BATS_FILE_TMPDIR/clicks"
    "$BATS_TEST_DIRNAME/cluster/image.sh" --no-entrypoint --with "$BATS_FILE_TMPDIR/clicks" \
        "$BATS_FILE_TMPDIR/clicks.tar" "$clicks" /bin/busybox
    "$cluster" load "$BATS_FILE_TMPDIR/clicks.tar"
}

# A snapshot after each step, in a folder that both nodes see.
clicks_job() { # clicks_job NAME STEPS SERVERS WORKERS FOLDER
    cat <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $1}
spec:
  server: {replicas: $3}
  worker:
    replicas: $4
    template:
      spec:
        terminationGracePeriodSeconds: 2
        volumes: [{name: snapshots, hostPath: {path: $5}}]
        containers:
          - name: trainer
            image: $clicks
            imagePullPolicy: IfNotPresent
            command: [$BATS_FILE_TMPDIR/clicks, "$2", $5]
            volumeMounts: [{name: snapshots, mountPath: $5}]
  runPolicy: {dataEncryption: AES-GCM}
END
}

area_in_log() { # area_in_log JOB
    local pod
    for pod in $(kubectl get pods -n "$namespace" -l "fleetjob.dev/job-name=$1,fleetjob.dev/worker-index" -o name); do
        kubectl logs -n "$namespace" "$pod" -c trainer
    done | grep -m 1 -o 'area under the curve .*'
}

# 3: it was over before its pods were deleted.
strike() { # strike NAME STEPS
    local name=$1 steps=$2 folder=$BATS_TEST_TMPDIR/$1
    mkdir "$folder"
    clicks_job "$name" "$steps" 1 2 "$folder" >"$folder.yaml"
    expected=$("$repository/build/bin/fleetjob" run "$folder.yaml" |
        grep -o 'area under the curve .*')
    clicks_job "$name" "$steps" 2 2 "$(volume_folder "$name")" |
        kubectl apply -n "$namespace" -f -
    eventually "$LIMIT" log_has "$name-worker-0-0" "step 10" || return
    kubectl delete pod "$name-server-1" "$name-worker-1-0" -n "$namespace" --wait=false
    becomes "$name" Succeeded || return
    field_at_least "$name" servers.pods.1 2 && field_at_least "$name" attempts.1 1 || return 3
}

@test "servers and workers that are deleted while it trains change nothing" {
    for steps in 1000 4000 16000; do
        code=0
        strike "clicks-$steps" "$steps" || code=$?
        [ $code = 3 ] || break
        remove_job "clicks-$steps"
    done
    [ $code = 0 ]
    eventually "$LIMIT" area_in_log "clicks-$steps"
    actual=$(area_in_log "clicks-$steps")
    echo "expected: $expected"
    echo "actual:   $actual"
    [ -n "$expected" ]
    [ "$actual" = "$expected" ]
    field_is "clicks-$steps" servers.desired 2
    field_is "clicks-$steps" servers.pods.0 1
    eventually "$LIMIT" describes "clicks-$steps" "Created 2 servers" "Server 1 has lost its pod"
    remove_job "clicks-$steps"
}

@test "nothing is left of it" {
    eventually "$LIMIT" nothing_left
}
