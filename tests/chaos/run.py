# SPDX-License-Identifier: Apache-2.0
"""One run of `fleetjob run --json`: its events, and what is done to it meanwhile."""

import json
import os
import select
import signal
import subprocess
import time

LIMIT_S = 600
MARK = "FLEETJOB_CHAOS"


class Broken(Exception):
    """The run broke a promise."""


class Run:
    def __init__(self, program, job, workers, environment, log):
        self.losses, self.plan, self.end, self.restarts, self.problem = {}, {}, None, 0, ""
        self.last_step = None
        arguments = [program, "run", "--json", job]
        if workers:
            arguments += ["--workers", str(workers)]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=log,
                                        env=environment, start_new_session=True)

    def take(self, line):
        try:
            event = json.loads(line)
        except ValueError:
            self.problem = f"not JSON: {line[:200]!r}"
            return
        name = event.get("event")
        if self.end:
            self.problem = f"event {name} after the end"
        if name == "step":
            if self.last_step is not None and event["step"] != self.last_step + 1:
                self.problem = f"step {event['step']} follows step {self.last_step}"
            self.last_step = event["step"]
            self.losses[event["step"]] = event["loss"]
        elif name == "plan":
            self.plan = event
        elif name == "restart":
            self.restarts += 1
        elif name == "end":
            self.end = event

    def follow(self, on_event, timers):
        """Read events until the end of the output. on_event(run) after each; `timers` is a list of
        (when, call) that on_event may extend."""
        fd, rest, give_up = self.process.stdout.fileno(), b"", time.monotonic() + LIMIT_S
        while True:
            now = time.monotonic()
            for timer in [t for t in timers if t[0] <= now]:
                timers.remove(timer)
                timer[1]()
            if now > give_up:
                self.kill()
                raise Broken(f"still running after {LIMIT_S} s, at step {self.last_step}")
            wait = min([give_up - now] + [max(0, t[0] - now) for t in timers])
            if not select.select([fd], [], [], wait)[0]:
                continue
            data = os.read(fd, 1 << 16)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.take(line)
                on_event(self)

    def kill(self):
        for pid in marked():
            os.kill(pid, signal.SIGKILL)

    def wait(self):
        code = self.process.wait()
        self.process.stdout.close()
        return code if code >= 0 else 128 - code


def marked():
    """Processes of the job, by a variable of their environment."""
    mark, found = f"{MARK}={os.getpid()}".encode(), []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                if mark in file.read().split(b"\0"):
                    found.append(int(entry))
        except OSError:
            continue
    return found


def expect_nothing_left():
    give_up = time.monotonic() + 60
    while left := marked():
        if time.monotonic() > give_up:
            names = [open(f"/proc/{pid}/comm").read().strip() for pid in left]
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            raise Broken(f"processes are left behind: {list(zip(left, names))}")
        time.sleep(0.02)
