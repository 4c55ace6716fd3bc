#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Chaos: real jobs of all kinds, struck at random moments.

    tests/chaos/chaos.py [--seconds N] [--runs N] [--seed N]

Each run draws from its seed a way to train, a number of workers, and one to four faults; the next
run has the next seed. Whatever happens, the job ends as Succeeded and leaves no process behind.
Its losses and weights have the bits of a job that nothing disturbed, and every sample was used
exactly once. Where weights depend on workers (dependsOnWorkers), the loss comes near.

When a fault comes is up to the machine: the run must be right at any time, so no run depends on
it. Root gets a network and disks of its own, in namespaces; without root these faults are left
out. The last line is "N passed, N failed".
"""

import argparse
import ctypes
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

import faults
import run as runs
import samples
import shapes

HERE = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(os.environ.get("FLEET_BIN", HERE / "build/bin"))
SLOW_DISK = HERE / "build/release/tests/preload/slow_disk.so"
SAMPLES = 500  # of an epoch
BAND = 0.15  # of the loss where weights depend on workers
DISK_BYTES = 24 << 20


def enter_own_world():
    """Go on in namespaces of our own, if we may."""
    if os.environ.get("CHAOS_OWN_WORLD") is not None:
        return os.environ["CHAOS_OWN_WORLD"] == "1"
    works = os.geteuid() == 0 and subprocess.run(
        ["unshare", "-n", "-m", "true"], capture_output=True, check=False).returncode == 0
    os.environ["CHAOS_OWN_WORLD"] = "1" if works else "0"
    if not works:
        print("without links and disks of its own: not root, or no namespaces")
        return False
    os.execvp("unshare", ["unshare", "-n", "-m", sys.executable, *sys.argv])


def mount_disk(folder):
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"chaos", os.fsencode(folder), b"tmpfs", 0, f"size={DISK_BYTES}".encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount a tmpfs", folder)
    return libc


class Chaos:
    def __init__(self, work, has_own_world):
        self.work, self.has_own_world, self.references = pathlib.Path(work), has_own_world, {}
        self.text = self.work / "text"
        golden = (HERE / "tests/golden/torch/jobs/text.txt").read_bytes()
        self.text.write_bytes(golden[:SAMPLES * 16 + 1])

    def environment(self, folder, slow_ms):
        more = {runs.MARK: str(os.getpid()), "FLEET_SAMPLE_LOG": str(folder / "samples")}
        if slow_ms and SLOW_DISK.exists():
            more |= {"LD_PRELOAD": str(SLOW_DISK), "SLOW_DISK_MS": str(slow_ms)}
        return os.environ | more

    def reference(self, shape):
        """The undisturbed run with the same weights; each is run once."""
        key = (shape.same, shape.optimizer, shape.more) if shape.same is not None else shape.name
        if key not in self.references:
            folder = self.work / f"reference-{len(self.references)}"
            (folder / "samples").mkdir(parents=True)
            (folder / "job.yaml").write_text(
                shapes.job(shape, folder / "checkpoints", self.text, reference=True))
            with open(folder / "log", "wb") as log:
                one = runs.Run(BIN / "fleetjob", folder / "job.yaml", None,
                               self.environment(folder, 0), log)
                one.follow(lambda _: None, [])
            if one.wait() != 0 or one.problem or not one.end or one.end["state"] != "Succeeded":
                raise runs.Broken(f"the undisturbed job failed: {one.problem} {one.end}\n"
                                  + (folder / "log").read_text()[-2000:])
            samples.check(folder / "samples", shapes.STEPS, shapes.BATCH, shape.merge, SAMPLES)
            self.references[key] = one
        return self.references[key]

    def play(self, seed):
        """One run; raises Broken or AssertionError. Returns words about it."""
        dice = random.Random(seed)
        shape = dice.choice(shapes.SHAPES)
        workers = dice.choice(shape.workers)
        slow_ms = dice.choice((0, 0, 2, 20))
        without = set() if self.has_own_world else faults.NETWORK | faults.DISK
        coming = faults.draw(dice, shapes.STEPS, without)
        print(f"seed {seed}: {shape.name}, {workers} workers, disk {slow_ms} ms; "
              + "; ".join(f"{f.kind} at {f.step} ({f.victim}, {f.seconds} s)" for f in coming),
              flush=True)
        folder = self.work / f"seed-{seed}"
        for name in ("samples", "disk"):
            (folder / name).mkdir(parents=True)
        disk = folder / "disk"
        libc = mount_disk(disk) if self.has_own_world else None
        try:
            done = self.train(seed, shape, workers, coming, folder, slow_ms, dice)
        finally:
            if self.has_own_world:
                faults.set_loopback(True)
                for pid in runs.marked():
                    faults.send(pid, 9)
                libc.umount2(os.fsencode(disk), 2)  # MNT_DETACH
        self.compare(shape, done, folder)
        shutil.rmtree(folder)
        return f"{done['struck']} struck, {done['restarts']} restarts, {done['runs']} runs"

    def train(self, seed, shape, workers, coming, folder, slow_ms, dice):
        """Run the job until it has succeeded, again after its own end was forced."""
        done = {"struck": 0, "restarts": 0, "runs": 0, "losses": {}, "last": None}
        (folder / "job.yaml").write_text(
            shapes.job(shape, folder / "disk/checkpoints", self.text))
        timers = []

        def on_event(one):
            while coming and one.last_step is not None and one.last_step >= coming[0].step:
                fault = coming.pop(0)
                count, heal = faults.strike(fault, one.process.pid, folder / "disk")
                done["struck"] += count
                if heal:
                    timers.append((time.monotonic() + fault.seconds, heal))

        while True:
            done["runs"] += 1
            with open(folder / "log", "ab") as log:
                one = runs.Run(BIN / "fleetjob", folder / "job.yaml", workers,
                               self.environment(folder, slow_ms), log)
                one.follow(on_event, timers)
            code = one.wait()
            while timers:
                timers.pop()[1]()
            runs.expect_nothing_left()
            done["restarts"] += one.restarts
            done["losses"] |= one.losses
            if one.problem:
                raise runs.Broken(one.problem)
            if code == 0:
                done["last"] = one
                return done
            if code not in (130, 137):
                raise runs.Broken(f"exit code {code}, {one.end}")
            workers = dice.choice(shape.workers) if shape.same is not None else workers

    def compare(self, shape, done, folder):
        wanted, found = self.reference(shape), done["last"]
        if found.end["state"] != "Succeeded":
            raise runs.Broken(f"state {found.end['state']}")
        if sorted(done["losses"]) != list(range(1, shapes.STEPS + 1)):
            raise runs.Broken("steps were not reported: " + str(
                sorted(set(range(1, shapes.STEPS + 1)) - set(done["losses"]))))
        if shape.same is None:
            tail = range(shapes.STEPS - 19, shapes.STEPS + 1)
            ours, theirs = (sum(x[s] for s in tail) / 20 for x in (done["losses"], wanted.losses))
            if not abs(ours - theirs) <= BAND * theirs:
                raise runs.Broken(f"loss {ours}, undisturbed {theirs}")
        else:
            for step, loss in sorted(done["losses"].items()):
                if loss != wanted.losses[step]:
                    raise runs.Broken(f"step {step}: loss {loss}, not {wanted.losses[step]}")
            if found.end["weightsSha256"] != wanted.end["weightsSha256"]:
                raise runs.Broken(f"weights {found.end['weightsSha256']}, undisturbed "
                                  f"{wanted.end['weightsSha256']}")
        samples.check(folder / "samples", shapes.STEPS, shapes.BATCH, shape.merge, SAMPLES)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    own = enter_own_world()
    if own:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        faults.set_loopback(True)
    began, passed, broken = time.monotonic(), 0, []
    work = tempfile.mkdtemp(prefix="fleetjob-chaos-")
    chaos, seed = Chaos(work, own), wanted.seed
    while (seed < wanted.seed + wanted.runs if wanted.runs else
           time.monotonic() < began + (wanted.seconds or 600)):
        try:
            print(f"seed {seed}: ended well: {chaos.play(seed)}", flush=True)
            passed += 1
        except (runs.Broken, AssertionError) as error:
            broken.append(seed)
            print(f"not ok: seed {seed}: {error}\n"
                  f"    its files are in {work}/seed-{seed}; again: make chaos RUNS=1 SEED={seed}",
                  flush=True)
        seed += 1
    if not broken:
        shutil.rmtree(work)
    print(f"{passed} passed, {len(broken)} failed")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
