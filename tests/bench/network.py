#!/usr/bin/env python3
"""Step times of one job with different strategies over slow networks: `make bench-network`.

    tests/bench/network.py FLEETJOB [--rates 1,10] [--steps N] [--workers N] [--json FILE]

Each job runs in a network namespace of its own whose loopback has a limited rate, and its workers
use TCP (FLEET_SHARED_MEMORY=0). All workers share that loopback: with a rate of R Gbit/s a worker
it gets workers x R, so that all can send at the rate of their network card at once.

The model has many parameters (12.6 M, 50 MB of gradients) for few tokens (8 a worker), so the
exchange bounds a step, as on the GPUs of published tables: with 2 workers, each sends 50 MB, which
takes 40 ms at 10 Gbit/s and 400 ms at 1 Gbit/s. On one core computing takes about 30 ms, and almost
all of that is to read weights and to write gradients; fewer tokens would not make it shorter.

Delay is not shaped, because the kernels of many machines have no netem. All workers share the
processors of one machine, so work of the exchange on the processor does not overlap with computing
if each processor has a worker; only waiting does.

Needs root, `ip` and `tc`. Prints seconds a step (the mean of the second half) and the ratio to
dense.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processes  # noqa: E402

# name: (strategy, what it needs of the job)
STRATEGIES = {
    "dense": "fuse_grad_size_in_MB: 8",
    "dense, no overlap": "fuse_grad_size_in_MB: 8, calc_comm_same_stream: true",
    "fp16_allreduce": "fp16_allreduce: true",
    "dgc": "dgc: true, dgc_configs: {rampup_begin_step: 0, sparsity: [0.999]}",
    "localsgd, k = 1": "localsgd: true, localsgd_configs: {k_steps: 1}",
    "localsgd, k = 2": "localsgd: true, localsgd_configs: {k_steps: 2}",
    "localsgd, k = 4": "localsgd: true, localsgd_configs: {k_steps: 4}",
    "localsgd, k = 8": "localsgd: true, localsgd_configs: {k_steps: 8}",
    "adaptive_localsgd": "adaptive_localsgd: true, adaptive_localsgd_configs: {init_k_steps: 4}",
    "sharding, stage 2": "sharding: true, sharding_configs: {stage: 2}",
    "pipeline": "pipeline: true, pipeline_configs: {accumulate_steps: 2, micro_batch_size: 1}",
}

JOB = """apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {{name: network}}
spec:
  worker: {{replicas: {workers}}}
  strategy: {{{strategy}}}
  training:
    model: {{name: gpt, layers: 4, heads: 8, width: 512, context: 8}}
    data: {{tokenizer: synthetic-markov, symbols: 64}}
    optimizer: {{name: momentum, learningRate: 0.001}}
    globalBatchSize: {batch}
    microBatchSize: 1
    steps: {steps}
"""


class Network:
    """A namespace with a slow loopback; None: as fast as the machine."""

    def __init__(self, bits_per_second):
        self.name = f"fleetjob-bench-{os.getpid()}"
        self.bits_per_second = bits_per_second

    def __enter__(self):
        run = lambda *words: subprocess.run(words, check=True)  # noqa: E731
        run("ip", "netns", "add", self.name)
        run("ip", "-n", self.name, "link", "set", "lo", "up")
        if self.bits_per_second:
            run("tc", "-n", self.name, "qdisc", "add", "dev", "lo", "root", "tbf", "rate",
                f"{self.bits_per_second:.0f}bit", "burst", "256kb", "latency", "200ms")
        return self

    def __exit__(self, *_):
        subprocess.run(["ip", "netns", "del", self.name], check=False)


def mean_step_seconds(lines):
    """Mean over the second half: steps of local updates differ."""
    times = [at for at, event in lines if event.get("event") == "step"]
    half = times[len(times) // 2:]
    return (half[-1] - half[0]) / (len(half) - 1) if len(half) > 3 else None


def measure(program, strategy, rate, options):
    """Seconds a step, or the message of the job that failed."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "job.yaml")
        with open(path, "w") as file:
            file.write(JOB.format(workers=options.workers, strategy=strategy,
                                  batch=options.workers, steps=options.steps))
        with Network(rate * 1e9 * options.workers if rate else 0) as network:
            job = subprocess.Popen(
                ["ip", "netns", "exec", network.name, program, "run", path, "--json"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                env={**os.environ, "FLEET_SHARED_MEMORY": "0"})
            lines = []
            with processes.limit(options.limit, lambda: processes.end(job.pid)):
                for line in job.stdout:
                    lines.append((time.monotonic(), json.loads(line)))
                errors = job.stderr.read()
                job.wait()
    if job.returncode != 0:
        return None, (errors.strip().splitlines() or ["ended by the time limit"])[0]
    return mean_step_seconds(lines), ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rates", default="1,10", help="Gbit/s of a worker; 0: not limited")
    parser.add_argument("--steps", type=int, default=33)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120, help="seconds for a job")
    parser.add_argument("--only", default="", help="strategies whose name begins so")
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    out = open(options.json, "w") if options.json else None
    for rate in [float(r) for r in options.rates.split(",")]:
        print(f"{options.workers} workers, " + (f"{rate:g} Gbit/s each" if rate else "no limit"))
        dense = None
        for name, strategy in STRATEGIES.items():
            if not name.startswith(options.only) and name != "dense":
                continue
            seconds, why = measure(options.program, strategy, rate, options)
            if name == "dense":
                dense = seconds
            ratio = dense / seconds if dense and seconds else None
            print(f"  {name:20s} " + (f"{seconds:8.4f} s  {ratio or 0:6.2f} x dense" if seconds
                                      else f"failed: {why}"), flush=True)
            if out:
                out.write(json.dumps({"workers": options.workers, "gbitPerSecond": rate,
                                      "strategy": name, "secondsAStep": seconds,
                                      "timesDense": ratio}) + "\n")
                out.flush()


if __name__ == "__main__":
    main()
