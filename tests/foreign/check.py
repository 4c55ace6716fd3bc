# SPDX-License-Identifier: Apache-2.0
"""A script of another framework trains under `fleetjob run`, with all that can happen to it.

    check.py FRAMEWORK PYTHON FLEETJOB FOLDER

common.py has the story. The last line is "ok …" with the figures, or an error ends this program.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading

import story as stories

LIMIT_S = 900
EVENTS = ["101", "102", "kill"]
framework, python, fleetjob, folder = sys.argv[1:]


def run(story):
    """The events; the ranks' lines go to `story`."""
    job = pathlib.Path(folder, f"{framework}.yaml")
    command = [python, "-u", str(stories.HERE / f"{framework}_train.py")]
    job.write_text(stories.job(framework, EVENTS, command, folder))
    process = subprocess.Popen([fleetjob, "run", "--json", job], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    reader = threading.Thread(target=lambda: [story.take(line) for line in process.stderr])
    reader.start()
    events = [json.loads(line) for line in process.stdout]
    code = process.wait()
    reader.join()
    timer.cancel()
    story.expect(code == 0, f"exit code {code}, {events[-1:]}")
    return events


def main():
    story = stories.Story(framework, EVENTS, lambda fact: fact["pid"],
                          lambda pid: os.kill(pid, signal.SIGKILL))
    events = run(story)
    losses = {e["step"]: e["loss"] for e in events if e["event"] == "step"}
    print("  ok  " + story.check([e["cause"] for e in events if e["event"] == "restart"], losses))


main()
