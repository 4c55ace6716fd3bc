# SPDX-License-Identifier: Apache-2.0
"""paddle.distributed.shard_optimizer by libfleet.so (fleet_shard.h).

    layer = shard_layer(layer, mesh)
    opt = shard_optimizer(Optimizer(update, layer.parameters()), ShardingStage1())
    layer.weight.grad = dtensor_from_local(…)    # the trainer's own backward pass
    opt.step()
    opt.clear_grad()
"""
import ctypes

from fleet import FleetError, _c, _call, _Error
from fleet_ddp import Optimizer
from fleet_layer import _Param
from fleet_mesh import DistTensor, _copies, _Placement, reshard

_PLACE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(_Param),
                          ctypes.POINTER(_Placement), ctypes.POINTER(_Error))


class _Stage(ctypes.Structure):
    _fields_ = [("stage", ctypes.c_int), ("dimension", ctypes.c_char_p),
                ("accumulation_steps", ctypes.c_int), ("place", _PLACE),
                ("context", ctypes.c_void_p)]


_c.fleet_optimizer_shard_placements.restype = ctypes.POINTER(_Placement)


class ShardingStage1:
    """Divide the state along a dimension of the mesh; None: its first one."""
    _stage = 1

    def __init__(self, sharding_mesh_dim=None):
        self._dimension = sharding_mesh_dim.encode() if sharding_mesh_dim else None


class ShardingStage2(ShardingStage1):
    """The gradients, too. It is as stage 1 here: a gradient goes straight to where the state is."""
    _stage = 2


class ShardingStage3(ShardingStage1):
    """The parameters, too."""
    _stage = 3


class ShardedOptimizer:
    """What shard_optimizer() returns. A parameter whose grad is None is not updated."""
    _handle = None

    def __init__(self, optimizer, stage, dimension, shard_fn, accumulation_steps):
        self._optimizer, self._parameters = optimizer, optimizer.parameters
        items = (_Param * max(1, len(self._parameters)))()
        stage = _Stage(stage, dimension, accumulation_steps, self._placing(items, shard_fn))
        # Stage 3 frees what it divides. It gets copies, because others may hold views of the old.
        copies = [reshard(p, p.process_mesh, p.placements) if stage.stage == 3 else None
                  for p in self._parameters]
        for i, (parameter, copy) in enumerate(zip(self._parameters, copies)):
            items[i].name = (parameter.name or f"parameter {i}").encode()
            items[i].sharded = (copy or parameter)._handle
        handle = ctypes.c_void_p()
        try:
            _call(_c.fleet_optimizer_shard, items, len(self._parameters),
                  ctypes.byref(optimizer._structure), ctypes.byref(stage), ctypes.byref(handle))
        except FleetError:
            optimizer._check()
            raise
        finally:
            for item, parameter, copy in zip(items, self._parameters, copies):
                if copy:
                    copy._owner.handle = None  # it is the parameter's now, or freed
                    parameter._set(ctypes.c_void_p(item.sharded))
        self._handle = handle

    def _placing(self, items, shard_fn):
        """The callback that asks shard_fn for the placements of a state."""
        if shard_fn is None:
            return _PLACE()

        def place(_context, param, placements, error):
            try:
                at = ctypes.addressof(param.contents) - ctypes.addressof(items)
                parameter = self._parameters[at // ctypes.sizeof(_Param)]
                ndim = parameter.process_mesh.ndim
                wanted = _copies(shard_fn(parameter.name, parameter, _copies(placements[:ndim])))
                if len(wanted) > ndim:
                    raise FleetError(-22, f"shard_fn returned {len(wanted)} placements for the "
                                          f"{ndim} dimensions of the mesh")
                for i, one in enumerate(wanted):
                    placements[i] = one
                return 0
            except BaseException as problem:  # C cannot carry it
                self._optimizer._problem = problem
                error[0].text, error[0].code = b"shard_fn has failed", -22
                return -22

        return _PLACE(place)

    def __del__(self):
        _c.fleet_optimizer_shard_free(self._handle)

    def step(self):
        """True: this call has updated the values. Until then the trainer adds to the gradients."""
        gradients = [p.grad._handle if p.grad is not None else None for p in self._parameters]
        updated = ctypes.c_bool()
        _call(_c.fleet_optimizer_shard_step, self._handle,
              (ctypes.c_void_p * len(gradients))(*[g.value if g else None for g in gradients]),
              ctypes.byref(updated))
        self._optimizer._check()
        return updated.value

    def clear_grad(self):
        for parameter in self._parameters:
            parameter.grad = None

    def state_placements(self, index):
        """The placements of the state of parameter `index`."""
        found = _c.fleet_optimizer_shard_placements(self._handle, index)
        return _copies(found[:self._parameters[index].process_mesh.ndim])


def shard_optimizer(optimizer, shard_fn=None, gradient_accumulation_steps=1):
    """The state lies as its parameter, as a ShardingStage says, or as shard_fn(name, parameter,
    placements) returns it. Every gradient_accumulation_steps-th step() updates."""
    if not isinstance(optimizer, Optimizer) or not all(
            isinstance(p, DistTensor) for p in optimizer.parameters):
        raise FleetError(-22, f"shard_optimizer: optimizer is {optimizer!r}, needed is an "
                              "Optimizer whose parameters are on a mesh")
    if isinstance(shard_fn, ShardingStage1):
        return ShardedOptimizer(optimizer, shard_fn._stage, shard_fn._dimension, None,
                                gradient_accumulation_steps)
    return ShardedOptimizer(optimizer, 0, None, shard_fn, gradient_accumulation_steps)
