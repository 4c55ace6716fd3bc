# SPDX-License-Identifier: Apache-2.0
"""A script of another framework trains under `fleetjob run`, with all that can happen to it.

    check.py FRAMEWORK PYTHON FLEETJOB FOLDER

common.py has the story. The last line is "ok …" with the figures, or an error ends this program.
"""

import json
import pathlib
import subprocess
import sys
import threading

import story as stories

LIMIT_S = 900
framework, python, fleetjob, folder = sys.argv[1:]


def run(story):
    """The events; the ranks' lines go to `story`."""
    job = pathlib.Path(folder, f"{framework}.yaml")
    command = [python, "-u", str(stories.HERE / f"{framework}_train.py")]
    job.write_text(stories.job(framework, command, folder))
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
    story = stories.Story(framework)
    events = run(story)
    figures = story.check([e["cause"] for e in events if e["event"] == "restart"])
    losses = {e["step"]: e["loss"] for e in events if e["event"] == "step"}
    story.expect(max(losses) == 40 and losses[40] < losses[1], f"losses: {losses}")
    print(f"  ok  {figures}")


main()
