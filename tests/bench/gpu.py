#!/usr/bin/env python3
"""The CUDA back end on a GPU, beside PyTorch where that is installed.

  tests/bench/gpu.py OUT [--package FOLDER] [--part PART]… [--seconds S] [--fake]

OUT gets results.json, table.txt and the output of each job. Parts, in this order; each has a limit
of time, and the others go on after one that fails:

  ceilings   clocks and versions; a copy of 4 GiB, products of 8192³
  steps      GPT-2 124M by `fleetjob run`, tokens a second, also with `deterministic: false`; what
             a checkpoint adds to a step
  rival      the same model by torch.compile
  kernels    each kernel (bench_gpu), PyTorch's operation right after it
  recovery   two workers on the GPU: SIGKILL of a trainer to the next step
  fp32       the model in fp32, by `fleetjob run` and by torch.compile

--package is a folder that `make gpu-package` made (build/gpu): bench_gpu, fleetjob and its
programs, their libraries. --seconds ends the run: what does not fit is left out, and the table says
so. --fake tries the script over the fake CUDA runtime, with small sizes.
"""
import argparse
import array
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time

from processes import below, end, limit, text_of

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PARTS = ("ceilings", "steps", "rival", "kernels", "recovery", "fp32", "fp8")
GPT2 = {"layers": 12, "heads": 12, "width": 768, "context": 1024, "vocabulary": 50304}
SMALL = {"layers": 4, "heads": 4, "width": 256, "context": 256, "vocabulary": 4096}
WIDE = {"layers": 6, "heads": 16, "width": 2048, "context": 1024, "vocabulary": 8192}
TINY = {"layers": 1, "heads": 2, "width": 32, "context": 16, "vocabulary": 64}
JOB = """apiVersion: fleetjob.dev/v1alpha1
kind: FleetJob
metadata: {{name: bench}}
spec:
  worker: {{replicas: {workers}}}
  training:
    model:
      {{name: gpt, layers: {layers}, heads: {heads}, width: {width}, context: {context},
       vocabulary: {vocabulary}}}
    data: {{path: {data}, tokenizer: tokens-u16}}
    optimizer:
      {{name: adamw, learningRate: 6.0e-4, beta1: 0.9, beta2: 0.95, weightDecay: 0.1,
       clip: {{globalNorm: 1.0}}}}
    globalBatchSize: {batch}
    microBatchSize: {micro}
    steps: {steps}
    precision: {precision}
    deterministic: {deterministic}
{checkpoint}"""


class Bench:
    def __init__(self, options):
        self.options, self.started = options, time.monotonic()
        self.results = {"rows": [], "errors": {}}
        self.fake = options.fake
        self.model = TINY if self.fake else GPT2
        self.out = os.path.abspath(options.out)
        os.makedirs(self.out, exist_ok=True)
        self.data = os.path.join("/tmp", f"bench-gpu-{os.getpid()}")
        os.makedirs(self.data, exist_ok=True)

    def left(self):
        return self.options.seconds - (time.monotonic() - self.started)

    def save(self):
        with open(os.path.join(self.out, "results.json"), "w") as out:
            json.dump(self.results, out, indent=1)

    def say(self, text):
        print(f"[{time.monotonic() - self.started:5.1f} s] {text}", flush=True)


def torch_of():
    try:
        import torch
        return torch if torch.cuda.is_available() else None
    except ImportError:
        return None


# ---- ceilings ------------------------------------------------------------------------------------

CLOCKS = ("name,driver_version,memory.total,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,"
          "power.draw,temperature.gpu")


def clocks():
    return text_of(["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader"])


