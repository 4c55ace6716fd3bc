#!/usr/bin/env python3
"""Predicted beside measured step times of one job with many strategies: `make bench-strategies`.

    tests/bench/strategies.py FLEETJOB [--ranks N] [--steps N] [--runs N] [--only TEXT]
                              [--links FILE] [--json FILE]

First `fleetjob plan --calibrate` measures this machine with the job's operators. Then each strategy
is predicted (`fleetjob plan --predict`) and trained (`fleetjob run`) on N local ranks. "processor"
is the user and system time of the trainers for a step, divided by the processors: if there are more
ranks than processors, the ranks take turns, so this is what a step takes on a machine that does
nothing else. "wall" is the median of the clock's time between steps, which other programs on the
machine make longer. Of several runs the least counts. The runs of a strategy do not follow each
other. With --first the processes go before all others on the machine (autogroup -20; needs root).

The last lines compare the strategy that the prediction calls fastest with the one that measured
fastest. If there are more ranks than processors, they take turns; the prediction knows that.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import processes  # noqa: E402

# name: (degrees, other settings, what differs in the training block)
STRATEGIES = {
    "data 8": ("dp_degree: 8", "", {}),
    "data 8, micro-batch 1": ("dp_degree: 8", "", {"microBatchSize": 1}),
    "data 8, micro-batch 4": ("dp_degree: 8", "", {"microBatchSize": 4}),
    "data 8, recompute": ("dp_degree: 8", "recompute: true", {}),
    "sharding 8, stage 1": ("sharding_degree: 8",
                            "sharding: true, sharding_configs: {stage: 1}", {}),
    "sharding 8, stage 2": ("sharding_degree: 8",
                            "sharding: true, sharding_configs: {stage: 2}", {}),
    "sharding 8, stage 3": ("sharding_degree: 8",
                            "sharding: true, sharding_configs: {stage: 3}", {}),
    "data 2, sharding 4, stage 2": ("dp_degree: 2, sharding_degree: 4",
                                    "sharding: true, sharding_configs: {stage: 2}", {}),
    "model 2, data 4": ("mp_degree: 2, dp_degree: 4", "tensor_parallel: true", {}),
    "model 4, data 2": ("mp_degree: 4, dp_degree: 2", "tensor_parallel: true", {}),
    "model 8": ("mp_degree: 8", "tensor_parallel: true", {}),
    "pipeline 2, data 4": ("pp_degree: 2, dp_degree: 4", "pipeline: true", {}),
    "pipeline 4, data 2": ("pp_degree: 4, dp_degree: 2", "pipeline: true", {}),
    "pipeline 8": ("pp_degree: 8", "pipeline: true", {}),
    "pipeline 8, F-then-B": ("pp_degree: 8", "pipeline: true, "
                             "pipeline_configs: {schedule_mode: F-then-B}", {}),
    "pipeline 2, model 2, data 2": ("pp_degree: 2, mp_degree: 2, dp_degree: 2",
                                    "pipeline: true, tensor_parallel: true", {}),
    "pipeline 2, sharding 4, stage 1": ("pp_degree: 2, sharding_degree: 4", "pipeline: true, "
                                        "sharding: true, sharding_configs: {stage: 1}", {}),
    "sequence 2, data 4": ("sep_degree: 2, dp_degree: 4", "", {}),
    "sequence 4, data 2": ("sep_degree: 4, dp_degree: 2", "", {}),
}

TRAINING = {
    "model": {"name": "gpt", "layers": 8, "heads": 8, "width": 256, "context": 128},
    "data": {"tokenizer": "synthetic-markov", "symbols": 512},
    "optimizer": {"name": "adamw", "learningRate": 0.001},
    "globalBatchSize": 32,
    "microBatchSize": 2,
}


def write_job(folder, name, options):
    degrees, settings, changes = STRATEGIES[name]
    training = {**TRAINING, "steps": options.steps, **changes}
    path = os.path.join(folder, "job.yaml")
    strategy = f"hybrid_configs: {{{degrees}}}" + (f", {settings}" if settings else "")
    with open(path, "w") as file:
        file.write("apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\n"
                   "metadata: {name: strategies}\nspec:\n"
                   f"  worker: {{replicas: {options.ranks}}}\n"
                   f"  strategy: {{{strategy}}}\n"
                   f"  training: {json.dumps(training)}\n")
    return path


def predict(folder, name, options):
    """Seconds of an update, and its parts."""
    path = write_job(folder, name, options)
    run = subprocess.run([options.program, "plan", path, "--predict", "--links", options.links,
                          "--output", "json"], capture_output=True, text=True)
    if run.returncode != 0:
        return None, run.stdout.strip() + run.stderr.strip()
    plan = json.loads(run.stdout)
    return plan["stepSeconds"], plan["stepParts"]


def go_first(pids):
    for pid in pids:
        try:
            with open(f"/proc/{pid}/autogroup", "w") as file:
                file.write("-20")
        except OSError:
            pass


def processor_seconds(pids):
    """User and system time of processes so far."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            ticks += sum(int(n) for n in file.read().rsplit(")", 1)[1].split()[11:13])
    return ticks / os.sysconf("SC_CLK_TCK")


