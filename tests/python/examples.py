# SPDX-License-Identifier: Apache-2.0
"""The examples of Paddle's pages, transcribed, each with the result that the page prints. Run by
run.sh in two processes; the argument names the group of examples."""
import sys
from array import array

import fleet as dist


def check(found, wanted):
    if list(found) != list(wanted):
        sys.exit(f"rank {dist.get_rank()}: {list(found)}, expected {list(wanted)}")


def by_rank(rank, first, second):
    return array("i", first if rank == 0 else second)


def collectives():
    group = dist.init_parallel_env()
    rank = dist.get_rank()
    assert dist.get_world_size() == 2 and group.nranks == 2 and dist.is_initialized()
    assert dist.is_available()

    data = by_rank(rank, [4, 5, 6, 4, 5, 6], [1, 2, 3, 1, 2, 3])
    dist.all_reduce(data)
    dist.wait(data)
    check(data, [5, 7, 9, 5, 7, 9])

    data = by_rank(rank, [1, 7], [3, 2])
    dist.reduce(data, dst=0, op=dist.ReduceOp.MAX)
    if rank == 0:
        check(data, [3, 7])

    parts = []
    dist.all_gather(parts, by_rank(rank, [1, 2], [3, 4]))
    check(parts[0], [1, 2])
    check(parts[1], [3, 4])

    out = []
    dist.alltoall([by_rank(rank, [1, 2], [7, 8]), by_rank(rank, [3, 4], [9, 10])], out)
    check(out[0], [1, 2] if rank == 0 else [3, 4])
    check(out[1], [7, 8] if rank == 0 else [9, 10])

    send, receive = by_rank(rank, [0, 1, 2], [3, 4]), by_rank(rank, [0, 0], [0, 0, 0])
    dist.alltoall_single(send, receive, [1, 2] if rank == 0 else [1, 1],
                         [1, 1] if rank == 0 else [2, 1])
    check(receive, [0, 3] if rank == 0 else [1, 2, 4])

    data = array("i", [0, 0])
    lists = ([[1, 2], [3, 4]], [[5, 6], [7, 8]])[rank]
    dist.reduce_scatter(data, [array("i", one) for one in lists])
    check(data, [6, 8] if rank == 0 else [10, 12])

    data = array("i", [0])
    dist.scatter(data, [array("i", [7]), array("i", [8])] if rank == 1 else None, src=1)
    check(data, [7] if rank == 0 else [8])

    data = by_rank(rank, [0], [9])
    dist.broadcast(data, src=1)
    check(data, [9])
    dist.barrier()


def messages():
    dist.init_parallel_env()
    rank = dist.get_rank()
    data = by_rank(rank, [7, 8, 9], [0, 0, 0])
    task = dist.isend(data, dst=1) if rank == 0 else dist.irecv(data, src=0)
    task.wait()
    assert task.is_completed()
    check(data, [7, 8, 9])

    got = array("f", [0])
    for task in dist.batch_isend_irecv([dist.P2POp(dist.isend, array("f", [rank + 0.5]), 1 - rank),
                                        dist.P2POp(dist.irecv, got, 1 - rank)]):
        task.wait()
    check(got, [1.5 - rank])

    objects = []
    dist.all_gather_object(objects, {"foo": [1, 2, 3]} if rank == 0 else {"bar": [4, 5, 6]})
    assert objects == [{"foo": [1, 2, 3]}, {"bar": [4, 5, 6]}]
    objects = [{"foo": 1}] if rank == 0 else [None]
    dist.broadcast_object_list(objects, src=0)
    assert objects == [{"foo": 1}]
    dist.scatter_object_list(objects, ["a", "bb"] if rank == 0 else None, src=0)
    assert objects == (["a"] if rank == 0 else ["bb"])

    group = dist.new_group([1])
    assert dist.get_group(group.id) is group and group.rank == (0 if rank == 1 else -1)
    try:
        dist.all_reduce(array("i", [1]), group=group)
        assert rank == 1
    except dist.FleetError as problem:
        assert rank == 0 and problem.code == -107 and "not a member" in str(problem)
    try:
        dist.all_reduce("text")
        assert False
    except (dist.FleetError, TypeError):
        pass
    assert dist.get_backend() == "GLOO"
    dist.destroy_process_group()
    assert not dist.is_initialized()