def part_ceilings(bench):
    machine = {"nvidiaSmi": clocks(), "columns": CLOCKS, "kernel": " ".join(os.uname()),
               "processors": os.cpu_count(), "date": time.strftime("%Y-%m-%d")}
    bench.results["machine"] = machine
    torch = torch_of()
    if torch:
        import rival_kernels
        machine["torch"] = torch.__version__
        machine["cudnn"] = torch.backends.cudnn.version()
        machine["device"] = torch.cuda.get_device_name()
        for name in ("bf16", "fp32"):
            rate = rival_kernels.ceiling_product(name, 8192, 0.3 if name == "bf16" else 0.1)
            bench.results[f"product8192.{name}"] = rate
            bench.say(f"product of 8192³ in {name}: {rate:.0f} TFLOP/s")
        machine["clocksUnderLoad"] = clocks()
    with Server(bench) as server:
        bench.results["bench"] = server.device
        answer = server.measure("copy", "fp32")
    bench.results["copyGbPerSecond"] = answer["gbPerSecond"]
    bench.say(f"copy: {answer['gbPerSecond']:.0f} GB/s, read and written")


# ---- kernels -------------------------------------------------------------------------------------

class Server:
    """bench_gpu, which measures the cases that it is asked for."""

    def __init__(self, bench):
        self.bench = bench

    def arguments(self):
        model, batch = (self.bench.model, 16)
        more = []
        if self.bench.fake:
            batch, more = 2, ["--copy-bytes", "100000"]
        seconds = "0.001" if self.bench.fake else "0.05"
        return [self.bench.options.bench, "--serve", "--seconds", seconds, "--batch", str(batch),
                *more, *(f"--{name}={value}" for name, value in model.items())]

    def __enter__(self):
        self.process = subprocess.Popen(self.arguments(), stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("bench_gpu did not start")
        self.device = json.loads(line)
        return self

    def measure(self, name, type_name):
        self.process.stdin.write(f"{name} {type_name}\n")
        self.process.stdin.flush()
        with limit(30, self.process.kill):
            line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"bench_gpu ended in {name} {type_name}")
        return json.loads(line)

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def ratio(row):
    return row["torchUs"] / row["us"] if row.get("torchUs") and row.get("us") else None


def ask(bench, server, name, type_name, rounds):
    """The case and PyTorch's operation, in turns."""
    ours, theirs, row = [], [], {}
    torch = torch_of()
    for _ in range(rounds):
        row = server.measure(name, type_name)
        if "error" in row:
            return row
        ours.append(row["us"])
        if torch:
            import rival_kernels
            sizes = rival_kernels.Sizes(batch=16, **bench.model)
            try:
                theirs.append(rival_kernels.run(name, type_name, sizes, 0.05))
            except RuntimeError as failure:
                row["torchError"] = str(failure)[:200]
    row["us"], row["rounds"] = min(ours), ours
    for rate, work, unit in (("gbPerSecond", "bytes", 1e-3), ("tflopPerSecond", "flops", 1e-6)):
        row[rate] = row[work] / row["us"] * unit
    theirs = [us for us in theirs if us]
    if theirs:
        row["torchUs"], row["torchRounds"] = min(theirs), theirs
    row["ratio"] = ratio(row)
    return row


def share(bench, row):
    ceiling = bench.results.get("copyGbPerSecond")
    if row.get("bytes") and ceiling:
        return row["gbPerSecond"] / ceiling
    ceiling = bench.results.get(f"product8192.{row['type']}")
    return row["tflopPerSecond"] / ceiling if row.get("flops") and ceiling else None


def part_kernels(bench):
    listed = text_of([bench.options.bench, "--list"]).splitlines()
    cases = [line.split() for line in listed if not line.startswith("copy ")]
    rows = bench.results["rows"]
    server = None
    try:
        for name, type_name in cases:
            if bench.left() < 5:
                bench.results["errors"]["kernels"] = f"no time for {name} and what follows it"
                break
            if server is None:
                server = Server(bench).__enter__()
            try:
                row = ask(bench, server, name, type_name, 1 if bench.fake else 2)
            except (RuntimeError, ValueError) as failure:
                row = {"case": name, "type": type_name, "error": str(failure)}
            if "error" in row and server:  # an error of the device stays: another process
                server.process.kill()
                server.__exit__()
                server = None
            else:
                row["share"] = share(bench, row)
            rows.append(row)
            bench.save()
    finally:
        if server:
            server.__exit__()


