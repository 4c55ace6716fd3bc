# SPDX-License-Identifier: Apache-2.0
"""paddle.distributed.fleet by libfleet.so (fleet_strategy.h): DistributedStrategy, init, the axes."""
import ctypes
import json

from fleet import FleetError, Group, _c, _call, _libc

MODEL, SEQUENCE, SHARDING, PIPELINE, DATA = range(5)


class DistributedStrategy:
    """Settings are attributes: strategy.amp = True, strategy.amp_configs = {"incr_ratio": 2.0}."""

    def __init__(self):
        handle = ctypes.c_void_p()
        _call(_c.fleet_strategy_new, ctypes.byref(handle))
        object.__setattr__(self, "_handle", handle)

    def __setattr__(self, name, value):
        _call(_c.fleet_strategy_set, self._handle, name.encode(), json.dumps(value).encode())

    def __getattr__(self, name):
        text = ctypes.c_void_p()
        try:
            _call(_c.fleet_strategy_get, self._handle, name.encode(), ctypes.byref(text))
        except FleetError as error:
            raise AttributeError(str(error)) from None
        try:
            return json.loads(ctypes.string_at(text))
        finally:
            _libc.free(text)

    def load_from_prototxt(self, path):
        _call(_c.fleet_strategy_load, self._handle, path.encode())

    def save_to_prototxt(self, path):
        _call(_c.fleet_strategy_save, self._handle, path.encode())

    def __del__(self):
        _c.fleet_strategy_free(self._handle)


def init(role_maker=None, is_collective=False, strategy=None):
    """The role is that of the variables."""
    if role_maker is not None or not isinstance(is_collective, bool):
        raise FleetError(-22, "init: role_maker must be None, is_collective True or False")
    _call(_c.fleet_init, None, ctypes.c_bool(is_collective), strategy._handle if strategy else None)


def release():
    _c.fleet_release()


def degree(axis):
    return _c.fleet_axis_degree(axis)


def place(axis):
    return _c.fleet_axis_place(axis)


def group(axis):
    """The Group of this rank along an axis (MODEL, …, DATA)."""
    handle = ctypes.c_void_p()
    _call(_c.fleet_axis_group, axis, ctypes.byref(handle))
    return Group(handle.value, None)
