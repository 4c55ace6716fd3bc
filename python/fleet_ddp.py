# SPDX-License-Identifier: Apache-2.0
"""DataParallel, fused_allreduce_gradients and group_sharded_parallel of paddle.distributed by
libfleet.so (fleet_ddp.h, fleet_shard.h).

A model is a list of (name, value, gradient) in the order in which it defines them: buffers such as
array.array("f"). A gradient of None is a frozen parameter or a buffer. The caller computes the
gradients.
"""
import contextlib
import ctypes

from fleet import FleetError, _c, _call, _handle, _tensor
from fleet_program import _DdpTensor, _Entry


class _Options(ctypes.Structure):
    _fields_ = [("buffer_mb", ctypes.c_double), ("last_buffer_mb", ctypes.c_double),
                ("find_unused_parameters", ctypes.c_bool)]


_c.fleet_ddp_has_gradient.restype = ctypes.c_bool
_c.fleet_ddp_set_sync.restype = ctypes.c_bool


def _list(parameters):
    """The structures of a model, and what keeps its memory alive."""
    pairs = [(name, _tensor(value), _tensor(gradient) if gradient is not None else None)
             for name, value, gradient in parameters]
    items = (_DdpTensor * max(1, len(pairs)))(*[
        _DdpTensor(name.encode(), value[0], gradient[0].data if gradient else None,
                   0 if gradient else 2) for name, value, gradient in pairs])
    return items, pairs


def _state(state):
    pairs = [(name, _tensor(value)) for name, value in state.items()]
    return (_Entry * max(1, len(pairs)))(*[_Entry(n.encode(), t[0]) for n, t in pairs]), pairs


class DataParallel:
    _ddp = None

    def __init__(self, parameters, comm_buffer_size=25, last_comm_buffer_size=1,
                 find_unused_parameters=False, group=None):
        options = _Options(comm_buffer_size, last_comm_buffer_size, find_unused_parameters)
        self._begin(parameters, _c.fleet_ddp_new, _handle(group), ctypes.byref(options))

    def _begin(self, parameters, function, *arguments):
        self._places = {name: i for i, (name, _, _) in enumerate(parameters)}
        self._parameters = parameters
        self._items, self._keep = _list(parameters)
        self._ddp = ctypes.c_void_p()
        _call(function, self._items, len(parameters), *arguments, ctypes.byref(self._ddp))

    def __del__(self):
        _c.fleet_ddp_free(self._ddp)

    def forward(self, reached=None):
        """Begin a step. reached: names of the parameters that take part in the loss; None: all."""
        flags = None
        if reached is not None:
            flags = (ctypes.c_bool * len(self._places))(*[n in reached for n in self._places])
        _call(_c.fleet_ddp_forward, self._ddp, flags)

    def ready(self, name):
        """The gradient is complete."""
        if name not in self._places:
            raise FleetError(-22, f"ready: there is no parameter {name}")
        _call(_c.fleet_ddp_ready, self._ddp, self._places[name])

    def backward_end(self):
        """All gradients are averages now."""
        _call(_c.fleet_ddp_backward_end, self._ddp)

    def clear_gradients(self):
        _c.fleet_ddp_clear(self._ddp)

    @contextlib.contextmanager
    def no_sync(self):
        old = _c.fleet_ddp_set_sync(self._ddp, ctypes.c_bool(False))
        try:
            yield
        finally:
            _c.fleet_ddp_set_sync(self._ddp, ctypes.c_bool(old))

    def state_dict(self):
        return {name: value for name, value, _ in self._parameters}

    def set_state_dict(self, state_dict):
        """How many tensors were left as they are, each with a warning."""
        entries, keep = _state(state_dict)
        return _call(_c.fleet_state_set, self._items, len(self._places), entries, len(keep))


def fused_allreduce_gradients(parameter_list, hcg=None):
    """hcg: the group; None: the world."""
    items, keep = _list(parameter_list)
    _call(_c.fleet_all_reduce_gradients, items, len(keep), _handle(hcg))


# ---- group_sharded_parallel() --------------------------------------------------------------------


class _Update(ctypes.Structure):
    _fields_ = [("param", ctypes.c_int), ("count", ctypes.c_int64), ("step", ctypes.c_int64),
                ("value", ctypes.POINTER(ctypes.c_float)),
                ("gradient", ctypes.POINTER(ctypes.c_float)),
                ("state", ctypes.POINTER(ctypes.c_float) * 4)]


_UPDATE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_Update))


class _Optimizer(ctypes.Structure):
    _fields_ = [("update", _UPDATE), ("context", ctypes.c_void_p), ("states", ctypes.c_int)]


class _ShardOptions(ctypes.Structure):
    _fields_ = [("segment_size", ctypes.c_int64), ("dp_group", ctypes.c_void_p),
                ("clip_norm", ctypes.c_double), ("merge_steps", ctypes.c_int),
                ("merge_avg", ctypes.c_bool)]


class Optimizer:
    """update(part) changes part.value[0 … part.count) by part.gradient; `states` numbers beside
    each element are in part.state. All values are float32."""

    def __init__(self, update, parameters, states=0):
        self.parameters, self._problem = list(parameters), None

        def run(_context, part):
            try:
                update(part.contents)
            except BaseException as problem:  # C cannot carry it: step() raises it
                self._problem = self._problem or problem

        self._structure = _Optimizer(_UPDATE(run), None, states)

    def _check(self):
        problem, self._problem = self._problem, None
        if problem:
            raise problem


class GroupSharded:
    """An optimizer that exchanges gradients, updates, and brings the values to all ranks."""
    _sharded = None

    def __init__(self, optimizer, function, *arguments):
        self._optimizer = optimizer
        self._items, self._keep = _list(optimizer.parameters)
        self._sharded = ctypes.c_void_p()
        _call(function, self._items, len(self._keep), ctypes.byref(optimizer._structure),
              *arguments, ctypes.byref(self._sharded))

    def __del__(self):
        _c.fleet_group_shard_free(self._sharded)

    def step(self):
        """The gradients are 0 afterwards. True: this call has updated the values."""
        updated = ctypes.c_bool()
        _call(_c.fleet_group_shard_step, self._sharded, None, ctypes.byref(updated))
        self._optimizer._check()
        return updated.value


def group_sharded_parallel(model, optimizer, level, group=None, segment_size=2**20, states=0):
    """optimizer: the function `update` of Optimizer."""
    return GroupSharded(Optimizer(optimizer, model, states), _c.fleet_group_shard, level.encode(),
                        ctypes.byref(_ShardOptions(segment_size)), _handle(group))


def save_group_sharded_model(model, output, optimizer=False):
    """optimizer: true writes its state, too."""
    _call(_c.fleet_group_shard_save, model._sharded, output.encode(), ctypes.c_bool(bool(optimizer)))