# ---- jobs ----------------------------------------------------------------------------------------

def write_tokens(bench, name, vocabulary, count):
    """Tokens by a seed; small ids are frequent, as in a text."""
    path = os.path.join(bench.data, name)
    generator = random.Random(1)
    draws = [int(vocabulary ** generator.random()) - 1 for _ in range(1 << 16)]
    with open(path, "wb") as out:
        for _ in range(max(1, count >> 16)):
            generator.shuffle(draws)
            array.array("H", draws).tofile(out)
    return path


class Job:
    """`fleetjob run --json`: its events with their times, in a process group of its own."""

    def __init__(self, bench, name, model, **settings):
        settings = {"workers": 1, "steps": 12, "precision": "bf16", "deterministic": "true",
                    "checkpoint": "", **model, **settings}
        settings["data"] = write_tokens(bench, f"{name}.bin", model["vocabulary"], 1 << 21)
        self.file = os.path.join(bench.out, f"job-{name}.yaml")
        with open(self.file, "w") as out:
            out.write(JOB.format(**settings))
        self.log = open(os.path.join(bench.out, f"job-{name}.log"), "w")
        self.events, self.bench = [], bench

    def environment(self):
        package, env = self.bench.options.package, dict(os.environ, FLEET_BACKEND="cuda")
        if os.path.isdir(f"{package}/lib"):
            env["LD_LIBRARY_PATH"] = f"{package}/lib"
        if self.bench.fake:
            env["FLEET_CUDA_LIBRARY"] = f"{ROOT}/build/cuda_fake/release/libfleet_cuda.so"
        return dict(env, FLEET_NCCL_LIBRARY="none")

    def run(self, seconds, watch=None):
        """Reads events until the job ends or `seconds` are over; then it is killed."""
        started = time.monotonic()
        # the package's libwebsockets looks for its plug-in in the folder that it runs in
        place = f"{self.bench.options.package}/lib"
        program = os.path.join(self.bench.options.package, "bin", "fleetjob")
        process = subprocess.Popen([program, "run", self.file, "--json", "--verbose"], text=True,
                                   stdout=subprocess.PIPE, stderr=self.log, start_new_session=True,
                                   env=self.environment(),
                                   cwd=place if os.path.isdir(place) else None)
        with limit(seconds, lambda: end(process.pid)):
            for line in process.stdout:
                self.log.write(line)
                try:
                    event = json.loads(line)
                except ValueError:
                    continue
                event["at"] = time.monotonic() - started
                self.events.append(event)
                if watch:
                    watch(process.pid, event)
        process.wait()
        self.log.flush()
        return self.events

    def of(self, kind):
        return [event for event in self.events if event.get("event") == kind]

    def step_seconds(self):
        return [e["tokens"] / e["tokensPerSecond"] for e in self.of("step") if e["tokensPerSecond"]]

    def state(self):
        ends = self.of("end")
        return ends[-1].get("state") if ends else "ran out of time, or ended by itself"


def run_steps(bench, precision, steps, limit, deterministic="true", model=None):
    """Of a model with a name, or of GPT-2."""
    batch, name = 2 if bench.fake else 16, precision
    if deterministic != "true":
        name += ".free"
    title, sizes = (f"{model[0]} {name}", model[1]) if model else (f"gpt2-124m {name}", bench.model)
    name = title if model else name
    job = Job(bench, name.replace(" ", "-"), sizes, batch=batch, micro=batch, steps=steps,
              precision=precision, deterministic=deterministic)
    job.run(min(limit, bench.left()))
    seconds = job.step_seconds()
    result = {"state": job.state(), "stepSeconds": seconds}
    if len(seconds) > 3:
        result["tokensPerSecond"] = batch * sizes["context"] / statistics.median(seconds[2:])
        result["firstStepAt"] = job.of("step")[0]["at"]
    bench.results.setdefault("steps", {})[name] = result
    bench.say(f"{title}: {result.get('tokensPerSecond', 0):.0f} tokens/s, "
              f"{len(seconds)} steps, {result['state']}")


