# SPDX-License-Identifier: Apache-2.0
"""paddle.distributed by libfleet.so: the functions of fleet.h and fleet_rpc.h under Paddle's names.

Tensors are objects with a writable, contiguous buffer: array.array, numpy.ndarray, memoryview.
Objects travel as JSON, so a peer cannot run code here. A function that others may call must be
registered with @remote. Errors are FleetError, with the text of the library and its code.

The library is found by the loader, or at FLEET_LIBRARY.
"""
import ctypes
import ctypes.util
import json
import os
import threading

_TYPES = {"B": 0, "b": 1, "i": 2, "l": 3, "q": 3, "e": 4, "f": 6, "d": 7, "?": 8, "Zf": 9, "Zd": 10}


class FleetError(RuntimeError):
    def __init__(self, code, text):
        super().__init__(text)
        self.code = code


class _Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("kind", ctypes.c_int), ("text", ctypes.c_char * 512)]


class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("type", ctypes.c_int), ("dimensions", ctypes.c_int),
                ("shape", ctypes.c_int64 * 8)]


class _P2P(ctypes.Structure):
    _fields_ = [("is_receive", ctypes.c_bool), ("peer", ctypes.c_int), ("tensor", _Tensor)]


class _Env(ctypes.Structure):
    _fields_ = [("rank", ctypes.c_int), ("world", ctypes.c_int), ("generation", ctypes.c_int),
                ("timeout_ms", ctypes.c_int)]


class _Worker(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char * 129), ("rank", ctypes.c_int), ("ip", ctypes.c_char * 64),
                ("port", ctypes.c_int)]


_c = ctypes.CDLL(os.environ.get("FLEET_LIBRARY") or "libfleet.so.0", use_errno=True)
_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.free.argtypes = [ctypes.c_void_p]
for _name in ("fleet_group_new", "fleet_group_by_id"):
    getattr(_c, _name).restype = ctypes.c_int if _name.endswith("new") else ctypes.c_void_p
_c.fleet_group_backend.restype = ctypes.c_char_p
for _name in ("fleet_is_initialized", "fleet_is_available"):
    getattr(_c, _name).restype = ctypes.c_bool


def _call(function, *arguments):
    """Call a function whose last argument is the error."""
    error = _Error()
    result = function(*arguments, ctypes.byref(error))
    if result < 0:
        raise FleetError(error.code, error.text.decode("utf-8", "replace"))
    return result


def _tensor(value):
    """The structure, and what keeps its memory alive."""
    view = memoryview(value)
    kind = view.format.lstrip("@=<")
    if kind not in _TYPES or not view.c_contiguous or view.readonly or view.ndim > 8:
        raise FleetError(-22, f"tensor of format {view.format!r} with {view.ndim} dimensions: needed "
                              "is a writable, contiguous one of " + ", ".join(_TYPES))
    if view.nbytes == 0:
        address, keep = None, view
    else:
        keep = (ctypes.c_char * view.nbytes).from_buffer(value)
        address = ctypes.addressof(keep)
    shape = (ctypes.c_int64 * 8)(*view.shape)
    return _Tensor(address, _TYPES[kind], view.ndim, shape), keep


def _handle(group):
    return ctypes.c_void_p(group.handle if group else None)


class _Task:
    """A running operation. It keeps the memory of its tensors; `after` is called once it is done."""

    def __init__(self, handle, keep, after=None):
        self.handle, self.keep, self.after = handle, keep, after

    def _end(self):
        after, self.after = self.after, None
        if after:
            after()
        return True

    def wait(self):
        _call(_c.fleet_task_wait, self.handle)
        return self._end()

    def is_completed(self):
        return _call(_c.fleet_task_done, self.handle) == 1 and self._end()

    def __del__(self):
        _c.fleet_task_free(self.handle)


def _run(function, tensors, arguments, group, sync_op, after=None):
    """tensors first, then arguments, group, task, error; after() follows the operation."""
    pairs = [_tensor(t) if t is not None else (None, None) for t in tensors]
    structures = [ctypes.byref(s) if s is not None else None for s, _ in pairs]
    task = ctypes.c_void_p()
    _call(function, *structures, *arguments, _handle(group),
          None if sync_op else ctypes.byref(task))
    if not sync_op:
        return _Task(task, pairs, after)
    return after() if after else None


# ---- environment and groups ----------------------------------------------------------------------


class ReduceOp:
    SUM, MAX, MIN, PROD, AVG = range(5)


