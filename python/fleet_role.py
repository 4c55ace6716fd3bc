# SPDX-License-Identifier: Apache-2.0
"""Role makers and UtilBase of paddle.distributed.fleet by libfleet.so (fleet_role.h)."""
import ctypes

from fleet import FleetError, _c, _call, _copy, _run, get_world_size

WORKER, SERVER = 1, 2


class Role:
    WORKER, SERVER, HETER_WORKER, COORDINATOR = 1, 2, 3, 4


class _Description(ctypes.Structure):
    _fields_ = [("is_collective", ctypes.c_bool), ("kind", ctypes.c_int),
                ("current_id", ctypes.c_int), ("worker_num", ctypes.c_int),
                ("worker_endpoints", ctypes.c_char_p), ("server_endpoints", ctypes.c_char_p)]


for _name in ("is_collective", "is_local", "is_worker", "is_first_worker", "is_server"):
    getattr(_c, f"fleet_role_{_name}").restype = ctypes.c_bool
for _name in ("worker", "server"):
    getattr(_c, f"fleet_role_{_name}_endpoints").restype = ctypes.POINTER(ctypes.c_char_p)


class _RoleMaker:
    _handle = None

    def __init__(self, handle):
        self._handle = handle

    def __del__(self):
        _c.fleet_role_free(self._handle)

    def _endpoints(self, function):
        count = ctypes.c_int()
        texts = function(self._handle, ctypes.byref(count))
        return [texts[i].decode() for i in range(count.value)]

    def _is_collective(self):
        return _c.fleet_role_is_collective(self._handle)

    def is_worker(self):
        return _c.fleet_role_is_worker(self._handle)

    def is_first_worker(self):
        return _c.fleet_role_is_first_worker(self._handle)

    def is_server(self):
        return _c.fleet_role_is_server(self._handle)

    def worker_index(self):
        return _c.fleet_role_worker_index(self._handle)

    def server_index(self):
        return _c.fleet_role_server_index(self._handle)

    def worker_num(self):
        return _c.fleet_role_worker_num(self._handle)

    def server_num(self):
        return _c.fleet_role_server_num(self._handle)

    def node_num(self):
        return _c.fleet_role_node_num(self._handle)

    def get_trainer_endpoints(self):
        return self._endpoints(_c.fleet_role_worker_endpoints)

    def get_pserver_endpoints(self):
        return self._endpoints(_c.fleet_role_server_endpoints)


class PaddleCloudRoleMaker(_RoleMaker):
    def __init__(self, is_collective=False):
        handle = ctypes.c_void_p()
        _call(_c.fleet_role_from_env, is_collective, ctypes.byref(handle))
        super().__init__(handle)


class UserDefinedRoleMaker(_RoleMaker):
    def __init__(self, is_collective=False, init_gloo=False, *, current_id, role=WORKER,
                 worker_num=0, worker_endpoints=None, server_endpoints=None):
        """init_gloo has no effect: fleet.gloo_init_parallel_env() makes such a world."""
        lists = [",".join(one).encode() if one else None
                 for one in (worker_endpoints, server_endpoints)]
        handle = ctypes.c_void_p()
        _call(_c.fleet_role_user, ctypes.byref(_Description(is_collective, role, current_id,
                                                             worker_num, *lists)),
              ctypes.byref(handle))
        super().__init__(handle)


class UtilBase:
    """Small exchanges of all workers, which have called fleet.init_parallel_env()."""

    def __init__(self, role_maker=None):
        self._role = role_maker or PaddleCloudRoleMaker(is_collective=True)

    def all_reduce(self, input, mode="sum", comm_world="worker"):
        """A new tensor; input stays as it is."""
        out = _copy(input)
        _run(lambda tensor, *more: _c.fleet_util_all_reduce(
            tensor, mode.encode(), comm_world.encode(), more[-1]), [out], [], None, True)
        return out

    def barrier(self, comm_world="worker"):
        _call(_c.fleet_util_barrier, comm_world.encode())

    def all_gather(self, input, comm_world="worker"):
        """A list by rank of numbers, or of tensors."""
        import array
        single = isinstance(input, (int, float))
        one = array.array("d" if isinstance(input, float) else "q", [input]) if single else input
        whole = array.array(memoryview(one).format, bytes(memoryview(one)) * get_world_size())
        _run(lambda out, tensor, *more: _c.fleet_util_all_gather(
            out, tensor, comm_world.encode(), more[-1]), [whole, one], [], None, True)
        size = len(whole) // get_world_size()
        parts = [whole[i:i + size] for i in range(0, len(whole), size)]
        return [part[0] for part in parts] if single else parts

    def get_file_shard(self, files):
        if not isinstance(files, list):
            raise TypeError("files should be a list of files to read")
        first, count = ctypes.c_int(), ctypes.c_int()
        _call(_c.fleet_util_file_shard, self._role._handle, len(files), ctypes.byref(first),
              ctypes.byref(count))
        return files[first.value:first.value + count.value]

    def print_on_rank(self, message, rank_id):
        if not isinstance(rank_id, int):
            raise FleetError(-22, f"print_on_rank: rank_id is {rank_id!r}")
        _c.fleet_util_print_on_rank(self._role._handle, str(message).encode(), rank_id)
