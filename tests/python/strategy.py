# SPDX-License-Identifier: Apache-2.0
"""fleet.init with a DistributedStrategy, in two processes (fleet_strategy.py)."""
import array
import tempfile

import fleet
import fleet_strategy as hybrid

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
    try:
        setattr(strategy, name, value)
        raise AssertionError(name)
    except fleet.FleetError as error:
        assert error.code == -22 and name in str(error), error

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
