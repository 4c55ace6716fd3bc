#!/usr/bin/env bash
# libfleet.so as a stranger sees it: it exports what its map lists and nothing else, the header
# declares the same names, and a C++ program builds and runs from the installed package alone.
set -euo pipefail
cd "$(dirname "$0")/../.."
names() { grep -oE 'fleet_[a-z0-9_]+' | LC_ALL=C sort -u; }
diff <(nm -D --defined-only build/lib/libfleet.so | awk '$2 != "A" { print $3 }' | names) \
    <(grep ';' distributed/libfleet.map | names)
diff <(grep -ohE '\bfleet_[a-z0-9_]+\(' include/fleet/*.h | names) \
    <(grep ';' distributed/libfleet.map | names)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make -s install-library DESTDIR= PREFIX="$folder/prefix"
ls "$folder/prefix/include/fleet" | sed 's|.*|#include <fleet/&>|' >"$folder/program.cc"
cat >>"$folder/program.cc" <<'END'
#include <cstdio>

// A program is compiled, saved, read and run.
static bool saves(const char *path, fleet_error *err)
{
    const char *text = "program twice micro_batch_size=1\nvar x fp32 input [1,2]\n"
                       "var y fp32 activation [?]\nforward scale x -> y ; scale=2\n";
    const char *const fetches[] = {"y"};
    float in[] = {1, 2}, out[] = {0, 0};
    fleet_state_entry x{"x", {in, FLEET_FP32, 2, {1, 2}}}, y{"y", {out, FLEET_FP32, 2, {1, 2}}};
    fleet_program_options options{};
    fleet_program *program = nullptr, *read = nullptr;
    options.fetches = fetches;
    options.fetch_count = 1;
    bool good = fleet_program_compile(text, &options, &program, err) == 0 &&
                fleet_save_inference_model(program, path, nullptr, 0, nullptr, 0, err) == 0 &&
                fleet_load_inference_model(path, 1, &read, err) == 0 &&
                fleet_program_run(read, FLEET_PROGRAM_PREDICT, &x, 1, &y, 1, err) == 0;
    fleet_program_free(program);
    fleet_program_free(read);
    return good && out[0] == 2 && out[1] == 4;
}

int main(int, char **argv)
{
    fleet_error err{};
    float value = 2;
    fleet_tensor tensor{&value, FLEET_FP32, 0, {}};
    if (fleet_env_init(&err) < 0 ||
        fleet_all_reduce(&tensor, FLEET_SUM, nullptr, nullptr, &err) < 0 || !saves(argv[1], &err)) {
        std::puts(err.text);
        return 1;
    }
    fleet_env_release();
    return value == 2 ? 0 : 1;
}
END
export PKG_CONFIG_PATH=$folder/prefix/lib/pkgconfig
# shellcheck disable=SC2046
c++ -Wall -Wextra -Werror -o "$folder/program" "$folder/program.cc" $(pkg-config --cflags --libs fleet)
unset PADDLE_TRAINERS_NUM PADDLE_TRAINER_ID
export LD_LIBRARY_PATH=$folder/prefix/lib
"$folder/program" "$folder/model"

# The example that forks its own ranks.
# shellcheck disable=SC2046
cc -std=c11 -Wall -Wextra -Werror -o "$folder/layers" docs/examples/layers.c \
    $(pkg-config --cflags --libs fleet)
"$folder/layers" >"$folder/layers.out"
[ "$(grep -c 'has done all of it' "$folder/layers.out")" = 2 ]

# Strict compilers accept the headers, in C and C++.
for language in "cc -std=c99 -xc" "c++ -std=c++17 -xc++"; do
    grep '^#include <fleet' "$folder/program.cc" |
        $language -Wall -Wextra -pedantic -Werror -fsyntax-only -I"$folder/prefix/include" -
done
# No function crashes or hangs when its arguments are NULL.
python3 tests/install/null_arguments.py "$folder/prefix/include" >"$folder/nulls.cc"
# shellcheck disable=SC2046
c++ -O0 -std=c++17 -Wall -Wextra -Werror -o "$folder/nulls" "$folder/nulls.cc" \
    $(pkg-config --cflags --libs fleet)
"$folder/nulls" 2>/dev/null
