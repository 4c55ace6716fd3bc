# shellcheck shell=bash disable=SC2154,SC2034 # repository, references; LONG, SHORT
# The small job of the scenarios and its reference. Sourced by lib.bash and run.sh, which say where
# the repository is and where references are kept.
#
# The reference of a job is `fleetjob run` of the same file on this machine: after every event in
# the cluster, the weights at the end are its weights, to the last bit.

# A job file: [key=value…] set replicas, steps, and lines of worker, strategy and runPolicy. Its
# steps are long enough that workers work more than they wait for each other: a machine with more to
# do slows the others many times as much.
# job_file NAME [replicas=N] [steps=N] [worker='…'] [strategy='…'] [checkpoint='…'] [policy='…']
job_file() {
    local name=$1 replicas=4 steps=${STEPS:-} worker='' strategy='' policy='' checkpoint='' setting
    shift
    for setting in "$@"; do
        local "${setting%%=*}=${setting#*=}"
    done
    cat <<END
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: $name}
spec:
  worker: {replicas: $replicas${worker:+, $worker}}
  ${strategy:+strategy: {$strategy\}}
  training:
    model: {name: gpt, layers: 2, heads: 2, width: 128, context: 128}
    data: {tokenizer: synthetic-markov, symbols: 64}
    optimizer: {name: adamw, learningRate: 1.0e-3}
    globalBatchSize: 8
    microBatchSize: 2
    steps: $steps
    ${checkpoint:+checkpoint: {$checkpoint\}}
  ${policy:+runPolicy: {$policy\}}
END
}

# How long the small job is: its workers are faster on other machines, and what a scenario does to
# it must come before its end. Eight seconds of the speed that most steps have here, and what takes
# longer on a slow machine anyway; LONG is for what takes several changes, or a whole upgrade, SHORT
# for what is left alone. What takes longer than that has an endless job (lib.bash).
measure_steps() {
    local speed
    [ ! -s "$references/steps" ] || return 0
    job_file measured steps=60 >"$references/measured.yaml"
    "$repository/build/bin/fleetjob" run "$references/measured.yaml" --json \
        >"$references/measured.log" ||
        { cat "$references/measured.log"; return 1; }
    speed=$(grep -oE '"tokensPerSecond":[0-9]+' "$references/measured.log" | cut -d: -f2 | sort -n | sed -n 30p) # of 60 steps
    STEPS=$((8 * ${speed:-0} / (8 * 128) / 10 * 10))
    [ "$STEPS" -ge 150 ] || STEPS=150
    echo "$STEPS" >"$references/steps"
}

use_steps() { # what was measured, if it was
    STEPS=$(cat "$references/steps" 2>/dev/null) || STEPS=150
    LONG=$((3 * STEPS)) SHORT=$((STEPS / 4))
}

# The weights of `fleetjob run` after so many steps of the small job.
reference() { # reference STEPS
    local file=$references/reference-$1
    if [ ! -s "$file" ]; then
        job_file reference steps="$1" >"$file.yaml"
        "$repository/build/bin/fleetjob" run "$file.yaml" --json >"$file.log" || { cat "$file.log";
            return 1; }
        grep -oE '"weightsSha256":"[0-9a-f]{64}"' "$file.log" | tail -n 1 |
            cut -d'"' -f4 >"$file.new"
        mv "$file.new" "$file"
    fi
    cat "$file"
}
