#!/usr/bin/env bats
# Own trainers in a cluster (docs/own-trainer.md): what they report is the job's status, and
# every start gets the checkpoint that was reported last. Method: a shell script in an image
# without the runtime; its log names the step that it continues from. A C program stays in its
# process.

load lib

setup_file() {
    start_installation
    "$BATS_TEST_DIRNAME/cluster/image.sh" "$BATS_FILE_TMPDIR/busybox.tar" fleet.local/busybox:1 /bin/busybox
    "$cluster" load "$BATS_FILE_TMPDIR/busybox.tar"
    # The example that stays in its process, with steps enough for the whole test.
    sed 's/define STEPS .*/define STEPS 10000000/' "$repository/docs/examples/own-trainer.c" \
        >"$BATS_FILE_TMPDIR/fit.c"
    cc -O1 -I"$repository/include" -o "$BATS_FILE_TMPDIR/fit" "$BATS_FILE_TMPDIR/fit.c" \
        -L"$repository/build/lib" -lfleet -Wl,-rpath,"$repository/build/lib"
    chmod 755 "$BATS_FILE_TMPDIR/fit"
    "$BATS_TEST_DIRNAME/cluster/image.sh" --no-entrypoint --with "$BATS_FILE_TMPDIR/fit" \
        "$BATS_FILE_TMPDIR/fit.tar" fleet.local/fit:1 /bin/busybox
    "$cluster" load "$BATS_FILE_TMPDIR/fit.tar"
}

# Rank 0 reports ten steps a second, and every twentieth as a checkpoint.
reporting_job() { # reporting_job NAME STEPS
    cat <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $1}
spec:
  worker:
    replicas: 2
    template:
      spec:
        terminationGracePeriodSeconds: 5
        containers:
          - name: trainer
            image: fleet.local/busybox:1
            imagePullPolicy: IfNotPresent
            command: [/bin/busybox, sh, -c]
            args:
              - |
                step=\${FLEET_RESUME_STEP:-0}
                echo "from \$step of '\$FLEET_RESUME_PATH'"
                say() { [ \$RANK != 0 ] || echo "\$1" >>\$FLEET_PROGRESS_FILE; }
                say "{\"resumed\": \$step}"
                while [ \$step -lt $2 ]; do
                  step=\$((step + 1))
                  say "{\"step\": \$step, \"steps\": $2, \"loss\": \$step.5}"
                  [ \$((step % 20)) != 0 ] || say "{\"checkpoint\": \$step, \"path\": \"/c/\$step\"}"
                  /bin/busybox sleep 0.1
                done
  runPolicy: {progressDeadlineSeconds: 600}
END
}

log_says() { # log_says JOB INDEX WORDS: some pod of the worker has printed them
    local pod
    for pod in $(kubectl get pods -n "$namespace" -l "fleetjob.dev/job-name=$1" -o name | grep -- "-worker-$2-"); do
        kubectl logs -n "$namespace" "$pod" -c trainer
    done | grep "$3"
}

@test "what an own trainer reports is the job's progress" {
    reporting_job own 1000000 | kubectl apply -n "$namespace" -f -
    eventually "$LIMIT" field_at_least own checkpoint.step 20
    eventually "$LIMIT" field_at_least own progress.step 21
    field_is own progress.steps 1000000
    [[ $(field own progress.loss) == *.5 ]]
    [[ $(field own checkpoint.path) == /c/* ]]
}

@test "a pod of it is deleted: all ranks go on from the checkpoint, and lost steps are reported" {
    led_by=$(holder)
    restarted=$(restarts_of own)
    saved=$(field own checkpoint.step)
    kubectl delete pod own-worker-1-0 -n "$namespace" --force --grace-period=0
    eventually "$LIMIT" log_says own 1 "from [1-9][0-9]* of '/c/"
    eventually "$LIMIT" log_says own 0 "from [1-9][0-9]* of '/c/"
    # the newest start: this rank may have been restarted before
    eventually "$LIMIT" goes_on_from own "${saved:-0}"
    eventually "$LIMIT" field_at_least own checkpoint.step $((from + 20))
    eventually "$LIMIT" has_lost_steps own
}

# Rank 0 of worker 0, by what its newest start has printed: sets $from.
goes_on_from() { # goes_on_from JOB STEP: or a later checkpoint
    from=$(log_says "$1" 0 "from [0-9][0-9]* of '" | tail -n 1 | sed 's/.*from \([0-9]*\) .*/\1/')
    echo "saved at least $2, goes on from $from"
    [ "${from:-0}" -ge "$2" ] && [ $((from % 20)) = 0 ]
}

# The first restart after those that it had before has their number, which kill and time decide.
has_lost_steps() { # has_lost_steps JOB
    [[ $(field "$1" "restarts.history[$restarted].lostSteps") =~ ^[0-9]+$ ]] ||
        [ "$(holder)" != "$led_by" ]
}

@test "suspended and resumed it goes on from the checkpoint of its status" {
    kubectl patch fj own -n "$namespace" --type=merge -p '{"spec":{"runPolicy":{"suspend":true}}}'
    becomes own Suspended
    saved=$(field own checkpoint.step)
    kubectl patch fj own -n "$namespace" --type=merge -p '{"spec":{"runPolicy":{"suspend":false}}}'
    eventually "$LIMIT" log_says own 0 "from $saved of '/c/$saved'"
    remove_job own
}

@test "one that reports nothing meets no progress deadline, and nothing is claimed" {
    reporting_job quiet 1 | sed -e 's/say() {.*/say() { :; }/' -e 's/sleep 0.1/sleep 20/' \
        -e 's/progressDeadlineSeconds: 600/progressDeadlineSeconds: 5/' | kubectl apply -n "$namespace" -f -
    becomes quiet Succeeded
    field_is quiet progress.step ''
    remove_job quiet
}

# The workers share no folder, so a process that is started again could not go on from a checkpoint.
# It makes many steps in the time between two writes of its status: what a rank prints tells when.
@test "a pod of one that stays is deleted: the other rank goes on in its process" {
    kubectl apply -n "$namespace" -f - <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: fit}
spec:
  worker:
    replicas: 2
    template:
      spec:
        terminationGracePeriodSeconds: 2
        containers:
          - name: trainer
            image: fleet.local/fit:1
            imagePullPolicy: IfNotPresent
            command: [$BATS_FILE_TMPDIR/fit]
END
    eventually "$LIMIT" field_at_least fit progress.step 21
    led_by=$(holder)
    restarted=$(restarts_of fit)
    kubectl delete pod fit-worker-0-0 -n "$namespace" --force --grace-period=0
    eventually "$LIMIT" log_says fit 0 "goes on from step [1-9]"
    eventually "$LIMIT" log_says fit 1 "goes on from step [1-9]"
    step=$(log_says fit 0 "goes on from step [1-9]" | head -n 1 | grep -oE '[0-9]+$')
    eventually "$LIMIT" field_at_least fit progress.step $((step + 20))
    eventually "$LIMIT" has_lost_at_most fit 1
    remove_job fit
}

# A survivor may be one step behind what was reported.
has_lost_at_most() { # has_lost_at_most JOB STEPS
    local lost
    lost=$(field "$1" "restarts.history[$restarted].lostSteps") || lost='' # not there yet
    echo "lost '$lost'"
    if [ -z "$lost" ]; then
        [ "$(holder)" != "$led_by" ]
    else
        [ "$lost" -le "$2" ]
    fi
}

@test "nothing is left of any of them" {
    eventually "$LIMIT" nothing_left
}
