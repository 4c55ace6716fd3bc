# SPDX-License-Identifier: Apache-2.0
"""The parameter server of paddle.distributed.fleet by libfleet.so (fleet_ps.h).

The role comes from the variables of Paddle's launcher. Keys are objects with a buffer of unsigned
64-bit integers (array.array("Q"), numpy.uint64), values with a buffer of 32-bit floats
(array.array("f"), numpy.float32). Errors are fleet.FleetError.
"""
import ctypes

from fleet import FleetError, _c, _call

SGD, ADAGRAD, STD_ADAGRAD, ADAM, SUM = range(5)


class Table(ctypes.Structure):
    """struct fleet_ps_table with its defaults: Table(id=0, width=8, rule=ADAGRAD)."""
    _fields_ = ([("id", ctypes.c_int), ("width", ctypes.c_int), ("length", ctypes.c_int64),
                 ("rule", ctypes.c_int)]
                + [(name, ctypes.c_float) for name in (
                    "learning_rate", "beta1", "beta2", "epsilon", "initial_g2sum", "weight_bound",
                    "initial_range")]
                + [("seed", ctypes.c_uint64), ("entry", ctypes.c_int)]
                + [(name, ctypes.c_float) for name in (
                    "entry_value", "show_coefficient", "click_coefficient", "base_threshold",
                    "delta_threshold", "delta_keep_days", "decay", "delete_threshold",
                    "delete_after_unseen_days")])

    def __init__(self, **members):
        super().__init__()
        _c.fleet_ps_table_defaults(ctypes.byref(self))
        for name, value in members.items():
            setattr(self, name, value)


class CountFilterEntry:
    def __init__(self, count_filter):
        self.kind, self.value = 1, count_filter


class ProbabilityEntry:
    def __init__(self, probability):
        self.kind, self.value = 2, probability


class ShowClickEntry:
    """score: with how much show and click a key gets values."""
    def __init__(self, score=10):
        self.kind, self.value = 3, score


class _Options(ctypes.Structure):
    _fields_ = [("mode", ctypes.c_int), ("k_steps", ctypes.c_int),
                ("max_merge_var_num", ctypes.c_int), ("send_queue_size", ctypes.c_int),
                ("send_wait_times", ctypes.c_int), ("launch_barrier", ctypes.c_bool),
                ("timeout_ms", ctypes.c_int)]


class _ServerOptions(ctypes.Structure):
    _fields_ = [("load_folder", ctypes.c_char_p), ("snapshot_folder", ctypes.c_char_p),
                ("snapshot_every", ctypes.c_int), ("rows_max", ctypes.c_int64),
                ("timeout_ms", ctypes.c_int)]


_c.fleet_ps_step.restype = ctypes.c_int64
_c.fleet_init_role.restype = ctypes.c_void_p
_worker = _server = None


def _role():
    """The role of fleet_strategy.init(); without it that of the variables."""
    role = ctypes.c_void_p(_c.fleet_init_role())
    if not role:
        _call(_c.fleet_role_from_env, False, ctypes.byref(role))
    return role


def _buffer(value, formats, what):
    view = memoryview(value)
    if view.format.lstrip("@=<") not in formats or not view.c_contiguous or view.readonly:
        raise FleetError(-22, f"{what}: a buffer of format {view.format!r}, needed is a writable, "
                              f"contiguous one of {formats}")
    return (ctypes.c_char * view.nbytes).from_buffer(value)


def init_server(dirname=None, snapshots=None, every=0):
    """dirname: a saved state to begin with. snapshots: a folder for the server's own."""
    global _server
    options = _ServerOptions(dirname.encode() if dirname else None,
                             snapshots.encode() if snapshots else None, every, 0, 0)
    role, _server = _role(), ctypes.c_void_p()
    _call(_c.fleet_server_init, role, ctypes.byref(options), ctypes.byref(_server))


def run_server():
    _call(_c.fleet_server_run, _server)


def init_worker(a_sync=False, a_sync_configs=None):
    """Settings of the strategy. Each key of a_sync_configs acts or is refused."""
    global _worker
    options, role, _worker = _Options(), _role(), ctypes.c_void_p()
    _c.fleet_ps_options_init(ctypes.byref(options))
    for name, value in {"a_sync": a_sync, **(a_sync_configs or {})}.items():
        text = f'"{value}"' if isinstance(value, str) else str(value).lower()
        _call(_c.fleet_ps_option_set, ctypes.byref(options), name.encode(), text.encode())
    _call(_c.fleet_worker_start, role, ctypes.byref(options), ctypes.byref(_worker))


def stop_worker():
    _call(_c.fleet_worker_stop, _worker)


def barrier_worker():
    _call(_c.fleet_worker_barrier, _worker)


def save_persistables(executor=None, dirname=None, main_program=None, mode=0):
    """executor and main_program have no effect: the servers hold the tables."""
    _call(_c.fleet_save_state, _worker, dirname.encode(), mode)


def load_persistables(dirname):
    _call(_c.fleet_load_state, _worker, dirname.encode())


def create_table(table, entry=None):
    if entry is not None:
        table.entry, table.entry_value = entry.kind, entry.value
    _call(_c.fleet_ps_table_new, _worker, ctypes.byref(table))


def pull_sparse(table, keys, out, is_training=True):
    _call(_c.fleet_ps_pull, _worker, table, _buffer(keys, "QL", "keys"), len(keys), is_training,
          _buffer(out, "f", "out"))


def push_sparse(table, keys, gradients, shows=None, clicks=None):
    stats = [None if one is None else _buffer(one, "f", "shows and clicks")
             for one in (shows, clicks)]
    _call(_c.fleet_ps_push, _worker, table, _buffer(keys, "QL", "keys"), len(keys),
          _buffer(gradients, "f", "gradients"), *stats)


def pull_dense(table, out):
    _call(_c.fleet_ps_pull_dense, _worker, table, _buffer(out, "f", "out"))


def push_dense(table, gradient):
    _call(_c.fleet_ps_push_dense, _worker, table, _buffer(gradient, "f", "gradient"))


def set_dense(table, values):
    _call(_c.fleet_ps_set_dense, _worker, table, _buffer(values, "f", "values"))


def step_end():
    _call(_c.fleet_ps_step_end, _worker)


def step():
    return _c.fleet_ps_step(_worker)


def shrink(table):
    _call(_c.fleet_ps_shrink, _worker, table)
