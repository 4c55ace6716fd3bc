# SPDX-License-Identifier: Apache-2.0
"""What the three scripts share: they say where they are, report steps, and fail when asked to.

The story that story.py checks, by generation:
  1  rank 1 exits with 101 after some steps, 2  rank 0 exits with 102, 3  a rank is killed from
  outside, while all wait, 4  all steps are made.
"""

import json
import os
import sys
import time

BEGAN = time.monotonic()  # before the framework is imported
STEPS, BATCH, WIDTH = 40, 16, 8
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GENERATION = int(os.environ["FLEET_GENERATION"])
FIRST = int(os.environ.get("FLEET_RESUME_STEP", 0))


def say(**facts):
    """A line for check.py."""
    print("FACTS " + json.dumps({"rank": RANK, "generation": GENERATION, **facts}), flush=True)


def report(**line):
    if RANK == 0:
        with open(os.environ["FLEET_PROGRESS_FILE"], "w") as pipe:
            pipe.write(json.dumps(line) + "\n")


say(began=BEGAN, pid=os.getpid(), environment={
    name: value for name, value in os.environ.items()
    if name.startswith(("PADDLE_", "FLAGS_", "MS_", "RANK", "LOCAL_", "GROUP_", "WORLD_", "MASTER_",
                        "FLEET_", "OMP_", "DEVICE_", "POD_", "http"))
    and name != "FLEET_WORLD_SECRET"})


def batch(step):
    """Rows of this rank: they depend on the step alone, so any number of ranks sees the same."""
    rows = [[((step * BATCH + row) * (column + 3) % 17) / 17 - 0.5 for column in range(WIDTH)]
            for row in range(BATCH)]
    targets = [[sum(row[:3])] for row in rows]
    return rows[RANK::WORLD], targets[RANK::WORLD]


def after_step(step, loss, checkpoint):
    """Report step `step` and fail as the story says. `checkpoint(step)` saves it and returns the
    path; rank 0 calls it."""
    report(step=step, steps=STEPS, loss=float(loss))
    if RANK == 0 and step % 5 == 0:
        report(checkpoint=step, path=checkpoint(step))
    if GENERATION == 1 and step == 10 and RANK == 1:
        sys.exit(101)
    if GENERATION == 2 and step == 20 and RANK == 0:
        sys.exit(102)
    if GENERATION == 3 and step == 30:
        say(waits=True)
        time.sleep(600)
