# SPDX-License-Identifier: Apache-2.0
"""A script of another framework trains under a FleetJob, with all that can happen to it.

    check.py FRAMEWORK PYTHON FLEETJOB FOLDER

common.py has the story. The last line is "ok …" with the figures, or an error ends this program.
"""

import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 900
framework, python, fleetjob, folder = sys.argv[1:]

JOB = f"""apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {{name: {framework}}}
spec:
  worker:
    replicas: 2
    template:
      spec:
        containers:
          - name: trainer
            env:
              - {{name: WHERE, value: {folder}}}
              - {{name: PATH, value: '{os.environ["PATH"]}'}}
              - {{name: OMP_NUM_THREADS, value: '1'}}
            command: [{python}, -u, {HERE}/{framework}_train.py]
  strategy:
    nccl_comm_num: 3
    amp: true
    amp_configs: {{init_loss_scaling: 4096}}
    fuse_grad_size_in_MB: 16
  autoParallel: {{parallel_mode: data_parallel, gradients_mean: true}}
  runPolicy: {{restart: {{maxRestarts: 10}}}}
"""


def expect(condition, words):
    if not condition:
        raise SystemExit(f"{framework}: {words}")


class Story:
    """What the run prints, as it comes, and when the processes of each generation ended."""

    def __init__(self):
        self.facts, self.events, self.other, self.ended = [], [], [], {}

    def take_error(self, line):
        text = line.split("FACTS ", 1)
        if len(text) < 2:
            self.other.append(line)
            return
        fact = json.loads(text[1])
        self.facts.append(fact)
        if "pid" in fact:
            threading.Thread(target=self.watch, args=(fact,), daemon=True).start()
        if fact.get("waits") and fact["rank"] == 1:
            os.kill(self.pid_of(fact), signal.SIGKILL)

    def watch(self, fact):
        """Note when the process ends; a zombie has ended."""
        try:
            fd = os.pidfd_open(fact["pid"])
        except ProcessLookupError:
            return
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()
        self.ended[fact["generation"], fact["rank"]] = time.monotonic()
        os.close(fd)

    def pid_of(self, fact):
        return next(f["pid"] for f in self.facts if "pid" in f and f["rank"] == fact["rank"]
                    and f["generation"] == fact["generation"])

    def one(self, key, generation=None, rank=0):
        found = [f for f in self.facts if key in f and f["rank"] == rank
                 and generation in (None, f["generation"])]
        expect(found, f"rank {rank} never said {key}: " + "".join(self.other[-30:]))
        return found[-1]


def run():
    story = Story()
    job = pathlib.Path(folder, f"{framework}.yaml")
    job.write_text(JOB)
    process = subprocess.Popen([fleetjob, "run", "--json", job], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    timer = threading.Timer(LIMIT_S, process.kill)
    timer.start()
    reader = threading.Thread(target=lambda: [story.take_error(line) for line in process.stderr])
    reader.start()
    story.events = [json.loads(line) for line in process.stdout]
    code = process.wait()
    reader.join()
    timer.cancel()
    restarts = [e for e in story.events if e["event"] == "restart"]
    expect(code == 0, f"exit code {code}, {story.events[-1:]}: " + "".join(story.other[-40:]))
    return story, restarts


def check_environment(story):
    for generation in range(1, 5):
        seen = [story.one("environment", generation, rank)["environment"] for rank in (0, 1)]
        for rank, env in enumerate(seen):
            wanted = {
                "RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
                "GROUP_RANK": rank, "GROUP_WORLD_SIZE": 2, "PADDLE_TRAINER_ID": rank,
                "PADDLE_TRAINERS_NUM": 2, "PADDLE_GLOBAL_RANK": rank, "PADDLE_GLOBAL_SIZE": 2,
                "PADDLE_RANK_IN_NODE": 0, "PADDLE_LOCAL_RANK": 0, "PADDLE_LOCAL_SIZE": 1,
                "PADDLE_NNODES": 2, "PADDLE_JOB_ID": framework, "PADDLE_DISTRI_BACKEND": "gloo",
                "PADDLE_PG_TIMEOUT": 1800000, "FLAGS_stop_check_timeout": 900,
                "FLAGS_selected_gpus": 0, "FLAGS_nccl_nrings": 3, "MS_ROLE": "MS_WORKER",
                "MS_WORKER_NUM": 2, "MS_NODE_ID": rank, "FLEET_GENERATION": generation,
                "OMP_NUM_THREADS": 1,
            }
            for name, value in wanted.items():
                expect(env.get(name) == str(value), f"{name} is {env.get(name)}, not {value}")
            ends = env["PADDLE_TRAINER_ENDPOINTS"].split(",")
            expect(len(ends) == 2 and env["PADDLE_CURRENT_ENDPOINT"] == ends[rank], f"{ends}")
            expect(env["PADDLE_MASTER"] == seen[0]["PADDLE_MASTER"], "PADDLE_MASTER differs")


def check_strategy(story):
    if framework == "paddle":
        read = story.one("strategy")["strategy"]
        expect(read == {"nccl_comm_num": 3, "amp": True, "fuse_grad_size_in_MB": 16,
                        "init_loss_scaling": 4096}, f"Paddle has read {read}")
    if framework == "mindspore":
        fact = story.one("context")
        expect(fact["same_in_file"] and fact["mode"] == "data_parallel" and fact["mean"],
               f"MindSpore's context: {fact}")
        expect(fact["world"] == 2, "MindSpore's world")


def main():
    story, restarts = run()
    causes = [(r["cause"], r.get("exitCode")) for r in restarts]
    expect([c for c, _ in causes] == ["RestartRequested", "RestartRequested", "MemberLost"],
           f"restarts: {restarts}")
    check_environment(story)
    check_strategy(story)
    waits = []
    for generation in range(2, 5):
        last = max(story.ended[generation - 1, rank] for rank in (0, 1))
        began = max(story.one("began", generation, rank)["began"] for rank in (0, 1))
        waits.append(began - last)
    weights = [story.one("weights", 4, rank)["weights"] for rank in (0, 1)]
    expect(weights[0] == weights[1], f"the ranks' weights differ: {weights}")
    losses = {e["step"]: e["loss"] for e in story.events if e["event"] == "step"}
    expect(max(losses) == 40 and losses[40] < losses[1], f"losses: {losses}")
    print("  ok  " + framework + " " + story.one(framework)[framework]
          + ": exits 101 and 102, a kill; from the end of the last process to the start of the "
          + "last new one " + ", ".join(f"{wait * 1e3:.0f}" for wait in waits) + " ms")


main()
