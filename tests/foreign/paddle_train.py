# SPDX-License-Identifier: Apache-2.0
"""A Paddle collective script: data parallel on the CPU, with Paddle's own gradient exchange."""

import os

import common
import paddle
import paddle.distributed as dist
from paddle.distributed import fleet

paddle.set_device("cpu")
strategy = fleet.DistributedStrategy()
strategy.load_from_prototxt(os.environ["FLEET_STRATEGY_FILE"])  # the real Paddle reads it
common.say(strategy={
    "nccl_comm_num": strategy.nccl_comm_num, "amp": strategy.amp,
    "fuse_grad_size_in_MB": strategy.fuse_grad_size_in_MB,
    "init_loss_scaling": strategy.amp_configs["init_loss_scaling"]}, paddle=paddle.__version__)

dist.init_parallel_env()
model = paddle.nn.Linear(common.WIDTH, 1, paddle.nn.initializer.Constant(1.0),
                         paddle.nn.initializer.Constant(0.0))
optimizer = paddle.optimizer.Adam(0.05, parameters=model.parameters())
if common.FIRST:
    state = paddle.load(os.environ["FLEET_RESUME_PATH"])
    model.set_state_dict(state["model"])
    optimizer.set_state_dict(state["optimizer"])
common.report(resumed=common.FIRST, steps=common.STEPS)
parallel = paddle.DataParallel(model)


def save(step):
    path = os.path.join(os.environ["WHERE"], f"paddle-{step}.pdparams")
    paddle.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return path


for step in range(common.FIRST + 1, common.STEPS + 1):
    rows, targets = (paddle.to_tensor(x, "float32") for x in common.batch(step))
    loss = paddle.nn.functional.mse_loss(parallel(rows), targets)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    common.after_step(step, loss, save)
common.say(done=True, weights=[round(float(w), 6) for w in model.weight.flatten().tolist()])