class Group:
    def __init__(self, handle, ranks):
        self.handle, self.ranks = handle, ranks
        self.id = _c.fleet_group_id(ctypes.c_void_p(handle))

    @property
    def rank(self):
        return _c.fleet_rank(ctypes.c_void_p(self.handle))

    @property
    def nranks(self):
        return _c.fleet_world_size(ctypes.c_void_p(self.handle))


_groups = {}


class ParallelEnv:
    def __init__(self):
        env = _Env()
        _call(_c.fleet_env_read, ctypes.byref(env))
        self.rank, self.world_size, self.pg_timeout = env.rank, env.world, env.timeout_ms
        self.trainer_endpoints = [
            e for e in os.environ.get("PADDLE_TRAINER_ENDPOINTS", "").split(",") if e]
        self.current_endpoint = os.environ.get("PADDLE_CURRENT_ENDPOINT", "")


def init_parallel_env():
    _call(_c.fleet_env_init)
    _groups.setdefault(0, Group(None, list(range(get_world_size()))))
    return _groups[0]


def is_initialized():
    return _c.fleet_is_initialized()


def is_available():
    return _c.fleet_is_available()


def get_rank(group=None):
    return _c.fleet_rank(_handle(group))


def get_world_size(group=None):
    return _c.fleet_world_size(_handle(group))


def new_group(ranks=None, backend=None, timeout_ms=0):
    if backend not in (None, "gloo", "GLOO"):
        raise FleetError(-22, f"new_group: backend {backend!r}, allowed: None, 'gloo'")
    ranks = sorted(ranks) if ranks is not None else list(range(get_world_size()))
    handle = ctypes.c_void_p()
    _call(_c.fleet_group_new, (ctypes.c_int * len(ranks))(*ranks), len(ranks), timeout_ms,
          ctypes.byref(handle))
    group = Group(handle.value, ranks)
    _groups[group.id] = group
    return group


def get_group(id=0):
    return _groups.get(id)


def destroy_process_group(group=None):
    _c.fleet_group_free(_handle(group))
    if group is None or group.handle is None:
        _groups.clear()
    else:
        _groups.pop(group.id, None)


def get_backend(group=None):
    name = _c.fleet_group_backend(_handle(group))
    if name is None:
        raise FleetError(-107, "get_backend: this rank is not a member of the group")
    return name.decode()


# ---- collectives ---------------------------------------------------------------------------------


def _join(tensors):
    """One buffer with all tensors, and a function that copies it back into them."""
    views = [memoryview(t).cast("B") for t in tensors]
    kind = {memoryview(t).format for t in tensors}
    if len(kind) != 1 or len({v.nbytes for v in views}) != 1:
        raise FleetError(-22, "a list of tensors needs one type and one size")
    whole = bytearray(b"".join(views))

    def back():
        at = 0
        for view in views:
            view[:] = whole[at:at + view.nbytes]
            at += view.nbytes

    return memoryview(whole).cast(kind.pop().lstrip("@=<")), back


def all_reduce(tensor, op=ReduceOp.SUM, group=None, sync_op=True):
    return _run(_c.fleet_all_reduce, [tensor], [op], group, sync_op)


def reduce(tensor, dst, op=ReduceOp.SUM, group=None, sync_op=True):
    return _run(_c.fleet_reduce, [tensor], [dst, op], group, sync_op)


def broadcast(tensor, src, group=None, sync_op=True):
    return _run(_c.fleet_broadcast, [tensor], [src], group, sync_op)


def all_gather(tensor_list, tensor, group=None, sync_op=True):
    """Fills an empty list with new tensors, else its tensors in place."""
    if not tensor_list:
        tensor_list.extend(_copy(tensor) for _ in range(get_world_size(group)))
    whole, back = _join(tensor_list)
    return _run(_c.fleet_all_gather, [whole, tensor], [], group, sync_op, back)


def _copy(tensor):
    """A new tensor of the same type: by its own method, or a memoryview."""
    if hasattr(tensor, "copy"):
        return tensor.copy()
    view = memoryview(tensor)
    kind, copy = view.format.lstrip("@=<"), memoryview(bytearray(view))
    return copy.cast(kind, view.shape) if view.ndim > 1 and view.nbytes else copy.cast(kind)


def reduce_scatter(tensor, tensor_list, op=ReduceOp.SUM, group=None, sync_op=True):
    whole, _ = _join(tensor_list)
    return _run(_c.fleet_reduce_scatter, [tensor, whole], [op], group, sync_op)


def scatter(tensor, tensor_list=None, src=0, group=None, sync_op=True):
    whole = _join(tensor_list)[0] if tensor_list else None
    return _run(_c.fleet_scatter, [tensor, whole], [src], group, sync_op)


