# SPDX-License-Identifier: Apache-2.0
"""A PyTorch script: DistributedDataParallel on the CPU."""

import os

import common
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

common.say(torch=torch.__version__)
dist.init_process_group("gloo")
model = torch.nn.Linear(common.WIDTH, 1)
torch.nn.init.ones_(model.weight)
torch.nn.init.zeros_(model.bias)
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
if common.FIRST:
    state = torch.load(os.environ["FLEET_RESUME_PATH"], weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
common.report(resumed=common.FIRST, steps=common.STEPS)
parallel = DistributedDataParallel(model)


def save(step):
    path = os.path.join(os.environ["WHERE"], f"torch-{step}.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


for step in range(common.FIRST + 1, common.STEPS + 1):
    rows, targets = (torch.tensor(x) for x in common.batch(step))
    loss = torch.nn.functional.mse_loss(parallel(rows), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    common.after_step(step, loss, save)
common.say(done=True, weights=[round(float(w), 6) for w in model.weight.flatten().tolist()])
dist.monitored_barrier()  # a rank that closes early may cut the last message to another one
dist.destroy_process_group()
