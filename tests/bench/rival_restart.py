#!/usr/bin/env python3
"""A killed trainer, under torchrun and under `fleetjob run`: `rival_restart.py [--rounds 5] [--workers 4]`.

Both train the demo's model, data parallel on this machine. Once every worker trains, SIGKILL hits
the last rank's trainer; measured is the time from there until all workers have made a step again.
torchrun starts all of them anew, and they load the last checkpoint (every 10 steps). Each round is
one of each, one after the other. Prints a line a round, then both medians and their ratio. Needs
PyTorch; FLEET_BIN is the folder of `fleetjob` (build/bin).
"""
import argparse
import glob
import importlib.metadata
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

LIMIT = 300  # seconds for each wait: a machine that needs longer has no number
HERE = os.path.dirname(os.path.abspath(__file__))
JOB = """
apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {name: restart}
spec:
  worker: {replicas: %d}
  training:
    model: {name: gpt, layers: 4, heads: 4, width: 128, context: 128}
    data: {path: text}
    optimizer: {name: adamw, learningRate: 1.0e-3, beta2: 0.95, weightDecay: 0.1}
    globalBatchSize: %d
    microBatchSize: 4
    steps: 1000000
    checkpoint: {path: checkpoints, everySteps: 10, keep: 2}
"""


def train():
    """One rank of torchrun's: a line "when attempt step pid" in steps.RANK after each step."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from rival_gpt import GPT

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    torch.manual_seed(1)
    model = DistributedDataParallel(GPT(256, 128, 4, 4, 128))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    step = 0
    if os.path.exists("checkpoint"):
        state = torch.load("checkpoint")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    data = torch.randint(0, 256, (2, 4, 128))
    with open("steps.%d" % rank, "a") as steps:
        while True:
            model(data[0], data[1]).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            print(time.monotonic(), attempt, step, os.getpid(), file=steps, flush=True)
            if rank == 0 and step % 10 == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, "new")
                os.rename("new", "checkpoint")


def until(what, found, process):
    """What found() returns once it is not None."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        value = found()
        if value is not None:
            return value
        if process.poll() is not None:
            break
        time.sleep(0.002)
    raise SystemExit("%s: %s; its log:\n%s" % (what, "it ended" if process.poll() is not None else
                                                "not within %d s" % LIMIT, open("log").read()))


def start(command):
    """In the folder of this round; what it prints goes to files, which never fill up."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=open("out", "w"), stderr=open("log", "w"))


def stop(process, trainers):
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid in trainers:  # of a launcher that had to be killed
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def lines(path):
    """Whole lines of a file that is being written."""
    try:
        text = open(path).read()
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()


def torch_steps(workers, attempt):
    """The first step of each rank at that attempt or a later one, as (when, step, pid), or None."""
    first = []
    for rank in range(workers):
        made = [l.split() for l in lines("steps.%d" % rank)]
        made = [(float(l[0]), int(l[2]), int(l[3])) for l in made if int(l[1]) >= attempt]
        if len(made) < (3 if attempt == 0 else 1):
            return None
        first.append(made[0])
    return first


def round_of_torchrun(workers):
    process = start([sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "20",
                     "--nproc-per-node", str(workers), os.path.abspath(__file__), "--train"])
    trainers = []
    try:
        before = until("torchrun's first steps", lambda: torch_steps(workers, 0), process)
        trainers = [pid for _, _, pid in before]
        killed = time.monotonic()
        os.kill(trainers[-1], signal.SIGKILL)
        after = until("torchrun's steps after the kill", lambda: torch_steps(workers, 1), process)
        trainers += [pid for _, _, pid in after]
        return max(when for when, _, _ in after) - killed
    finally:
        stop(process, trainers)


def fleet_steps(generation):
    """When a step of that generation or a later one was seen, which all its workers made together."""
    made = [json.loads(l) for l in lines("out") if '"event":"step"' in l]
    if sum(l["generation"] >= generation for l in made) < (3 if generation == 1 else 1):
        return None
    return time.monotonic()


def fleet_trainers(workers):
    """Their pids by rank, once all are there."""
    try:
        state = json.load(open("state"))
    except (FileNotFoundError, ValueError):
        return None
    pids = [pid for worker in state["members"] for pid in worker["trainerPids"]]
    return pids if len(pids) == workers else None


def round_of_fleetjob(workers):
    with open("job.yaml", "w") as job:
        job.write(JOB % (workers, 4 * workers))
    os.mkdir("text")
    for path in sorted(glob.glob(os.path.join(HERE, "*.c"))):
        shutil.copy(path, "text")
    fleetjob = os.path.join(os.environ.get("FLEET_BIN", os.path.join(HERE, "../../build/bin")), "fleetjob")
    process = start([fleetjob, "run", "job.yaml", "--json", "--state-file", "state"])
    try:
        until("fleetjob's first steps", lambda: fleet_steps(1), process)
        trainers = until("fleetjob's trainers", lambda: fleet_trainers(workers), process)
        killed = time.monotonic()
        os.kill(trainers[-1], signal.SIGKILL)
        return until("fleetjob's steps after the kill", lambda: fleet_steps(2), process) - killed
    finally:
        stop(process, [])


def in_a_folder(measure, workers):
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return measure(workers)
        finally:
            os.chdir(HERE)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--train", action="store_true", help="one rank; torchrun starts it")
    a = parser.parse_args()
    if a.train:
        return train()
    # A store that attempts share still has the addresses of the last one, which refuse connections
    # (PyTorch 2.15): give each attempt its own.
    os.environ.update(OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    theirs, ours = [], []
    for i in range(a.rounds):
        theirs.append(in_a_folder(round_of_torchrun, a.workers))
        ours.append(in_a_folder(round_of_fleetjob, a.workers))
        print("round %d: torchrun %.2f s, fleetjob %.3f s, load %.1f" % (i + 1, theirs[-1], ours[-1], os.getloadavg()[0]),
              flush=True)
    version = importlib.metadata.version("torch")
    them, us = statistics.median(theirs), statistics.median(ours)
    print("median of %d, %d workers: torchrun of PyTorch %s %.2f s, fleetjob %.3f s, ratio %.0f"
          % (a.rounds, a.workers, version, them, us, them / us))
    print(json.dumps({"bench": "restart", "workers": a.workers, "torchrun_s": theirs, "fleetjob_s": ours}))


if __name__ == "__main__":
    main()
