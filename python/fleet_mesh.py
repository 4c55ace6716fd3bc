# SPDX-License-Identifier: Apache-2.0
"""Meshes of paddle.distributed by libfleet.so (fleet_mesh.h): ProcessMesh, placements, shard_tensor,
reshard.

A tensor is an object with a writable, contiguous buffer of its shape (numpy.ndarray, a memoryview
that was cast). DistTensor.local is a memoryview of this process's part.
"""
import ctypes

from fleet import FleetError, ReduceOp, _c, _call, _Tensor, _tensor, get_rank

_FORMATS = {0: "B", 1: "b", 2: "i", 3: "q", 4: "e", 6: "f", 7: "d", 8: "?"}


class _Placement(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("dimension", ctypes.c_int), ("op", ctypes.c_int)]


_c.fleet_mesh_shape.restype = ctypes.POINTER(ctypes.c_int64)
_c.fleet_mesh_ids.restype = ctypes.POINTER(ctypes.c_int64)
_c.fleet_mesh_name.restype = ctypes.c_char_p
_c.fleet_mesh_place.restype = ctypes.c_int64
_c.fleet_mesh_equal.restype = ctypes.c_bool
_c.fleet_dtensor_local.restype = ctypes.POINTER(_Tensor)
_c.fleet_dtensor_global.restype = ctypes.POINTER(_Tensor)
_c.fleet_dtensor_placements.restype = ctypes.POINTER(_Placement)


def Replicate():
    return _Placement(0, 0, 0)


def Shard(dim):
    return _Placement(1, dim, 0)


def Partial(reduce_type=ReduceOp.SUM):
    return _Placement(2, 0, reduce_type)


def _flatten(mesh):
    """Shape and ids of nested lists."""
    if not isinstance(mesh, (list, tuple)):
        return [], [mesh]
    parts = [_flatten(one) for one in mesh]
    if not parts or any(shape != parts[0][0] for shape, _ in parts):
        raise FleetError(-22, "ProcessMesh: the lists are empty or have different lengths")
    return [len(parts)] + parts[0][0], [one for _, ids in parts for one in ids]


class ProcessMesh:
    def __init__(self, mesh=None, dim_names=None, shape=None, process_ids=None, _handle=None):
        self._handle = _handle
        if _handle is None:
            if mesh is not None:
                shape, process_ids = _flatten(mesh)
            if not shape or process_ids is None or any(not isinstance(i, int) for i in process_ids):
                raise FleetError(-22, "ProcessMesh: needs nested lists of ranks, or shape and "
                                      "process_ids")
            count = 1
            for length in shape:
                count *= length
            if count != len(process_ids) or (dim_names and len(dim_names) != len(shape)):
                raise FleetError(-22, f"ProcessMesh: {len(process_ids)} ids and "
                                      f"{len(dim_names or shape)} names for the shape {shape}")
            names = (ctypes.c_char_p * len(shape))(*[n.encode() for n in dim_names or ()])
            self._handle = ctypes.c_void_p()
            _call(_c.fleet_mesh_new, len(shape), (ctypes.c_int64 * len(shape))(*shape),
                  (ctypes.c_int64 * count)(*process_ids), names if dim_names else None,
                  ctypes.byref(self._handle))
        dimensions = _c.fleet_mesh_dimensions(self._handle)
        self.ndim = dimensions
        self.shape = _c.fleet_mesh_shape(self._handle)[:dimensions]
        self.dim_names = [_c.fleet_mesh_name(self._handle, i).decode() for i in range(dimensions)]
        count = 1
        for length in self.shape:
            count *= length
        self.process_ids = _c.fleet_mesh_ids(self._handle)[:count]

    def get_mesh_with_dim(self, dim_name, index=None):
        out = ctypes.c_void_p()
        _call(_c.fleet_mesh_with_dimension, self._handle, dim_name.encode(),
              ctypes.c_int64(-1 if index is None else index), ctypes.byref(out))
        return ProcessMesh(_handle=out)

    def __getitem__(self, index):
        return self.get_mesh_with_dim(self.dim_names[0], index)

    def __eq__(self, other):
        return isinstance(other, ProcessMesh) and _c.fleet_mesh_equal(self._handle, other._handle)

    def __del__(self):
        _c.fleet_mesh_free(self._handle)