def run_checkpoint(bench, limit):
    """What the step of a snapshot takes beyond the median of the others."""
    folder = os.path.join(bench.data, "checkpoints")
    batch = 2 if bench.fake else 16
    job = Job(bench, "checkpoint", bench.model, batch=batch, micro=batch, steps=9,
              checkpoint=f"    checkpoint: {{path: {folder}, everySteps: 4, keep: 1, "
                         "resume: never}\n")
    job.run(min(limit, bench.left()))
    # a step's time ends after its snapshot was taken, or the next one has it: look at both
    at = {e["step"]: e["at"] for e in job.of("step")}
    gaps = {n: at[n] - at[n - 1] for n in at if n - 1 in at and n > 2}
    calm = [gaps[n] for n in gaps if n not in (4, 5, 8, 9)]
    result = {"state": job.state(), "gaps": gaps, "checkpoints": len(job.of("checkpoint"))}
    if calm and 4 in gaps and 5 in gaps:
        median = statistics.median(calm)
        result["stallMs"] = 1e3 * max(gaps[4] - median, gaps[5] - median)
    bench.results["checkpoint"] = result
    bench.say(f"checkpoint: {result.get('stallMs', float('nan')):.1f} ms more, {result['state']}")


def part_steps(bench):
    run_steps(bench, "bf16", 12, 45)
    run_steps(bench, "bf16", 12, 30, "false")
    run_checkpoint(bench, 40)


# ---- recovery ------------------------------------------------------------------------------------

def part_recovery(bench):
    model = TINY if bench.fake else SMALL
    job = Job(bench, "recovery", model, workers=2, batch=16, micro=4,
              steps=400 if bench.fake else 3000)
    strike = {}

    def watch(pid, event):
        if event.get("event") != "step":
            return
        if event["step"] == 20 and "killedAt" not in strike:
            victims = below(pid, "fleetjob-train")
            if len(victims) < 2:
                strike["error"] = f"{len(victims)} trainers found"
                return
            os.kill(victims[-1], signal.SIGKILL)
            strike["killedAt"] = time.monotonic()
        elif "killedAt" in strike and event.get("generation", 1) > 1:
            strike.setdefault("steppedAt", time.monotonic())
            strike["after"] = strike.get("after", 0) + 1
            if strike["after"] == 20:
                os.kill(pid, signal.SIGINT)

    job.run(min(40, bench.left()), watch)
    result = {"state": job.state(), "restarts": job.of("restart")[:2], "found": strike.get("error")}
    if "steppedAt" in strike:
        result["seconds"] = strike["steppedAt"] - strike["killedAt"]
    result["stepSeconds"] = statistics.median(job.step_seconds() or [0])
    bench.results["recovery"] = result
    bench.say(f"recovery: {result.get('seconds', float('nan')):.2f} s from SIGKILL to the next "
              f"step, {result['state']}")


# ---- the rival -----------------------------------------------------------------------------------

def run_rival(bench, precision, limit):
    if not torch_of():
        bench.results["errors"]["rival"] = "PyTorch with CUDA is not installed"
        return
    command = [sys.executable, os.path.join(HERE, "rival_gpt.py"), "--device", "cuda", "--compile",
               "--batch", "16", "--steps", "10", "--runs", "3",
               *(["--bf16"] if precision == "bf16" else []),
               *(f"--{key}={value}" for key, value in bench.model.items())]
    with open(os.path.join(bench.out, f"rival-{precision}.log"), "w") as log:
        run = subprocess.run(command, stdout=subprocess.PIPE, stderr=log, text=True,
                             timeout=max(1, min(limit, bench.left())))
    found = json.loads(run.stdout.splitlines()[-1])
    bench.results.setdefault("rival", {})[precision] = found
    bench.say(f"torch.compile {precision}: {found['tokens_per_second']} tokens/s")


