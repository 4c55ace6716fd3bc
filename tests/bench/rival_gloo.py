#!/usr/bin/env python3
"""Gloo's collectives, the rival of bench_comm: `rival_gloo.py RANKS BYTES…`.

Prints one line an operation and size: name, bytes and the median seconds of rank 0. Bytes are those
of the whole tensor: of all ranks' parts for reduce_scatter and all_gather. Needs PyTorch.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def operations(rank, world, data):
    part = data[: data.numel() // world]
    return {
        "all_reduce": lambda: dist.all_reduce(data),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part.clone(), data),
        "all_gather": lambda: dist.all_gather_into_tensor(data, part.clone()),
    }


def measure(run):
    times, started = [], time.monotonic()
    go_on = torch.ones(1)
    while go_on.item():
        at = time.monotonic()
        run()
        times.append(time.monotonic() - at)
        if len(times) % 5 == 0:
            go_on.fill_(float(time.monotonic() - started < 0.3))
            dist.broadcast(go_on, 0)
    return statistics.median(times)


def run(rank, world, sizes, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for size in sizes:
        for name, operation in operations(rank, world, torch.zeros(size // 4)).items():
            try:
                seconds = measure(operation)
            except (RuntimeError, NotImplementedError):  # Gloo has it not
                continue
            if rank == 0:
                print(name, size, seconds, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    world, sizes = int(sys.argv[1]), [int(x) for x in sys.argv[2:]]
    mp.spawn(run, args=(world, sizes, 29500 + os.getpid() % 1000), nprocs=world)
