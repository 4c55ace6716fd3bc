# SPDX-License-Identifier: Apache-2.0
"""paddle.distributed.fleet by libfleet.so (fleet_strategy.h): DistributedStrategy, Strategy, init,
the axes, distributed_model, distributed_optimizer.

A model is a list of (name, value, gradient), as in fleet_ddp.
"""
import ctypes
import json

from fleet import FleetError, Group, _c, _call, _libc
from fleet_ddp import DataParallel, GroupSharded, Optimizer
from fleet_role import _RoleMaker

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


# ---- Strategy of auto parallel -------------------------------------------------------------------


class _Settings:
    """A group of a Strategy: what is assigned to an attribute is checked at once."""

    def __init__(self, strategy, name):
        object.__setattr__(self, "_strategy", strategy)
        object.__setattr__(self, "_name", name)

    def __setattr__(self, key, value):
        old = self._strategy._config
        self._strategy._apply({**old, self._name: {**old.get(self._name, {}), key: value}})

    def __getattr__(self, key):
        try:
            return self._strategy._config[self._name][key]
        except KeyError:
            raise AttributeError(f"{self._name}.{key} is not set: it has the default of "
                                 "DistributedStrategy") from None


class Strategy:
    """Groups of settings: strategy.sharding.stage = 2, or Strategy({"sharding": {"stage": 2}})."""
    _handle = None

    def __init__(self, config=None):
        if config is not None and not isinstance(config, dict):
            raise FleetError(-22, f"Strategy: config is {config!r}, needed is a dict")
        self._apply(config or {})
        for name in ("sharding", "fused_passes", "gradient_merge", "pipeline", "amp"):
            setattr(self, name, _Settings(self, name))

    def _apply(self, config):
        handle = ctypes.c_void_p()
        _call(_c.fleet_strategy_from_groups, json.dumps(config).encode(), ctypes.byref(handle))
        _c.fleet_strategy_free(self._handle)
        self._handle, self._config = handle, config

    def __del__(self):
        _c.fleet_strategy_free(self._handle)


# ---- init ----------------------------------------------------------------------------------------

_role = None  # the library borrows it until release()


def init(role_maker=None, is_collective=False, strategy=None, log_level="INFO"):
    """role_maker None: the role of the variables. strategy None: that of the FleetJob. log_level
    has no effect: the library prints warnings only."""
    global _role
    if not isinstance(is_collective, bool) or not isinstance(role_maker, (_RoleMaker, type(None))):
        raise FleetError(-22, f"init: role_maker is {role_maker!r}, is_collective is "
                              f"{is_collective!r}; needed are a role maker or None, and True or "
                              "False")
    collective = is_collective or (role_maker is not None and role_maker._is_collective())
    _call(_c.fleet_init, role_maker._handle if role_maker else None, ctypes.c_bool(collective),
          strategy._handle if strategy else None)
    _role = role_maker


def release():
    global _role
    _c.fleet_release()
    _role = None


# ---- the axes ------------------------------------------------------------------------------------


def degree(axis):
    return _c.fleet_axis_degree(axis)


def place(axis):
    return _c.fleet_axis_place(axis)


def group(axis):
    """The Group of this rank along an axis (MODEL, …, DATA)."""
    handle = ctypes.c_void_p()
    _call(_c.fleet_axis_group, axis, ctypes.byref(handle))
    return Group(handle.value, None)


# ---- the model and the optimizer -----------------------------------------------------------------


def distributed_model(model):
    """DataParallel over the data axis, in buckets of the sizes of the strategy."""
    wrapped = DataParallel.__new__(DataParallel)
    wrapped._begin(model, _c.fleet_distributed_model)
    return wrapped


def distributed_optimizer(optimizer, strategy=None):
    """step() does what the strategy asks for. optimizer: an Optimizer with the parameters."""
    if not isinstance(optimizer, Optimizer):
        raise FleetError(-22, f"distributed_optimizer: optimizer is {optimizer!r}, needed is an "
                              "Optimizer")
    return GroupSharded(optimizer, _c.fleet_distributed_optimizer,
                        strategy._handle if strategy else None)
