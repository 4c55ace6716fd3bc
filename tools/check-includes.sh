#!/usr/bin/env bash
# The arrows between folders: which may include which (docs/architecture.md). A line of `allowed` is
# "folder: prefixes it may include"; a folder may have several lines. The longest folder that
# matches a file decides. A new arrow is a change of this table.
set -euo pipefail
cd "$(dirname "$0")/.."

allowed='
libfleet/base:        libfleet/base
libfleet/kube:        libfleet/kube libfleet/base
libfleet/strategy:    libfleet/strategy libfleet/base
libfleet/training:    libfleet/training libfleet/strategy libfleet/base
libfleet/program:     libfleet/program libfleet/training libfleet/strategy libfleet/base
libfleet/plan:        libfleet/plan libfleet/program libfleet/training libfleet/strategy
libfleet/plan:        libfleet/base
libfleet/checkpoint:  libfleet/checkpoint libfleet/program libfleet/training libfleet/strategy
libfleet/checkpoint:  libfleet/base
libfleet/autoparallel: libfleet/autoparallel libfleet/plan libfleet/program libfleet/training
libfleet/autoparallel: libfleet/strategy libfleet/base
libfleet/api:         libfleet/api libfleet/strategy libfleet/autoparallel libfleet/training
libfleet/api:         libfleet/plan
libfleet/api:         libfleet/kube/meta libfleet/base
libfleet/rendezvous:  libfleet/rendezvous libfleet/base
libfleet/rendezvous:  libfleet/strategy/cells libfleet/strategy/topology
libfleet/tensorboard: libfleet/tensorboard libfleet/base
controller/machinery: controller/machinery libfleet/kube libfleet/base
controller/fleetjob:  controller/fleetjob controller/machinery libfleet
controller:           controller libfleet
agent/runtime:        agent/runtime agent/link.h libfleet/base libfleet/strategy libfleet/training
agent/runtime:        libfleet/program libfleet/plan libfleet/checkpoint libfleet/autoparallel
agent/runtime:        libfleet/tensorboard
agent/runtime/store:  agent/runtime/store include/fleet/fleet_fs.h libfleet/base
agent/runtime/calibrate: agent/runtime libfleet/autoparallel/search libfleet/plan libfleet/program
agent/runtime/calibrate: libfleet/training libfleet/strategy libfleet/base
agent:                agent libfleet
cli:                  cli controller/fleetjob agent/runtime/data agent/runtime/inference libfleet
cli:                  agent/runtime/calibrate
cuda:                 cuda agent/runtime/backend/backend.h agent/runtime/comm/comm.h
cuda:                 agent/runtime/comm/device.h libfleet/base libfleet/program
cuda:                 libfleet/plan/gpu_scratch.h libfleet/plan/runtime_memory.h
distributed:          distributed include/fleet agent/runtime/comm libfleet/base
distributed:          libfleet/autoparallel/mesh libfleet/strategy
distributed:          libfleet/checkpoint/safetensors
distributed:          libfleet/program/buckets.h agent/runtime/backend/cpu/kernels/typed.h
distributed/program:  distributed include/fleet libfleet/base libfleet/checkpoint/safetensors
distributed/program:  libfleet/program libfleet/plan agent/runtime/backend/cpu agent/runtime/state
distributed/program:  agent/runtime/executor/executor agent/runtime/inference/inference_file
distributed/program:  agent/runtime/step/running
tests:                .
'

git grep -nE '^#include "' -- {libfleet,controller,agent,cli,cuda,distributed}/'*.'{c,h,cu,cuh} |
    awk -F: -v table="$allowed" '
    BEGIN {
        n = split(table, lines, "\n")
        for (i = 1; i <= n; i++)
            if ((at = index(lines[i], ":")) > 0) {
                folder = substr(lines[i], 1, at - 1)
                rule[folder] = rule[folder] " " substr(lines[i], at + 1)
            }
    }
    # The rule of the nearest folder above `path` that has one.
    function rule_of(path) {
        while (sub("/[^/]*$", "", path))
            if (path in rule) return rule[path]
        return ""
    }
    function is_below(target, prefix) {
        return target == prefix || index(target, prefix "/") == 1 || target == prefix ".h"
    }
    {
        split($3, quoted, "\"")
        target = quoted[2]
        if (target !~ "/") next                # by bare name: from its own folder
        n = split(rule_of($1), prefixes, " ")
        ok = 0
        for (i = 1; i <= n; i++) if (is_below(target, prefixes[i])) ok = 1
        # The supervisor may include the agent, but not the runtime below it.
        if ($1 ~ "^agent/" && $1 !~ "^agent/runtime/" && target ~ "^agent/runtime/") ok = 0
        if (!ok) { print $1 ":" $2 ": may not include \"" target "\""; bad = 1 }
    }
    END { exit bad }'
