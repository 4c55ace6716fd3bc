#!/usr/bin/env bash
# find.sh FRAMEWORK: print the Python that has torch, paddle or mindspore: `python3` (or
# $FLEETJOB_PYTHON), or one of the cache folder. Ends with 1 if none has it.
set -euo pipefail
cache=${FLEETJOB_CACHE:-$HOME/.cache/fleetjob}
for candidate in "${FLEETJOB_PYTHON:-python3}" "$cache/foreign/$1/bin/python" \
    "$cache/transformers/bin/python" "$cache/gloo/bin/python"; do
    # Only looked up, not imported: that takes seconds.
    "$candidate" -c "import importlib.util as u, sys; sys.exit(not u.find_spec('$1'))" \
        2>/dev/null && command -v "$candidate" && exit
done
exit 1
