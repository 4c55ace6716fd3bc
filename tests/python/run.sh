#!/usr/bin/env bash
# Run the examples of Paddle's pages through python/fleet.py, each group in two processes.
set -euo pipefail
cd "$(dirname "$0")/../.."
FLEET_LIBRARY=$PWD/build/lib/libfleet.so
export FLEET_LIBRARY PYTHONPATH=python PYTHONDONTWRITEBYTECODE=1 FLEET_WORLD_SECRET=examples
read -r a b < <(python3 -c '
import random, socket
ports = []
for port in random.sample(range(20000, 30000), 100):  # outgoing connections have others
    try:
        socket.socket().bind(("127.0.0.1", port))
        ports.append(port)
    except OSError:
        pass
print(*ports[:2])')
export PADDLE_TRAINERS_NUM=2 PADDLE_TRAINER_ENDPOINTS=127.0.0.1:$a,127.0.0.1:$b
export PADDLE_MASTER_ENDPOINT=127.0.0.1:$a PADDLE_PG_TIMEOUT=60000
for group in "$@"; do
    script=(tests/python/examples.py "$group")
    [ ! -e "tests/python/$group.py" ] || script=("tests/python/$group.py")
    PADDLE_TRAINER_ID=1 python3 "${script[@]}" &
    other=$!
    PADDLE_TRAINER_ID=0 python3 "${script[@]}" && rc=0 || rc=$?
    wait "$other" || rc=$?
    [ "$rc" = 0 ] || { echo "tests/python: $group failed"; exit 1; }
done
