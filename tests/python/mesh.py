# SPDX-License-Identifier: Apache-2.0
"""The examples of Paddle's pages on meshes, in two processes (fleet_mesh.py)."""
import array

import fleet
import fleet_mesh as dist


def tensor(values, shape):
    return memoryview(array.array("f", values)).cast("B").cast("f", shape)


fleet.init_parallel_env()
rank = fleet.get_rank()

# ProcessMesh
mesh = dist.ProcessMesh([[2, 4, 5], [0, 1, 3]], dim_names=["x", "y"])
assert mesh.shape == [2, 3] and mesh.process_ids == [2, 4, 5, 0, 1, 3] and mesh.ndim == 2
assert mesh.get_mesh_with_dim("y").shape == [3, 2]
assert mesh[0].process_ids == [2, 4, 5] and mesh[0].dim_names == ["y"]
assert dist.ProcessMesh(shape=[2], process_ids=[0, 1]) == dist.ProcessMesh([0, 1], dim_names=["a"])
for wrong in ([[0, 1], [2]], [0, 0], ["a"], []):
    try:
        dist.ProcessMesh(wrong)
        raise AssertionError(wrong)
    except fleet.FleetError as error:
        assert error.code == -22

# shard_tensor, reshard
mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
a = tensor([1, 2, 3, 4, 5, 6], [2, 3])
rows = dist.shard_tensor(a, mesh, [dist.Shard(0)])
assert rows.shape == [2, 3] and rows.local.tolist() == [[1, 2, 3], [4, 5, 6]][rank:rank + 1]
columns = dist.reshard(rows, mesh, [dist.Shard(1)])
assert columns.local.tolist() == [[[1, 2], [4, 5]], [[3], [6]]][rank]
assert dist.unshard_dtensor(columns).tolist() == [[1, 2, 3], [4, 5, 6]]
assert columns.placements[0].kind == 1 and columns.placements[0].dimension == 1

# Partial: the first keeps the value
terms = dist.shard_tensor(a, mesh, [dist.Partial()])
assert terms.local.tolist()[0] == ([1, 2, 3] if rank == 0 else [0, 0, 0])
mine = dist.dtensor_from_local(tensor([rank + 1.0] * 2, [2]), [2], mesh, [dist.Partial()])
assert dist.reshard(mine, mesh, [dist.Replicate()]).local.tolist() == [3, 3]

# dtensor_from_fn, DistAttr
ones = dist.dtensor_from_fn(tensor, mesh, dist.DistAttr(mesh, ["x", None]), [1.0] * 4, [2, 2])
assert ones.local.tolist() == [[1, 1]]

# another mesh
there = dist.reshard(rows, dist.ProcessMesh([1, 0]), [dist.Shard(0)])
assert there.local.tolist() == [[4, 5, 6], [1, 2, 3]][rank:rank + 1]
try:
    dist.shard_tensor(a, mesh, [dist.Shard(2)])
    raise AssertionError("dimension 2 is not refused")
except fleet.FleetError as error:
    assert "shards dimension 2, the tensor has 2 dimensions" in str(error), error