def slope(values):
    """The median of the slopes between all pairs: lines may be late."""
    return statistics.median((values[j] - values[i]) / (j - i) for i in range(len(values))
                             for j in range(i + len(values) // 3, len(values)))


def measure(folder, name, options):
    """Median seconds of a step, or the message of the job that failed."""
    path = write_job(folder, name, options)
    job = subprocess.Popen([options.program, "run", path, "--json"], stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
    times, busy = [], []
    with processes.limit(options.limit, lambda: processes.end(job.pid)):
        for line in job.stdout:
            event = json.loads(line)
            if event.get("event") == "step":
                times.append(time.monotonic())
                if len(times) == 1 and options.first:
                    go_first([job.pid, *processes.below(job.pid)])
                if len(times) < options.steps:  # the trainers of the last step may have ended
                    busy.append(processor_seconds(processes.below(job.pid, "fleetjob-train")))
        errors = job.stderr.read()
        job.wait()
    if job.returncode != 0:
        return None, (errors.strip().splitlines() or ["ended by the time limit"])[0]
    return {"wall": statistics.median(b - a for a, b in zip(times[1:], times[2:])),
            "processor": slope(busy[1:]) / os.cpu_count()}, ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=240, help="seconds for a job")
    parser.add_argument("--only", default="", help="strategies whose name begins so")
    parser.add_argument("--links", default="", help="do not calibrate; use these rates")
    parser.add_argument("--json", default="")
    parser.add_argument("--first", action="store_true", help="before all other processes")
    options = parser.parse_args()
    if options.first:
        go_first([os.getpid()])
    names = [name for name in STRATEGIES if name.startswith(options.only)]
    out = open(options.json, "w") if options.json else None
    print(f"{options.ranks} ranks on {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        if not options.links:
            options.links = os.path.join(folder, "links.yaml")
            path = write_job(folder, "data 8", options)
            subprocess.run([options.program, "plan", path, "--calibrate", "--links",
                            options.links], check=True)
        measured = {name: [] for name in names}
        for _ in range(options.runs):
            for name in names:
                seconds, why = measure(folder, name, options)
                if seconds is None:
                    print(f"{name}: failed: {why}", flush=True)
                else:
                    measured[name].append(seconds)
        print(f"{'strategy':34s} {'predicted':>10s} {'processor':>10s} {'error':>8s} {'wall':>10s}")
        rows = []
        for name in names:
            predicted, parts = predict(folder, name, options)
            if predicted is None or not measured[name]:
                print(f"{name:34s} not predicted: {parts}" if predicted is None else name)
                continue
            least = min(run["processor"] for run in measured[name])
            wall = min(run["wall"] for run in measured[name])
            rows.append((name, predicted, least))
            print(f"{name:34s} {predicted * 1e3:7.1f} ms {least * 1e3:7.1f} ms "
                  f"{100 * (predicted / least - 1):+6.1f} % {wall * 1e3:7.1f} ms", flush=True)
            if out:
                out.write(json.dumps({"strategy": name, "ranks": options.ranks,
                                      "processors": os.cpu_count(),
                                      "predictedSeconds": predicted, "processorSeconds": least,
                                      "wallSeconds": wall,
                                      "runs": measured[name], "parts": parts,
                                      "load": os.getloadavg()[0]}) + "\n")
    errors = [abs(predicted / least - 1) for _, predicted, least in rows]
    chosen, best = min(rows, key=lambda r: r[1]), min(rows, key=lambda r: r[2])
    print(f"mean error {100 * statistics.mean(errors):.1f} %, greatest {100 * max(errors):.1f} %, "
          f"within 10 %: {sum(e <= 0.1 for e in errors)} of {len(errors)}")
    print(f"chosen: {chosen[0]}, {100 * best[2] / chosen[2]:.1f} % as fast as the best measured, "
          f"{best[0]}")


if __name__ == "__main__":
    main()
