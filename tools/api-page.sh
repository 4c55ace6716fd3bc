#!/usr/bin/env bash
# Write docs/reference/api.md from distributed/api.txt to the standard output. It fails on a
# function that libfleet.so lacks, and on a test that does not exist or never calls the function.
set -euo pipefail
cd "$(dirname "$0")/.."
tests='tests/integration/test_ddp.c tests/integration/test_ddp_use.c
    tests/integration/test_distributed.c tests/integration/test_rpc.c
    tests/integration/test_dtensor.c tests/integration/test_dtensor_use.c
    tests/integration/dtensor_fixture.h tests/integration/test_split.c
    tests/integration/test_fleet_init.c tests/integration/test_group_shard.c
    tests/integration/test_fs.c tests/integration/fs_fixture.h tests/integration/test_fs_s3.c
    tests/integration/test_fleet_data.c tests/integration/test_fs_webhdfs.c
    tests/integration/test_program_use.c
    tests/integration/test_recompute.c
    tests/integration/test_spawn.c tests/integration/test_launch.c
    tests/integration/test_ps.c
    tests/unit/test_role.c'
cat <<'END'
# The distributed API

What `paddle.distributed` offers, and the C function that stands for it in `fleet.h`
([include/fleet/fleet.h](../../include/fleet/fleet.h) is the manual,
[a decision](../decisions/fleet-h.md) says why it is as it is). The table is generated from
`distributed/api.txt`. The name of a test begins with that of its file. Tensors lie in the host's
memory. Data parallelism is in [fleet_ddp.h](../../include/fleet/fleet_ddp.h), RPC in
[fleet_rpc.h](../../include/fleet/fleet_rpc.h), file systems are in
[fleet_fs.h](../../include/fleet/fleet_fs.h), parameter servers in
[fleet_ps.h](../../include/fleet/fleet_ps.h), meshes in
[fleet_mesh.h](../../include/fleet/fleet_mesh.h), divided optimizers in
[fleet_shard.h](../../include/fleet/fleet_shard.h), strategies in
[fleet_strategy.h](../../include/fleet/fleet_strategy.h), programs and models for inference in
[fleet_program.h](../../include/fleet/fleet_program.h). The compute stream of host memory is the
calling thread, so the functions for streams are those without; `fleet.stream` in Python has
Paddle's arguments.
END
awk -F' *[|] *' -v tests="$tests" -v map=distributed/libfleet.map '
    BEGIN {
        n = split(tests, files, /[ \n]+/)
        for (i = 1; i <= n; i++)
            while ((getline line < files[i]) > 0) source = source line "\n"
        while ((getline line < map) > 0) exported = exported line "\n"
    }
    function wrong(text) { print "distributed/api.txt:" NR ": " text > "/dev/stderr"; bad = 1 }
    /^#/ { next }
    /^= / {
        printf "\n## %s\n\n| Paddle | C | test |\n|---|---|---|\n", substr($0, 3)
        next
    }
    $2 == "-" { without++; printf "| `%s` | none: %s | |\n", $1, $3; next }
    NF != 3 { wrong("needs a name, a function and a test, or a reason"); next }
    {
        there++
        if ($2 !~ /^(enum|fleetjob) / && !index(exported, " " $2 ";")) wrong("libfleet.so has no " $2)
        if (!index(source, "void " $3 "(")) wrong("there is no test " $3)
        if ($2 !~ /^(enum|fleetjob) / && !index(source, $2 "(")) wrong("no test calls " $2)
        printf "| `%s` | `%s` | `%s` |\n", $1, $2, $3
    }
    END {
        printf "\n%d of %d rows have a function.\n", there, there + without
        exit bad
    }' distributed/api.txt