def _list(placements):
    return (_Placement * max(len(placements), 1))(*placements), len(placements)


def _copies(placements):
    """Placements of their own memory."""
    return [_Placement(one.kind, one.dimension, one.op) for one in placements]


class _Owner:
    """Frees a tensor of the library; the tensor and the views of its memory hold it."""

    def __init__(self, handle):
        self.handle = handle

    def __del__(self):
        _c.fleet_dtensor_free(self.handle)


def _is_tensor(value):
    try:
        return not memoryview(value).readonly
    except TypeError:
        return False


def _new(kind, shape):
    """A tensor of zeros."""
    count = 1
    for length in shape:
        count *= length
    memory = memoryview(bytearray(count * memoryview(bytearray(8)).cast(kind).itemsize))
    return memory.cast(kind, list(shape)) if count else memory.cast(kind)


def _view(tensor, owner):
    """The memory of a tensor of the library as a memoryview, which holds its owner."""
    shape, kind = list(tensor.shape[:tensor.dimensions]), _FORMATS[tensor.type]
    count = 1
    for length in shape:
        count *= length
    size = memoryview(bytearray(8)).cast(kind).itemsize
    data = (ctypes.c_char * (count * size)).from_address(tensor.data)
    data._owner = owner
    view = memoryview(data).cast("B").cast(kind)
    return view.cast("B").cast(kind, shape) if count and shape else view


class DistTensor:
    """name and grad are for parameters: shard_layer() sets the name, the trainer sets grad."""
    name = grad = None

    def __init__(self, handle, mesh):
        self.process_mesh = mesh
        self._set(handle)

    def _set(self, handle):
        self._owner, self._handle = _Owner(handle), handle
        whole = _c.fleet_dtensor_global(handle)[0]
        self.placements = _copies(_c.fleet_dtensor_placements(handle)[:self.process_mesh.ndim])
        self.shape = list(whole.shape[:whole.dimensions])
        self.local = _view(_c.fleet_dtensor_local(handle)[0], self._owner)

    def _local_value(self):
        return self.local


def shard_tensor(data, mesh, placements):
    tensor, _keep = _tensor(data)
    out = ctypes.c_void_p()
    _call(_c.fleet_dtensor_from_global, ctypes.byref(tensor), mesh._handle, *_list(placements),
          ctypes.byref(out))
    return DistTensor(out, mesh)


def dtensor_from_fn(fn, mesh, placements, *args, **kwargs):
    """fn makes the global tensor; every process of the mesh calls it."""
    return shard_tensor(fn(*args, **kwargs), mesh, placements)


def dtensor_from_local(local, shape, mesh, placements):
    tensor, _keep = _tensor(local)
    data = tensor.data
    tensor.dimensions = len(shape)
    tensor.shape = (ctypes.c_int64 * 8)(*shape)
    out = ctypes.c_void_p()
    _call(_c.fleet_dtensor_from_local, ctypes.c_void_p(data), ctypes.byref(tensor), mesh._handle,
          *_list(placements), ctypes.byref(out))
    return DistTensor(out, mesh)


def reshard(dist_tensor, mesh, placements):
    out = ctypes.c_void_p()
    _call(_c.fleet_dtensor_reshard, dist_tensor._handle, mesh._handle, *_list(placements),
          ctypes.byref(out))
    return DistTensor(out, mesh)


def unshard_dtensor(dist_tensor):
    """The whole value, as a memoryview on every process of the mesh."""
    whole = reshard(dist_tensor, dist_tensor.process_mesh, [])
    if get_rank() not in dist_tensor.process_mesh.process_ids:
        raise FleetError(-107, "unshard_dtensor: this rank is not in the tensor's mesh")
    kind = whole.local.format
    flat = memoryview(bytearray(whole.local.tobytes())).cast(kind)
    return flat.cast("B").cast(kind, whole.shape) if whole.shape and flat.nbytes else flat


def DistAttr(mesh, sharding_specs):
    """The placements of Paddle's old form: per dimension of the tensor a name of the mesh, or None."""
    names = (ctypes.c_char_p * max(len(sharding_specs), 1))(
        *[name.encode() if name else None for name in sharding_specs])
    out = (_Placement * mesh.ndim)()
    _call(_c.fleet_layout_from_names, mesh._handle, names, len(sharding_specs), out)
    return list(out)
