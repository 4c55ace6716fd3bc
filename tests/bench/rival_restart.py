#!/usr/bin/env python3
"""What a killed trainer costs, beside torchrun: from SIGKILL to the next step that all ranks made.

    tests/bench/rival_restart.py [--rounds 5] [--ranks 4] [--fleetjob build/bin/fleetjob]

The same DistributedDataParallel program (gloo, CPU, a checkpoint each ten steps) is run by

    torchrun             with --max-restarts, as its documentation tells
    fleetjob, own        as the command of a FleetJob, on this machine

and the built-in trainer's gpt, which keeps its state in the survivors, by

    fleetjob, built-in   the job of docs/examples/gpt-text.yaml

In each round the last rank is killed once after at least 30 steps. Printed for each: the least, the
median and the greatest time, and how many steps were made again. Needs PyTorch in this python.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

# Prints "PID <rank> <pid>" at its start and "STEP <step> <monotonic seconds>" by rank 0.
PROGRAM = r"""
import json, os, signal, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
print("PID", rank, os.getpid(), flush=True)
pipe = os.open(os.environ.get("FLEET_PROGRESS_FILE", os.devnull), os.O_WRONLY)
def report(**line):
    if rank == 0:
        os.write(pipe, (json.dumps(line) + "\n").encode())
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
path, step = os.environ["CHECKPOINT"], 0
if os.path.exists(path):
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
    step = state["step"]
report(resumed=step, steps=100000)
ddp = DDP(model)
while not os.path.exists(path + ".stop"):
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(step * 1000 + rank))
    optimizer.zero_grad()
    loss = (ddp(x) - x.sum(1, keepdim=True)).pow(2).mean()
    loss.backward()
    optimizer.step()
    dist.barrier()
    step += 1
    if rank == 0:
        if step % 10 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "step": step}, path + ".new")
            os.replace(path + ".new", path)
            report(step=step, checkpoint=step, path=path)
        else:
            report(step=step)
        print("STEP", step, time.monotonic(), flush=True)
    time.sleep(0.02)
"""

JOB = """
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: restart}
spec:
  worker:
    replicas: %d
    template:
      spec:
        terminationGracePeriodSeconds: 5
        containers:
          - {name: trainer, image: none, command: [%s, -u, %s]}
"""


class Run:
    """A command whose lines are read; stop() ends its process group."""

    def __init__(self, command, environment):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, start_new_session=True,
                                        env={**os.environ, **environment})

    def lines(self, limit_s=120):
        end = time.monotonic() + limit_s
        for line in self.process.stdout:
            yield line
            if time.monotonic() > end:
                raise SystemExit("not within the time")
        raise SystemExit("the command ended: " + " ".join(self.process.args))

    def stop(self):
        try:
            os.killpg(self.process.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def own_round(command, environment, ranks):
    """Seconds from the kill to the first step after it, and steps that were made again."""
    run = Run(command, environment)
    pids, newest, killed_at, before = {}, 0, None, 0
    try:
        for line in run.lines():
            found = re.search(r"PID (\d+) (\d+)", line)
            if found:
                pids[int(found[1])] = int(found[2])
            found = re.search(r"STEP (\d+) ([\d.]+)", line)
            if not found:
                continue
            step, at = int(found[1]), float(found[2])
            if killed_at is None and step >= 35 and step % 10 == 5 and len(pids) == ranks:
                killed_at, before = time.monotonic(), step
                os.kill(pids.pop(ranks - 1), signal.SIGKILL)
            elif killed_at is not None and ranks - 1 in pids and at > killed_at:
                return at - killed_at, max(newest - step + 1, 0)
            newest = max(newest, step)
    finally:
        run.stop()


def built_in_round(fleetjob, job, folder, ranks):
    """The same of `fleetjob run --json`; its state file names the trainers."""
    state = os.path.join(folder, "state.json")
    checkpoints = os.path.join(folder, "checkpoints-%d" % time.monotonic_ns())
    run = Run([fleetjob, "run", job, "--workers", str(ranks), "--json", "--state-file", state,
               "--checkpoint", checkpoints], {})
    killed_at, newest = None, 0
    try:
        for line in run.lines():
            event = json.loads(line) if line.startswith("{") else {}
            if event.get("event") != "step":
                continue
            if killed_at is None and event["step"] >= 35:
                with open(state) as file:
                    members = json.load(file)["members"]
                last = next(m for m in members if m["index"] == ranks - 1)
                killed_at = time.monotonic()
                os.kill(last["trainerPids"][0], signal.SIGKILL)
            elif event["generation"] > 1:
                return time.monotonic() - killed_at, max(newest - event["step"] + 1, 0)
            newest = max(newest, event["step"])
    finally:
        run.stop()


def own_commands(options, folder):
    """Who runs the program: name, command."""
    program = os.path.join(folder, "program.py")
    with open(program, "w") as file:
        file.write(PROGRAM)
    job = os.path.join(folder, "own.yaml")
    with open(job, "w") as file:
        file.write(JOB % (options.ranks, sys.executable, program))
    yield "torchrun", [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1",
                       "--nproc-per-node", str(options.ranks), "--max-restarts", "100", program]
    yield "fleetjob, own", [options.fleetjob, "run", job]


def show(name, results):
    times = [seconds for seconds, _ in results]
    print("%-20s %6.2f s  (%.2f … %.2f)   steps made again: %s" % (
        name, statistics.median(times), min(times), max(times),
        ", ".join(str(again) for _, again in results)))
    print(json.dumps({"bench": "restart", "who": name, "medianSeconds": statistics.median(times),
                      "leastSeconds": min(times), "mostSeconds": max(times)}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--fleetjob", default="build/bin/fleetjob")
    options = parser.parse_args()
    options.fleetjob = os.path.abspath(options.fleetjob)
    job = os.path.abspath("docs/examples/gpt-text.yaml")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name, command in own_commands(options, folder):
            results = []
            for i in range(options.rounds):
                path = os.path.join(folder, "%s-%d.pt" % (name[0], i))
                results.append(own_round(command, {"CHECKPOINT": path}, options.ranks))
            show(name, results)
        show("fleetjob, built-in", [built_in_round(options.fleetjob, job, folder, options.ranks)
                                    for _ in range(options.rounds)])


if __name__ == "__main__":
    main()
