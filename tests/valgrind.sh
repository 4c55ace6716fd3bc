#!/usr/bin/env bash
# Trainers under memcheck: some steps at every level that valgrind knows (plain, avx2), on 1 and 2
# workers, with checkpoints, evaluation and a resume. Any error, and any memory that is lost for
# good, fails. AVX-512 is not emulated; those kernels run under the address sanitizer.
#
#   tests/valgrind.sh [FOLDER of the programs, default build/bin]
set -euo pipefail
cd "$(dirname "$0")/.."
command -v valgrind >/dev/null || {
    echo "check-valgrind needs valgrind: apt-get install valgrind"
    exit 1
}
programs=${1:-build/bin}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The agent starts the trainer that lies beside it: here that is memcheck around the real one.
mkdir "$work/bin" "$work/logs"
cp "$programs/fleetjob" "$programs/fleetjob-agent" "$work/bin/"
cat >"$work/bin/fleetjob-train" <<EOF
#!/bin/sh
exec valgrind --quiet --error-exitcode=99 --leak-check=full --errors-for-leak-kinds=definite \\
    --show-leak-kinds=definite --fair-sched=yes --child-silent-after-fork=yes \\
    --log-file="$work/logs/%p" "$PWD/$programs/fleetjob-train"
EOF
chmod +x "$work/bin/fleetjob-train"

# MODEL STRATEGY EXTRA STEPS: the job in $work/job.yaml
write_job() {
    cat >"$work/job.yaml" <<EOF
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: memcheck}
spec:
  worker: {replicas: 1, maxReplicas: 2}
  runPolicy: {restart: {maxRestarts: 0}}
$2
  training:
    model: $1
    optimizer: {name: adamw, learningRate: 0.001, clip: {globalNorm: 1}}
    globalBatchSize: 4
    microBatchSize: 1
    steps: $4
$3
EOF
}

text="    data: {path: $PWD/tests/golden/torch/jobs/text.txt, validation: 0.1}"
gpt='{name: gpt, layers: 2, heads: 2, width: 32, context: 16, dropout: 0.1}'
head -c 61460 /dev/zero | tr '\0' '\3' >"$work/images.bin" # 20 records of label 3

failed=0
# LEVEL WORKERS NAME: run the job that was written
run_job() {
    local level=$1 workers=$2 name=$3 rc=0
    rm -f "$work"/logs/*
    FLEET_ISA=$level FLEET_THREADS=2 timeout 570 "$work/bin/fleetjob" run --json --workers \
        "$workers" \
        "$work/job.yaml" >"$work/out" 2>"$work/err" || rc=$?
    if [ "$rc" != 0 ] || [ -n "$(cat "$work"/logs/* 2>/dev/null)" ] ||
        ! ls "$work"/logs/* >/dev/null 2>&1; then
        echo "FAIL  $name, $level, $workers worker(s): exit $rc"
        sed 's/^/    | /' "$work/err" "$work"/logs/* 2>/dev/null | head -n 40 || true
        failed=$((failed + 1))
    else
        echo "ok    $name, $level, $workers worker(s): $(grep -c '"event":"step"' "$work/out") steps, no error"
    fi
}

for level in plain avx2; do
    for workers in 1 2; do
        rm -rf "$work/checkpoints"
        saved="    checkpoint: {path: $work/checkpoints, everySteps: 2}
    evaluation: {everySteps: 2, batches: 1}"
        write_job "$gpt" "" "$text
$saved" 4
        run_job "$level" "$workers" "gpt with checkpoints and evaluation"
        write_job "$gpt" "" "$text
$saved" 6
        run_job "$level" "$workers" "the same, resumed"
    done
    write_job "$gpt" "  strategy: {amp: true, recompute: true, gradient_merge: true, gradient_merge_configs: {k_steps: 2}}" \
        "    data: {path: $PWD/tests/golden/torch/jobs/text.txt}" 4
    run_job "$level" 2 "gpt with amp, recompute and gradient_merge"
    write_job '{preset: resnet18, baseWidth: 4}' "" \
        "    data: {path: $work/images.bin, tokenizer: cifar10}" 2
    run_job "$level" 1 "resnet"
done
[ "$failed" = 0 ]