def part_rival(bench):
    run_rival(bench, "bf16", 100)


def part_fp32(bench):
    run_steps(bench, "fp32", 6, 40)
    run_rival(bench, "fp32", 60)


def part_fp8(bench):
    """GPT-2, and a wide model, whose products take more of a step."""
    wide = ("wide", TINY if bench.fake else WIDE)
    run_steps(bench, "fp8", 12, 30)
    run_steps(bench, "bf16", 8, 30, model=wide)
    run_steps(bench, "fp8", 8, 30, model=wide)


# ---- the table -----------------------------------------------------------------------------------

def number(value, form):
    return format(value, form) if value is not None else "-"


def table(bench):
    results, lines = bench.results, []
    machine = results.get("machine", {})
    lines.append(f"{machine.get('nvidiaSmi')}; torch {machine.get('torch')}")
    lines.append(f"copy {number(results.get('copyGbPerSecond'), '.0f')} GB/s; product of 8192³ "
                 f"bf16 {number(results.get('product8192.bf16'), '.0f')}, fp32 "
                 f"{number(results.get('product8192.fp32'), '.1f')} TFLOP/s")
    for name, step in results.get("steps", {}).items():
        rival = results.get("rival", {}).get(name, {}).get("tokens_per_second")
        title = name if " " in name else f"gpt2-124m {name}"
        lines.append(f"{title}: {number(step.get('tokensPerSecond'), '.0f')} tokens/s, "
                     f"torch.compile {number(rival, '.0f')} ({step['state']})")
    stall, recovery = results.get("checkpoint", {}), results.get("recovery", {})
    lines.append(f"checkpoint's stall {number(stall.get('stallMs'), '.1f')} ms; recovery "
                 f"{number(recovery.get('seconds'), '.2f')} s")
    lines.append(f"{'case':26}{'type':6}{'us':>10}{'GB/s':>8}{'TFLOP/s':>9}{'share':>7}"
                 f"{'torch us':>10}{'ratio':>7}")
    for row in results["rows"]:
        if "error" in row:
            lines.append(f"{row['case']:26}{row.get('type', ''):6} {row['error']}")
            continue
        lines.append(f"{row['case']:26}{row['type']:6}{row['us']:10.1f}"
                     f"{number(row['gbPerSecond'] or None, '.0f'):>8}"
                     f"{number(row['tflopPerSecond'] or None, '.1f'):>9}"
                     f"{number(row.get('share'), '.0%'):>7}{number(row.get('torchUs'), '.1f'):>10}"
                     f"{number(row.get('ratio'), '.2f'):>7}")
    for part, failure in results["errors"].items():
        lines.append(f"{part}: {failure}")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--package", default=f"{ROOT}/build/gpu")
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--fake", action="store_true")
    bench = Bench(parser.parse_args())
    bench.options.package = os.path.abspath(bench.options.package)
    bench.options.bench = os.path.join(bench.options.package, "bin", "bench_gpu")
    sys.path.insert(0, HERE)
    if bench.fake:
        bench.options.bench = f"{ROOT}/build/cuda_fake/release/bench_gpu"
        bench.options.package = f"{ROOT}/build"
    for part in PARTS:
        if bench.options.part and part not in bench.options.part:
            continue
        if bench.left() < 5:
            bench.results["errors"][part] = "no time left"
            continue
        try:
            globals()[f"part_{part}"](bench)
        except Exception as failure:  # a part that fails must not take the others with it
            bench.results["errors"][part] = f"{type(failure).__name__}: {failure}"
            bench.say(f"{part}: {type(failure).__name__}: {failure}")
        bench.save()
    bench.results["seconds"] = time.monotonic() - bench.started
    bench.save()
    text = table(bench)
    with open(os.path.join(bench.out, "table.txt"), "w") as out:
        out.write(text + "\n")
    print(text)
    subprocess.run(["rm", "-rf", bench.data], check=False)
    return 1 if bench.results["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
