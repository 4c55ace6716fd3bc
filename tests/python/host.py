# SPDX-License-Identifier: Apache-2.0
"""The examples of gloo_* and spawn of Paddle's pages."""
import array
import os

import fleet

rank = int(os.environ["PADDLE_TRAINER_ID"])
for wrong in ((0, 1, "127.0.0.1:1"), (2, 2, "127.0.0.1:1"), (0, 2, "nowhere")):
    try:
        fleet.gloo_init_parallel_env(*wrong)
        raise AssertionError(wrong)
    except fleet.FleetError as error:
        assert error.code == -22, error
try:
    fleet.gloo_barrier()
    raise AssertionError("there is no world")
except fleet.FleetError as error:
    assert error.code == -19, error
fleet.gloo_init_parallel_env(rank, 2, os.environ["PADDLE_MASTER_ENDPOINT"])
fleet.gloo_barrier()
fleet.gloo_release()
fleet.gloo_release()


def train(word):
    fleet.init_parallel_env()
    data = array.array("i", [fleet.get_rank() + 1])
    fleet.all_reduce(data)
    assert data[0] == 3 and word == "hello" and os.environ["MORE"] == "yes"
    fleet.destroy_process_group()


def fail():
    if fleet.get_rank() == 1:
        raise ValueError("no")


if rank == 0:
    fleet.spawn(train, args=("hello",), nprocs=2, env={"MORE": "yes"})
    context = fleet.spawn(train, args=("hello",), nprocs=2, env={"MORE": "yes"}, join=False)
    assert context.join()
    try:
        fleet.spawn(fail, nprocs=2)
        raise AssertionError("rank 1 has failed")
    except fleet.FleetError as error:
        assert "rank 1" in str(error), error
