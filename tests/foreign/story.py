# SPDX-License-Identifier: Apache-2.0
"""The job of a framework's script, and what its lines and events must say (common.py)."""

import json
import os
import pathlib
import select
import threading
import time

import data

HERE = pathlib.Path(__file__).resolve().parent
CAUSES = {"101": "RestartRequested", "102": "RestartRequested", "kill": "MemberLost"}


class Failed(SystemExit):
    pass


def job(framework, story, command, folder, image="", mounts=()):
    """The FleetJob as YAML. `folder` is where checkpoints go; `image` and `mounts`, folders of the
    machine, are for a cluster."""
    env = {"WHERE": folder, "STORY": " ".join(story), "http_proxy": "http://nowhere:1",
           "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"}
    container = {"name": "trainer", "command": command}
    pod = {"terminationGracePeriodSeconds": 5, "containers": [container]}
    if image:
        pod["volumes"] = [{"name": f"v{i}", "hostPath": {"path": path}}
                          for i, path in enumerate(mounts)]
        container |= {"image": image, "imagePullPolicy": "IfNotPresent", "volumeMounts": [
            {"name": f"v{i}", "mountPath": path} for i, path in enumerate(mounts)]}
    else:
        env["PATH"] = os.environ["PATH"]
    container["env"] = [{"name": name, "value": value} for name, value in env.items()]
    return json.dumps({  # JSON is YAML
        "apiVersion": "fleetjob.dev/v1alpha1", "kind": "FleetJob", "metadata": {"name": framework},
        "spec": {
            "worker": {"replicas": 2, "template": {"spec": pod}},
            "strategy": {"nccl_comm_num": 3, "amp": True, "fuse_grad_size_in_MB": 16,
                         "amp_configs": {"init_loss_scaling": 4096}},
            "autoParallel": {"parallel_mode": "data_parallel", "gradients_mean": True},
            "runPolicy": {"restart": {"maxRestarts": len(story)}}}})


