# SPDX-License-Identifier: Apache-2.0
"""A script of another framework trains in the cluster that KUBECONFIG names, in an image of its own
whose nodes are on this machine (e2e/cluster). A rank is killed, and all start again.

    cluster.py FRAMEWORK PYTHON CLUSTER FOLDER [MOUNT]

The image is fleet.local/FRAMEWORK:1 (image.sh). CLUSTER is e2e/cluster/cluster, FOLDER takes the
checkpoints, MOUNT has the packages. The last line has the figures, or an error ends this program.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import story as stories

LIMIT_S = 1800
framework, python, cluster, folder = sys.argv[1:5]
mounts = [folder, *sys.argv[5:]]
events = os.environ.get("STORY", "kill").split()
over = threading.Event()


def kubectl(*arguments, **options):
    return subprocess.run(["kubectl", *arguments], text=True, capture_output=True, **options)


def status():
    found = kubectl("get", "fj", framework, "-o", "json")
    return json.loads(found.stdout).get("status", {}) if found.returncode == 0 else {}


def host_number(fact):
    """Of the process that its pod calls fact["pid"]; None if it has ended."""
    pod = fact["environment"]["FLEET_POD_NAME"]
    numbers = subprocess.run([cluster, "pids", pod], text=True, capture_output=True).stdout
    for pid in numbers.split():
        try:
            lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        own = next(line.split()[-1] for line in lines if line.startswith("NSpid:"))
        if own == str(fact["pid"]):
            return int(pid)
    return None


def follow(story, pod):
    """Each line of the pod's log once. There is no log before its container runs; the agent lives
    through all generations. A connection that breaks is made again."""
    taken = 0
    while True:
        is_last = over.is_set()
        log = subprocess.Popen(["kubectl", "logs", *([] if is_last else ["-f"]), pod, "-c",
                                "trainer"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                               text=True)
        for number, line in enumerate(log.stdout):
            if number >= taken:
                story.take(line)
                taken += 1
        log.wait()
        if is_last:
            return
        over.wait(0.2)


def main():
    story = stories.Story(framework, events, host_number, lambda pid: os.kill(pid, signal.SIGKILL))
    command = [python, "-u", f"/app/{framework}_train.py"]
    job = stories.job(framework, events, command, folder, f"fleet.local/{framework}:1", mounts)
    applied = kubectl("apply", "-f", "-", input=job)
    story.expect(applied.returncode == 0, applied.stderr)
    readers = [threading.Thread(target=follow, args=(story, f"{framework}-worker-{i}-0"),
                                daemon=True) for i in (0, 1)]
    for reader in readers:
        reader.start()
    until, now = time.monotonic() + LIMIT_S, {}
    while time.monotonic() < until and now.get("state") not in ("Succeeded", "Failed"):
        time.sleep(0.5)
        now = status()
    story.expect(now.get("state") == "Succeeded", f"the job's status: {now}")
    over.set()
    for reader in readers:
        reader.join()
    progress = now["progress"]
    print(story.check([entry["cause"] for entry in now["restarts"]["history"]],
                      {progress["step"]: progress["loss"]}))


main()