def refused(code, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except dist.FleetError as problem:
        assert problem.code == code, problem
        return
    sys.exit(f"{function.__name__}: not refused")


def streams():
    dist.init_parallel_env()
    rank = dist.get_rank()
    data = by_rank(rank, [4, 5, 6], [1, 2, 3])
    task = dist.stream.all_reduce(data, sync_op=False)
    task.wait()
    check(data, [5, 7, 9])
    refused(-22, dist.stream.all_reduce, data, sync_op=False, use_calc_stream=True)

    data = by_rank(rank, [1, 7], [3, 2])
    dist.stream.reduce(data, dst=1, op=dist.ReduceOp.MAX, use_calc_stream=True)
    if rank == 1:
        check(data, [3, 7])
    data = by_rank(rank, [0], [9])
    dist.stream.broadcast(data, src=1)
    check(data, [9])

    whole = array("i", [0] * 4)
    dist.stream.all_gather(whole, by_rank(rank, [1, 2], [3, 4]))
    check(whole, [1, 2, 3, 4])
    parts = []
    task = dist.stream.all_gather(parts, by_rank(rank, [1, 2], [3, 4]), sync_op=False)
    task.wait()
    check(parts[1], [3, 4])

    out = array("i", [0, 0])
    dist.stream.alltoall(out, by_rank(rank, [1, 2], [3, 4]))
    check(out, [1, 3] if rank == 0 else [2, 4])
    parts = []
    task = dist.stream.alltoall(parts, [by_rank(rank, [1], [3]), by_rank(rank, [2], [4])],
                                sync_op=False)
    while not task.is_completed():
        pass
    check(parts[0], [1] if rank == 0 else [2])
    refused(-22, dist.stream.alltoall, out, [out, out])
    receive = by_rank(rank, [0, 0], [0, 0, 0])
    dist.stream.alltoall_single(receive, by_rank(rank, [0, 1, 2], [3, 4]),
                                [1, 1] if rank == 0 else [2, 1], [1, 2] if rank == 0 else [1, 1])
    check(receive, [0, 3] if rank == 0 else [1, 2, 4])

    data = array("i", [0, 0])
    dist.stream.reduce_scatter(data, by_rank(rank, [1, 2, 3, 4], [5, 6, 7, 8]))
    check(data, [6, 8] if rank == 0 else [10, 12])
    data = array("i", [0])
    dist.stream.scatter(data, [array("i", [7]), array("i", [8])] if rank == 1 else None, src=1)
    check(data, [7] if rank == 0 else [8])
    if rank == 0:
        refused(-22, dist.stream.scatter, data, None, src=0)

    data = by_rank(rank, [5], [0])
    if rank == 0:
        dist.stream.send(data, dst=1)
    else:
        dist.stream.recv(data, src=0)
    check(data, [5])


@dist.remote
def add(a, b):
    return a + b


def rpc():
    env = dist.ParallelEnv()
    dist.init_rpc(f"worker{env.rank}", env.rank, env.world_size)
    assert dist.rpc_sync("worker1", add, args=(2, 3)) == 5
    future = dist.rpc_async("worker0", add, args=("a",), kwargs={"b": "b"})
    assert future.wait() == "ab" and future.wait() == "ab"
    try:
        dist.rpc_sync("worker1", add, args=(1, "x"))
        assert False
    except dist.FleetError as problem:
        assert "TypeError" in str(problem) and "add of worker worker1" in str(problem)
    try:
        dist.rpc_sync("worker1", "exit")
        assert False
    except dist.FleetError as problem:
        assert problem.code == -2 and "no such function" in str(problem)
    names = [info.name for info in dist.get_all_worker_infos()]
    assert names == ["worker0", "worker1"]
    assert dist.get_worker_info("worker1").rank == 1
    assert dist.get_current_worker_info().name == f"worker{env.rank}"
    dist.shutdown()


{"collectives": collectives, "messages": messages, "streams": streams, "rpc": rpc}[sys.argv[1]]()
