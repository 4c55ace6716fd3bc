# SPDX-License-Identifier: Apache-2.0
"""Rank 0 is a server, rank 1 a worker, under Paddle's names (fleet_ps.py)."""
import array
import os
import tempfile

rank = int(os.environ["PADDLE_TRAINER_ID"])
endpoint = os.environ.pop("PADDLE_TRAINER_ENDPOINTS").split(",")[0]
os.environ.update(PADDLE_PSERVERS_IP_PORT_LIST=endpoint, PADDLE_TRAINERS_NUM="1",
                  PADDLE_TRAINER_ID="0", TRAINING_ROLE="none" if rank else "PSERVER",
                  POD_IP=endpoint.split(":")[0], PADDLE_PORT=endpoint.split(":")[1])

import fleet  # noqa: E402
import fleet_ps as ps  # noqa: E402
import fleet_role as role  # noqa: E402
import fleet_strategy as strategy  # noqa: E402

if rank == 0:
    ps.init_server()
    ps.run_server()
else:
    me = role.UserDefinedRoleMaker(current_id=0, role=role.WORKER, worker_num=1,
                                   server_endpoints=[endpoint])
    strategy.init(me)
    try:
        ps.init_worker(a_sync=True, a_sync_configs={"use_ps_gpu": 1})
        raise AssertionError("use_ps_gpu is not refused")
    except fleet.FleetError as error:
        assert "use_ps_gpu is 1" in str(error), error
    ps.init_worker(a_sync=False, a_sync_configs={"max_merge_var_num": 2})
    ps.create_table(ps.Table(id=0, width=2, rule=ps.SGD, learning_rate=0.5, initial_range=0.0))
    ps.create_table(ps.Table(id=1, length=3, rule=ps.SUM))
    ps.create_table(ps.Table(id=2, width=1), entry=ps.CountFilterEntry(2))
    keys, out = array.array("Q", [5, 6]), array.array("f", [9] * 4)
    ps.pull_sparse(0, keys, out)
    assert list(out) == [0] * 4
    ps.push_sparse(0, keys, array.array("f", [1, 2, 3, 4]))
    ps.set_dense(1, array.array("f", [1, 2, 3]))
    ps.push_dense(1, array.array("f", [1, 1, 1]))
    ps.step_end()
    ps.pull_sparse(0, keys, out)
    assert list(out) == [-0.5, -1, -1.5, -2], list(out)
    block = array.array("f", [0] * 3)
    ps.pull_dense(1, block)
    assert list(block) == [2, 3, 4] and ps.step() == 1
    with tempfile.TemporaryDirectory() as folder:
        ps.save_persistables(dirname=folder, mode=0)
        assert os.listdir(folder) == ["part-0-of-1"]
        ps.load_persistables(folder)
    ps.barrier_worker()
    ps.stop_worker()
