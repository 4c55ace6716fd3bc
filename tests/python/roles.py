# SPDX-License-Identifier: Apache-2.0
"""The examples of role makers and UtilBase of Paddle's pages, in two workers."""
import array
import os

import fleet
import fleet_role as role
import fleet_strategy as strategy

me = role.UserDefinedRoleMaker(current_id=0, role=role.Role.SERVER, worker_num=2,
                               server_endpoints=["127.0.0.1:36011", "127.0.0.1:36012"])
assert me.is_server() and me.server_index() == 0 and me.worker_index() == -1
assert me.server_num() == 2 and me.worker_num() == 2
assert me.get_pserver_endpoints() == ["127.0.0.1:36011", "127.0.0.1:36012"]
for wrong in ({"current_id": 2, "server_endpoints": ["a:1", "b:2"], "role": role.SERVER},
              {"current_id": 0, "worker_num": 1}):
    try:
        role.UserDefinedRoleMaker(**wrong)
        raise AssertionError(wrong)
    except fleet.FleetError as error:
        assert error.code == -22, error

cloud = role.PaddleCloudRoleMaker(is_collective=True)
rank = int(os.environ["PADDLE_TRAINER_ID"])
assert cloud.worker_index() == rank and cloud.worker_num() == 2 and cloud.node_num() == 1
assert cloud.is_first_worker() == (rank == 0)
assert len(cloud.get_trainer_endpoints()) == 2

strategy.init(is_collective=True)
util = role.UtilBase(cloud)
shard = util.get_file_shard(["a", "b", "c"])
assert shard == (["a", "b"] if rank == 0 else ["c"])
assert list(util.all_reduce(array.array("q", [rank + 1, 5]))) == [3, 10]
assert list(util.all_reduce(array.array("d", [rank]), mode="max")) == [1]
assert util.all_gather(rank + 7) == [7, 8]
util.barrier()
util.print_on_rank("only rank 1 says this", 1)
for action, words in ((lambda: util.all_reduce(array.array("q", [1]), mode="mean"), "mean"),
                      (lambda: util.barrier("all"), "all")):
    try:
        action()
        raise AssertionError(words)
    except fleet.FleetError as error:
        assert words in str(error), error
try:
    util.get_file_shard("a,b")
    raise AssertionError("a text is no list")
except TypeError:
    pass
util.barrier()
strategy.release()
