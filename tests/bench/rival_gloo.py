#!/usr/bin/env python3
"""Gloo's all-reduce, the rival of bench_all_reduce: `rival_gloo.py RANKS BYTES…`.

Prints one line a size: bytes and the median seconds of rank 0. Needs PyTorch.
"""
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def run(rank, world, sizes, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=world)
    go_on = torch.ones(1)
    for size in sizes:
        data, times, started = torch.zeros(size // 4), [], time.monotonic()
        go_on.fill_(1)
        while go_on.item():
            at = time.monotonic()
            dist.all_reduce(data)
            times.append(time.monotonic() - at)
            if len(times) % 5 == 0:
                go_on.fill_(float(time.monotonic() - started < 0.4))
                dist.broadcast(go_on, 0)
        if rank == 0:
            print(size, statistics.median(times), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    world, sizes = int(sys.argv[1]), [int(x) for x in sys.argv[2:]]
    mp.spawn(run, args=(world, sizes, 29500 + os.getpid() % 1000), nprocs=world)