class Story:
    """What the ranks say, as it comes, and when the processes of each generation ended.

    story: how each generation but the last ends. find(fact): the number on this machine of the
    process that said `fact` with its own number. kill(pid): end it, as the story says."""

    def __init__(self, framework, story, find, kill):
        self.framework, self.story, self.find, self.kill = framework, story, find, kill
        self.facts, self.other, self.ended, self.pids = [], [], {}, {}
        self.lock, self.waiting = threading.Lock(), []  # generations, once for each rank

    def expect(self, condition, words):
        if not condition:
            lines = [line for line in self.other if "WARNING" not in line]
            raise Failed(f"{self.framework}: {words}\n" + "".join(lines[-60:]))

    def take(self, line):
        """A line of a rank; several threads may call it."""
        text = line.split("FACTS ", 1)
        if len(text) < 2:
            self.other.append(line)
            return
        fact = json.loads(text[1])
        self.facts.append(fact)
        place = fact["generation"], fact["rank"]
        if "pid" in fact:
            self.pids[place] = self.find(fact)
            threading.Thread(target=self.watch, args=(place,), daemon=True).start()
        if fact.get("waits"):
            with self.lock:
                self.waiting.append(fact["generation"])
                are_all = self.waiting.count(fact["generation"]) == 2
            if are_all:
                self.kill(self.pids[fact["generation"], 1])

    def watch(self, place):
        """Note when the process ends; a zombie has ended. An end before that is not noted."""
        try:
            fd = os.pidfd_open(self.pids[place] or 0)
        except OSError:
            return
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()
        self.ended[place] = time.monotonic()
        os.close(fd)

    def one(self, key, generation=None, rank=0):
        found = [f for f in self.facts if key in f and f["rank"] == rank
                 and generation in (None, f["generation"])]
        self.expect(found, f"rank {rank} of generation {generation} never said {key}")
        return found[-1]

    def check_environment(self):
        for generation in range(1, len(self.story) + 2):
            seen = [self.one("environment", generation, rank)["environment"] for rank in (0, 1)]
            for rank, env in enumerate(seen):
                self.check_variables(generation, rank, env)
                ends = env["PADDLE_TRAINER_ENDPOINTS"].split(",")
                self.expect(len(ends) == 2 and env["PADDLE_CURRENT_ENDPOINT"] == ends[rank], ends)
                for name in ("PADDLE_MASTER", "MASTER_ADDR", "MASTER_PORT", "MS_SCHED_HOST",
                             "MS_SCHED_PORT"):
                    self.expect(env[name] == seen[0][name], f"{name} differs")
                self.expect(env["PADDLE_MASTER"] == ends[0], "PADDLE_MASTER is not rank 0's")

    def check_variables(self, generation, rank, env):
        wanted = {
            "RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1,
            "GROUP_RANK": rank, "GROUP_WORLD_SIZE": 2, "PADDLE_TRAINER_ID": rank,
            "PADDLE_TRAINERS_NUM": 2, "PADDLE_GLOBAL_RANK": rank, "PADDLE_GLOBAL_SIZE": 2,
            "PADDLE_RANK_IN_NODE": 0, "PADDLE_LOCAL_RANK": 0, "PADDLE_LOCAL_SIZE": 1,
            "PADDLE_NNODES": 2, "PADDLE_JOB_ID": self.framework, "PADDLE_DISTRI_BACKEND": "gloo",
            "PADDLE_PG_TIMEOUT": 1800000, "FLAGS_stop_check_timeout": 900,
            "FLAGS_selected_gpus": 0, "FLAGS_nccl_nrings": 3, "MS_ROLE": "MS_WORKER",
            "MS_WORKER_NUM": 2, "MS_NODE_ID": rank, "RANK_ID": rank, "RANK_SIZE": 2,
            "DEVICE_ID": 0, "FLEET_GENERATION": generation, "OMP_NUM_THREADS": 1,
            "PADDLE_AUTO_CLUSTER": 0, "PADDLE_MASTER_ENDPOINT": env.get("PADDLE_MASTER"),
        }
        for name, value in wanted.items():
            self.expect(env.get(name) == str(value), f"{name} is {env.get(name)}, not {value}")
        for name in ("PADDLE_LOG_DIR", "POD_NAME", "FLEET_STRATEGY_FILE", "FLEET_STRATEGY_JSON",
                     "FLEET_AUTO_PARALLEL_FILE", "FLEET_AUTO_PARALLEL_JSON", "RANK_TABLE_FILE"):
            self.expect(env.get(name), f"{name} is missing")
        self.expect("http_proxy" not in env, "http_proxy is there")
        self.expect(("FLEET_RESUME_STEP" in env) == (generation > 1), "FLEET_RESUME_STEP")

    def check_strategy(self):
        if self.framework == "paddle":
            read = self.one("strategy")["strategy"]
            self.expect(read == {"nccl_comm_num": 3, "amp": True, "fuse_grad_size_in_MB": 16,
                                 "init_loss_scaling": 4096}, f"Paddle has read {read}")
        if self.framework == "mindspore":
            fact = self.one("context")
            self.expect(fact["same_in_file"] and fact["mode"] == "data_parallel" and fact["mean"],
                        f"MindSpore's context: {fact}")
            self.expect(fact["world"] == 2, "MindSpore's world")

    def check_result(self, losses):
        """`losses` of the job, by step, against those of a training without a framework."""
        weights, wanted = data.train(2)
        for step, loss in losses.items():
            self.expect(abs(loss - wanted[step]) <= 1e-3 * wanted[step] + 1e-5,
                        f"the loss of step {step} is {loss}, not {wanted[step]}")
        for rank in 0, 1:
            found = self.one("weights", len(self.story) + 1, rank)["weights"]
            self.expect(all(abs(a - b) < 1e-3 for a, b in zip(found, weights, strict=True)),
                        f"the weights of rank {rank} are {found}, not {weights}")

    def check(self, causes, losses):
        """All of it; returns the line that says what was measured."""
        self.expect(causes == [CAUSES[event] for event in self.story],
                    f"causes of restarts: {causes}")
        self.expect(data.STEPS in losses, f"losses: {losses}")
        self.check_environment()
        self.check_strategy()
        self.check_result(losses)
        waits = []
        for generation in range(2, len(self.story) + 2):
            ends = [self.ended.get((generation - 1, rank)) for rank in (0, 1)]
            began = max(self.one("began", generation, rank)["began"] for rank in (0, 1))
            waits.append(f"{(began - max(ends)) * 1e3:.0f}" if None not in ends else "?")
        return (f"{self.framework} {self.one(self.framework)[self.framework]}: "
                f"{', '.join(self.story)}; from the end of the last process to the start of the "
                f"last new one {', '.join(waits)} ms")
