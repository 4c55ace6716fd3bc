# SPDX-License-Identifier: Apache-2.0
"""The examples of DataParallel, no_sync, set_state_dict, fused_allreduce_gradients and
group_sharded_parallel of Paddle's pages, in two workers. A linear layer y = w x + b."""
import array
import os
import tempfile

import fleet
import fleet_ddp as ddp

fleet.init_parallel_env()
rank = fleet.get_rank()


def floats(*values):
    return array.array("f", values)


w, b, dw, db = floats(1, 2), floats(3), floats(0, 0), floats(0)
if rank == 1:
    w[0] = 100  # the wrapper makes it that of rank 0
model = ddp.DataParallel([("linear.weight", w, dw), ("linear.bias", b, db)])
assert list(w) == [1, 2]


def backward(scale):
    for i in range(2):
        dw[i] += scale * (rank + 1)
    db[0] += scale * rank


model.forward()
backward(2)
model.ready("linear.weight")
model.ready("linear.bias")
model.backward_end()
assert list(dw) == [3, 3] and list(db) == [1]
model.clear_gradients()
assert list(dw) == [0, 0]

with model.no_sync():  # the gradients of this rank add up
    model.forward()
    backward(2)
    model.ready("linear.weight")
    model.ready("linear.bias")
    model.backward_end()
assert list(dw) == [2 * (rank + 1)] * 2
ddp.fused_allreduce_gradients([("linear.weight", w, dw), ("linear.bias", b, db)])
assert list(dw) == [3, 3] and list(db) == [1]

model.forward()
try:
    model.ready("linear.other")
    raise AssertionError("there is no such parameter")
except fleet.FleetError as error:
    assert "linear.other" in str(error)
for name in ("linear.weight", "linear.bias"):
    model.ready(name)
model.backward_end()

state = {"linear.weight": floats(7, 8), "linear.bias": floats(1, 2), "other": floats(0)}
assert model.set_state_dict(state) == 1  # the bias has another shape: a warning, and it stays
assert list(model.state_dict()["linear.weight"]) == [7, 8] and list(b) == [3]


def sgd(update):
    for i in range(update.count):
        update.value[i] -= 0.5 * update.gradient[i]


value, gradient = floats(1, 1, 1, 1), floats(*[rank + 1.0] * 4)
sharded = ddp.group_sharded_parallel([("p", value, gradient)], sgd, "os_g")
sharded.step()
assert list(value) == [1 - 0.5 * 1.5] * 4 and list(gradient) == [0] * 4
with tempfile.TemporaryDirectory() as folder:
    ddp.save_group_sharded_model(sharded, folder + "/saved", optimizer=True)
    assert os.path.exists(folder + "/saved/model.safetensors") == (rank == 0)
try:
    ddp.group_sharded_parallel([("p", value, gradient)], sgd, "stage7")
    raise AssertionError("there is no such level")
except fleet.FleetError as error:
    assert "stage7" in str(error)
fleet.barrier()
