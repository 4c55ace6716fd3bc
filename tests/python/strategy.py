# SPDX-License-Identifier: Apache-2.0
"""The examples of fleet.init, DistributedStrategy, Strategy, distributed_model and
distributed_optimizer of Paddle's pages, in two processes (fleet_strategy.py)."""
import array
import os
import tempfile

import fleet
import fleet_role as role
import fleet_strategy as hybrid


def refused(words, function, *arguments, code=-22):
    try:
        function(*arguments)
    except fleet.FleetError as error:
        assert error.code == code and words in str(error), error
        return
    raise AssertionError(words)


strategy = hybrid.DistributedStrategy()
assert strategy.amp is False
strategy.amp = True
strategy.amp_configs = {"init_loss_scaling": 1024.0, "custom_white_list": ["conv2d"]}
assert strategy.amp_configs == {"init_loss_scaling": 1024, "custom_white_list": ["conv2d"]}
with tempfile.NamedTemporaryFile() as file:
    strategy.save_to_prototxt(file.name)
    other = hybrid.DistributedStrategy()
    other.load_from_prototxt(file.name)
    assert other.amp is True
for name, value in (("no_such", True), ("amp", 1), ("nccl_comm_num", 99)):
    refused(name, setattr, strategy, name, value)

strategy = hybrid.DistributedStrategy()
strategy.tensor_parallel = True
strategy.hybrid_configs = {"mp_degree": 2}
hybrid.init(is_collective=True, strategy=strategy)
assert hybrid.degree(hybrid.MODEL) == 2 and hybrid.degree(hybrid.DATA) == 1
assert hybrid.place(hybrid.MODEL) == fleet.get_rank()
values = array.array("i", [1])
fleet.all_reduce(values, group=hybrid.group(hybrid.MODEL))
assert list(values) == [2]
hybrid.release()

# init with a role maker: of the variables, and of the user. The strategy is that of the caller.
hybrid.init(role.PaddleCloudRoleMaker(is_collective=True), strategy=hybrid.DistributedStrategy())
assert hybrid.degree(hybrid.DATA) == 2 and hybrid.degree(hybrid.MODEL) == 1
rank = fleet.get_rank()
hybrid.release()
endpoints = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")
me = role.UserDefinedRoleMaker(is_collective=True, current_id=rank, worker_endpoints=endpoints)
hybrid.init(me, is_collective=True, log_level="DEBUG")
assert me.worker_index() == rank and hybrid.place(hybrid.DATA) == rank
hybrid.release()
server = role.UserDefinedRoleMaker(current_id=0, role=role.WORKER, worker_num=1,
                                   server_endpoints=["127.0.0.1:7000"])
hybrid.init(server)
assert hybrid.degree(hybrid.DATA) == -1
hybrid.release()
refused("not of the role", hybrid.init, server, True)
refused("needed are a role maker", hybrid.init, "worker")
refused("needed are a role maker", hybrid.init, None, 1)

# Strategy
strategy = hybrid.Strategy()
strategy.sharding.enable = True
strategy.sharding.stage = 2
strategy.sharding.degree = 2
strategy.gradient_merge.enable = True
strategy.gradient_merge.k_steps = 2
strategy.gradient_merge.avg = False
strategy.pipeline.schedule_mode = "1F1B"
strategy.pipeline.micro_batch_size = 2
assert strategy.sharding.stage == 2 and strategy.gradient_merge.avg is False
assert not hasattr(strategy.amp, "enable")  # the default
refused("sharding.stage", setattr, strategy.sharding, "stage", 9)
refused("sharding.level: no such key", setattr, strategy.sharding, "level", 1)
refused("fused_passes.gemm_epilogue", setattr, strategy.fused_passes, "gemm_epilogue", True)
refused("ampp: no such group", hybrid.Strategy, {"ampp": {}})
refused("needed is a dict", hybrid.Strategy, "amp")
assert strategy.sharding.stage == 2

# distributed_model, distributed_optimizer: the gradients are averages over the ranks
value, gradient = array.array("f", [1, 2]), array.array("f", [0, 0])
parameters = [("linear.weight", value, gradient)]


def sgd(part):
    for i in range(part.count):
        part.value[i] -= 0.5 * part.gradient[i]


def backward():
    gradient[0], gradient[1] = rank, rank + 1


refused("fleet_init", hybrid.distributed_model, parameters, code=-19)
hybrid.init(is_collective=True)
model = hybrid.distributed_model(parameters)
model.forward()
backward()
model.ready("linear.weight")
model.backward_end()
assert list(gradient) == [0.5, 1.5]
model.clear_gradients()
model = None  # the optimizer exchanges the gradients itself
optimizer = hybrid.distributed_optimizer(hybrid.Optimizer(sgd, parameters))
backward()
assert optimizer.step() and list(value) == [0.75, 1.25] and list(gradient) == [0, 0]

# The strategy of the call replaces that of init: two steps are merged.
merging = hybrid.Strategy({"gradient_merge": {"enable": True, "k_steps": 2}})
optimizer = hybrid.distributed_optimizer(hybrid.Optimizer(sgd, parameters), merging)
for updated in (False, True):
    backward()
    assert optimizer.step() == updated
assert list(value) == [0.5, 0.5]
amp = hybrid.Strategy({"amp": {"enable": True}})
refused("amp needs the program", hybrid.distributed_optimizer, hybrid.Optimizer(sgd, parameters),
        amp, code=-95)
refused("sharding needs its axis", hybrid.distributed_optimizer, hybrid.Optimizer(sgd, parameters),
        hybrid.Strategy({"sharding": {"enable": True, "degree": 2}}))
refused("needed is an Optimizer", hybrid.distributed_optimizer, sgd)

# Sharding by the strategy of init
strategy.gradient_merge.enable = False
hybrid.init(is_collective=True, strategy=strategy)
refused("fleet_distributed_optimizer", hybrid.distributed_model, parameters, code=-95)
optimizer = hybrid.distributed_optimizer(hybrid.Optimizer(sgd, parameters))
backward()
assert optimizer.step() and list(value) == [0.25, -0.25]
optimizer = None
hybrid.release()
