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
cat >"$folder/program.cc" <<'END'
#include <fleet/fleet.h>
#include <cstdio>
int main()
{
    fleet_error err{};
    float value = 2;
    fleet_tensor tensor{&value, FLEET_FP32, 0, {}};
    if (fleet_env_init(&err) < 0 ||
        fleet_all_reduce(&tensor, FLEET_SUM, nullptr, nullptr, &err) < 0) {
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
env -u PADDLE_TRAINERS_NUM -u PADDLE_TRAINER_ID LD_LIBRARY_PATH="$folder/prefix/lib" \
    "$folder/program"