def alltoall(in_tensor_list, out_tensor_list, group=None, sync_op=True):
    if not out_tensor_list:
        out_tensor_list.extend(_copy(t) for t in in_tensor_list)
    send, _ = _join(in_tensor_list)
    receive, back = _join(out_tensor_list)
    return _run(_c.fleet_all_to_all, [receive, send], [], group, sync_op, back)


def alltoall_single(in_tensor, out_tensor, in_split_sizes=None, out_split_sizes=None, group=None,
                    sync_op=True):
    if in_split_sizes is None and out_split_sizes is None:
        return _run(_c.fleet_all_to_all, [out_tensor, in_tensor], [], group, sync_op)
    count = get_world_size(group)

    def rows(sizes, tensor):
        sizes = sizes if sizes is not None else [memoryview(tensor).shape[0] // count] * count
        if len(sizes) != count:
            raise FleetError(-22, f"alltoall_single: {len(sizes)} sizes for {count} ranks")
        return (ctypes.c_int64 * count)(*sizes)

    (out, keep_out), (send, keep_in) = _tensor(out_tensor), _tensor(in_tensor)
    task = ctypes.c_void_p()
    _call(_c.fleet_all_to_all_v, ctypes.byref(out), rows(out_split_sizes, out_tensor),
          ctypes.byref(send), rows(in_split_sizes, in_tensor), _handle(group),
          None if sync_op else ctypes.byref(task))
    return None if sync_op else _Task(task, (keep_out, keep_in))


def send(tensor, dst=0, group=None, sync_op=True):
    return _run(_c.fleet_send, [tensor], [dst], group, sync_op)


def recv(tensor, src=0, group=None, sync_op=True):
    return _run(_c.fleet_recv, [tensor], [src], group, sync_op)


def isend(tensor, dst, group=None):
    return send(tensor, dst, group, sync_op=False)


def irecv(tensor, src, group=None):
    return recv(tensor, src, group, sync_op=False)


class P2POp:
    def __init__(self, op, tensor, peer, group=None):
        if op not in (isend, irecv):
            raise FleetError(-22, "P2POp: op must be isend or irecv")
        self.op, self.tensor, self.peer, self.group = op, tensor, peer, group


def batch_isend_irecv(p2p_op_list):
    if not p2p_op_list:
        raise FleetError(-22, "batch_isend_irecv: the list is empty")
    pairs = [_tensor(one.tensor) for one in p2p_op_list]
    items = (_P2P * len(pairs))(*[_P2P(one.op is irecv, one.peer, pair[0])
                                  for one, pair in zip(p2p_op_list, pairs)])
    task = ctypes.c_void_p()
    _call(_c.fleet_batch_p2p, items, len(pairs), _handle(p2p_op_list[0].group), ctypes.byref(task))
    return [_Task(task, pairs)]


def barrier(group=None):
    _call(_c.fleet_barrier, _handle(group))


def wait(tensor, group=None, use_calc_stream=True):
    """Tensors lie in the host's memory: an operation that has returned is complete."""


# ---- objects -------------------------------------------------------------------------------------


def _take(pointer, size):
    """Bytes of the library's memory, which is freed."""
    try:
        return ctypes.string_at(pointer, size) if size else b""
    finally:
        _libc.free(pointer)


def all_gather_object(object_list, obj, group=None):
    data = json.dumps(obj).encode()
    sizes = (ctypes.c_size_t * get_world_size(group))()
    out = ctypes.c_void_p()
    _call(_c.fleet_all_gather_bytes, data, ctypes.c_size_t(len(data)), sizes, ctypes.byref(out),
          _handle(group))
    whole, at = _take(out, sum(sizes)), 0
    for size in sizes:
        object_list.append(json.loads(whole[at:at + size]))
        at += size


def broadcast_object_list(object_list, src, group=None):
    data = json.dumps(object_list).encode()
    mine = ctypes.create_string_buffer(data, len(data))
    pointer, size = ctypes.c_void_p(ctypes.addressof(mine)), ctypes.c_size_t(len(data))
    _call(_c.fleet_broadcast_bytes, ctypes.byref(pointer), ctypes.byref(size), src, _handle(group))
    if get_rank() != src:
        found = json.loads(_take(pointer, size.value))
        if len(found) != len(object_list):
            raise FleetError(-22, f"broadcast_object_list: {len(object_list)} places for "
                                  f"{len(found)} objects")
        object_list[:] = found


def scatter_object_list(out_object_list, in_object_list=None, src=0, group=None):
    parts, sizes = None, None
    if get_rank() == src:
        texts = [json.dumps(one).encode() for one in in_object_list or []]
        if len(texts) != get_world_size(group):
            raise FleetError(-22, f"scatter_object_list: {len(texts)} objects for "
                                  f"{get_world_size(group)} ranks")
        parts = (ctypes.c_char_p * len(texts))(*texts)
        sizes = (ctypes.c_size_t * len(texts))(*[len(t) for t in texts])
    out, size = ctypes.c_void_p(), ctypes.c_size_t()
    _call(_c.fleet_scatter_bytes, ctypes.byref(out), ctypes.byref(size), parts, sizes, src,
          _handle(group))
    out_object_list[:] = [json.loads(_take(out, size.value))]


# ---- RPC -----------------------------------------------------------------------------------------

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t,
                             ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t),
                             ctypes.c_void_p, ctypes.POINTER(_Error))
