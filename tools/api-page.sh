#!/usr/bin/env bash
# Write docs/reference/api.md from distributed/api.txt to the standard output. It fails on a
# function that libfleet.so or the headers lack, on a test that does not exist or never calls the
# function, and on an example that does not exist or does not have the function.
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

What `paddle.distributed` offers, and the C function that stands for it in `fleet.h` and its
siblings. The headers are the manual, [a decision](../decisions/fleet-h.md) says why they are as
they are. The table is generated from `distributed/api.txt`. The name of a test begins with that of
its file. An example in Python has Paddle's name of the function; the module beside it in
[python](../../python) calls the C function. Tensors lie in the host's memory. The compute stream of
host memory is the calling thread, so the functions for streams are those without; `fleet.stream`
in Python has Paddle's arguments. [fleet_job.h](../../include/fleet/fleet_job.h), for trainers that
go on in process, has no counterpart in Paddle.
END
awk -F' *[|] *' -v tests="$tests" -v map=distributed/libfleet.map \
    -v headers="$(echo include/fleet/*.h)" '
    BEGIN {
        n = split(tests, files, /[ \n]+/)
        for (i = 1; i <= n; i++)
            while ((getline line < files[i]) > 0) source = source line "\n"
        while ((getline line < map) > 0) exported = exported line "\n"
        count = split(headers, header, " ")
        for (i = 1; i <= count; i++)
            while ((getline line < header[i]) > 0)
                if (line !~ /^ ?\/?\*/) declared[header[i]] = declared[header[i]] line "\n"
    }
    function wrong(text) { print "distributed/api.txt:" NR ": " text > "/dev/stderr"; bad = 1 }
    function is_function(name) { return name !~ /^(enum|fleetjob) / }
    function header_of(name,    i, at) {
        for (i = 1; i <= count; i++) {
            at = index(declared[header[i]], is_function(name) ? name "(" : name " {")
            if (at && substr(declared[header[i]], at - 1, 1) !~ /[a-z_]/) return header[i]
        }
        return ""
    }
    function text_of(path,    line, text) {
        while ((getline line < path) > 0) text = text line "\n"
        close(path)
        return text
    }
    # The last word of the name in Paddle, without remarks: what an example in Python calls.
    function word_of(name) { sub(/ .*/, "", name); sub(/.*[.]/, "", name); return name }
    /^#/ { next }
    /^= / {
        printf "\n## %s\n\n| Paddle | C | header | test | example |\n", substr($0, 3)
        print "|---|---|---|---|---|"
        next
    }
    $2 == "-" { without++; printf "| `%s` | none: %s | | | |\n", $1, $3; next }
    NF != 4 { wrong("needs a name, a function, a test and an example, or a reason"); next }
    {
        there++
        if (is_function($2) && !index(exported, " " $2 ";")) wrong("libfleet.so has no " $2)
        if (!index(source, "void " $3 "(")) wrong("there is no test " $3)
        if (is_function($2) && !index(source, $2 "(")) wrong("no test calls " $2)
        in_header = header_of($2)
        if (in_header == "" && $2 !~ /^fleetjob /) wrong("no header has " $2)
        if (!index(text_of($4), $4 ~ /[.]c$/ ? $2 : $1 ~ /not of Paddle/ ? "FS(" : word_of($1)))
            wrong($4 " has no example of " $1)
        base = in_header; sub(/.*\//, "", base)
        example = $4; sub(/.*\//, "", example)
        printf "| `%s` | `%s` | %s | `%s` | [%s](../../%s) |\n", $1, $2,
            in_header == "" ? "" : "[" base "](../../" in_header ")", $3, example, $4
    }
    END {
        printf "\n%d of %d rows have a function.\n", there, there + without
        exit bad
    }' distributed/api.txt
