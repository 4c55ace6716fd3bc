# SPDX-License-Identifier: Apache-2.0
"""What the three scripts share: they say where they are, report steps, and fail when asked to.

STORY says how each generation but the last ends: `101` and `102` are exit codes of a rank, with
`kill` all ranks wait until one is killed from outside. story.py tells and checks the story. The
model starts from weights of 1 and a bias of 0, so that story.py can compute where it must end.
"""

import json
import os
import pathlib
import sys
import time

import data
from data import STEPS, WIDTH

BEGAN = time.monotonic()  # before the framework is imported
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GENERATION = int(os.environ["FLEET_GENERATION"])
FIRST = int(os.environ.get("FLEET_RESUME_STEP", 0))
STORY = os.environ["STORY"].split()
EVENT = STORY[GENERATION - 1] if GENERATION <= len(STORY) else ""


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
    rows, targets = data.batch(step)
    return rows[RANK::WORLD], targets[RANK::WORLD]


def after_step(step, loss, checkpoint):
    """Report step `step` and fail as the story says. `checkpoint(step)` saves it and returns the
    path; rank 0 calls it."""
    report(step=step, steps=STEPS, loss=float(loss))
    if RANK == 0 and step % 5 == 0:
        report(checkpoint=step, path=checkpoint(step))
    if (EVENT, step) in (("101", 10), ("102", 20), ("kill", 30)):
        happen()


def happen():
    """The event of this generation, once no rank needs another one: a rank whose peer has gone may
    fail before that peer's process has ended."""
    fails = RANK == {"101": 1, "102": 0}.get(EVENT)
    if not fails:
        mark(RANK).touch()
        say(waits=True)
        time.sleep(600)
    while not all(mark(rank).exists() for rank in range(WORLD) if rank != RANK):
        time.sleep(0.01)
    sys.exit(int(EVENT))


def mark(rank):
    return pathlib.Path(os.environ["WHERE"], f"waits-{GENERATION}-{rank}")
