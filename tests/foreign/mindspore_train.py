# SPDX-License-Identifier: Apache-2.0
"""A MindSpore script: data parallel on the CPU. Rank 0 also starts MindSpore's scheduler, which
its dynamic clusters need; it has no rank."""

import json
import os
import subprocess
import sys

import common

if common.RANK == 0:
    subprocess.Popen(
        [sys.executable, "-c", "import mindspore.communication as c; c.init('mccl')"],
        env=os.environ | {"MS_ROLE": "MS_SCHED"}, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL)

import mindspore  # noqa: E402
import numpy  # noqa: E402
from mindspore import communication, nn, ops  # noqa: E402

with open(os.environ["FLEET_AUTO_PARALLEL_FILE"]) as file:
    in_file = json.load(file)
context = json.loads(os.environ["FLEET_AUTO_PARALLEL_JSON"])
mindspore.set_context(mode=mindspore.PYNATIVE_MODE, device_target="CPU")
communication.init("mccl")
mindspore.set_auto_parallel_context(**context)
common.say(context=context, same_in_file=in_file == context, mindspore=mindspore.__version__,
           mode=mindspore.get_auto_parallel_context("parallel_mode"),
           mean=mindspore.get_auto_parallel_context("gradients_mean"),
           rank_of_mindspore=communication.get_rank(), world=communication.get_group_size())

model = nn.Dense(common.WIDTH, 1, weight_init="ones", bias_init="zeros")
optimizer = nn.Adam(model.trainable_params(), learning_rate=0.05)
if common.FIRST:  # the optimizer has the model's parameters, too
    mindspore.load_param_into_net(
        optimizer, mindspore.load_checkpoint(os.environ["FLEET_RESUME_PATH"]))
common.report(resumed=common.FIRST, steps=common.STEPS)
loss_of = nn.MSELoss()
gradients_of = mindspore.value_and_grad(lambda x, y: loss_of(model(x), y), None,
                                        optimizer.parameters)
add_all = ops.AllReduce()


def save(step):
    path = os.path.join(os.environ["WHERE"], f"mindspore-{step}.ckpt")
    mindspore.save_checkpoint(optimizer, path)
    return path


for step in range(common.FIRST + 1, common.STEPS + 1):
    rows, targets = (mindspore.Tensor(numpy.array(x, numpy.float32)) for x in common.batch(step))
    loss, gradients = gradients_of(rows, targets)
    optimizer(tuple(add_all(g) / common.WORLD for g in gradients))
    common.after_step(step, loss, save)
common.say(done=True, weights=[round(float(w), 6) for w in model.weight.asnumpy().ravel()])
