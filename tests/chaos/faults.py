# SPDX-License-Identifier: Apache-2.0
"""Faults: which ones a seed draws, and how they are done to a running job."""

import dataclasses
import fcntl
import os
import pathlib
import signal
import socket
import struct

# How often each is drawn, relative to the others.
KINDS = {
    "kill a trainer": 6,
    "kill rank 0": 3,
    "kill two trainers": 2,
    "kill an agent": 4,
    "stop a trainer": 1,  # for good: it is replaced
    "stop an agent": 1,
    "pause a trainer": 2,
    "pause an agent": 2,
    "pause fleetjob": 2,
    "kill fleetjob": 3,  # and run the job again, perhaps with another number of workers
    "interrupt fleetjob": 2,  # the same after a Ctrl-C
    "cut the links": 3,  # needs a network of our own
    "fill the disk": 3,  # needs a disk of our own
}
NETWORK, DISK = {"cut the links"}, {"fill the disk"}


@dataclasses.dataclass(frozen=True)
class Fault:
    step: int  # comes once this step was read, which may be late
    kind: str
    victim: int  # counts through the processes
    seconds: float  # of pauses, cuts, and full disks


def draw(dice, steps, without):
    """The faults of a run, by step, early enough to be in time."""
    kinds = [k for k in KINDS if k not in without]
    faults = []
    for _ in range(dice.randint(1, 4)):
        kind = dice.choices(kinds, [KINDS[k] for k in kinds])[0]
        faults.append(Fault(dice.randint(1, steps * 2 // 3), kind, dice.randrange(16),
                            dice.choice((0.02, 0.1, 0.4, 1.5))))
    return sorted(faults, key=lambda fault: fault.step)


# ---- processes -----------------------------------------------------------------------------------


def read_stat(pid):
    """Parent, state and name of a process; None: there is none."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, rest = text[text.index("(") + 1:text.rindex(")")], text[text.rindex(")") + 2:].split()
    return int(rest[1]), rest[0], name


def children(parent, name):
    found = []
    for entry in os.listdir("/proc"):
        stat = read_stat(entry) if entry.isdigit() else None
        if stat and stat[0] == parent and stat[1] not in "ZX" and name.startswith(stat[2]):
            found.append(int(entry))
    return sorted(found)


def agents(fleetjob):
    return children(fleetjob, "fleetjob-agent")


def trainers(fleetjob):
    return [pid for agent in agents(fleetjob) for pid in children(agent, "fleetjob-train")]


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


# ---- a network and a disk of our own -------------------------------------------------------------


def set_loopback(is_up):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sH14x", b"lo", 0x1 if is_up else 0)
        fcntl.ioctl(sock, 0x8914, request)  # SIOCSIFFLAGS


def fill(folder):
    """Write until nothing fits any more."""
    try:
        with open(os.path.join(folder, "filler"), "wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))
    except OSError:
        pass


def empty(folder):
    pathlib.Path(folder, "filler").unlink(missing_ok=True)


# ---- doing it ------------------------------------------------------------------------------------


def strike(fault, fleetjob, disk):
    """Do it to the job of process `fleetjob`. Returns (how many were struck, what heals it after
    fault.seconds or None)."""
    if fault.kind == "cut the links":
        set_loopback(False)
        return 1, lambda: set_loopback(True)
    if fault.kind == "fill the disk":
        fill(disk)
        return 1, lambda: empty(disk)
    if fault.kind == "kill fleetjob":
        return send(fleetjob, signal.SIGKILL), None
    if fault.kind == "interrupt fleetjob":
        return send(fleetjob, signal.SIGINT), None
    if fault.kind == "pause fleetjob":
        return send(fleetjob, signal.SIGSTOP), lambda: send(fleetjob, signal.SIGCONT)
    victims = agents(fleetjob) if "agent" in fault.kind else trainers(fleetjob)
    if not victims:
        return 0, None
    first = 0 if fault.kind == "kill rank 0" else fault.victim % len(victims)
    chosen = [victims[first]]
    if fault.kind == "kill two trainers" and len(victims) > 1:
        chosen.append(victims[(first + 1) % len(victims)])
    number = signal.SIGKILL if fault.kind.startswith("kill") else signal.SIGSTOP
    count = sum(send(pid, number) for pid in chosen)
    heals = fault.kind.startswith("pause")
    return count, (lambda: [send(pid, signal.SIGCONT) for pid in chosen]) if heals else None