_registered = {}  # the callbacks must live as long as the library may call them


class WorkerInfo:
    def __init__(self, worker):
        self.name, self.rank = worker.name.decode(), worker.rank
        self.ip, self.port = worker.ip.decode(), worker.port

    def __repr__(self):
        return f"{{name: {self.name}, rank: {self.rank}, ip: {self.ip}, port: {self.port}}}"


def remote(function):
    """Let other workers call this function by its name, with arguments that JSON can carry."""

    def run(data, size, out, out_size, _argument, error):
        try:
            args, kwargs = json.loads(ctypes.string_at(data, size))
            result = json.dumps(function(*args, **kwargs)).encode()
        except Exception as problem:  # all of them travel to the caller
            error[0].text = f"{type(problem).__name__}: {problem}".encode()[:511]
            return -5
        out[0] = _libc.malloc(ctypes.c_size_t(len(result)))
        ctypes.memmove(out[0], result, len(result))
        out_size[0] = len(result)
        return 0

    callback = _FUNCTION(run)
    _call(_c.fleet_rpc_register, function.__name__.encode(), callback, None)
    _registered[function.__name__] = callback
    return function


def init_rpc(name, rank=None, world_size=None, master_endpoint=None):
    _call(_c.fleet_rpc_init, name.encode(), -1 if rank is None else rank, world_size or 0,
          master_endpoint.encode() if master_endpoint else None)


class Future:
    def __init__(self, handle):
        self._handle, self._lock, self._result = handle, threading.Lock(), None

    def wait(self):
        with self._lock:
            if self._result is None:
                out, size = ctypes.c_void_p(), ctypes.c_size_t()
                _call(_c.fleet_rpc_wait, self._handle, ctypes.byref(out), ctypes.byref(size))
                self._result = (json.loads(_take(out, size.value)),)
            return self._result[0]

    def __del__(self):
        _c.fleet_rpc_future_free(self._handle)


def rpc_async(to, fn, args=None, kwargs=None, timeout=-1):
    """fn is a function or its name. timeout is in seconds; 0 and less mean no limit."""
    name = fn if isinstance(fn, str) else fn.__name__
    data = json.dumps([list(args or ()), dict(kwargs or {})]).encode()
    handle = ctypes.c_void_p()
    _call(_c.fleet_rpc_start, to.encode(), name.encode(), data, ctypes.c_size_t(len(data)),
          int(timeout * 1000) if timeout > 0 else 0, ctypes.byref(handle))
    return Future(handle)


def rpc_sync(to, fn, args=None, kwargs=None, timeout=-1):
    return rpc_async(to, fn, args, kwargs, timeout).wait()


def shutdown():
    _call(_c.fleet_rpc_shutdown)


def get_worker_info(name):
    worker = _Worker()
    _call(_c.fleet_rpc_worker, name.encode(), ctypes.byref(worker))
    return WorkerInfo(worker)


def get_current_worker_info():
    worker = _Worker()
    _call(_c.fleet_rpc_self, ctypes.byref(worker))
    return WorkerInfo(worker)


def get_all_worker_infos():
    workers, count = ctypes.POINTER(_Worker)(), ctypes.c_int()
    _call(_c.fleet_rpc_workers, ctypes.byref(workers), ctypes.byref(count))
    try:
        return [WorkerInfo(workers[i]) for i in range(count.value)]
    finally:
        _libc.free(workers)


from fleet_host import gloo_barrier, gloo_init_parallel_env, gloo_release, spawn  # noqa: E402,F401
import fleet_stream as stream  # noqa: E402  (it uses what stands above)
