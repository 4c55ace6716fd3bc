# SPDX-License-Identifier: Apache-2.0
"""A second world for barriers of the host (fleet_cpu.h), and processes of this machine that train
together (fleet_spawn.h). fleet.py imports the functions."""
import ctypes
import os
import sys
import traceback

from fleet import _c, _call, _libc


def gloo_init_parallel_env(rank_id, rank_num, server_endpoint):
    _call(_c.fleet_cpu_env_init, rank_id, rank_num, server_endpoint.encode())


def gloo_barrier():
    _call(_c.fleet_cpu_barrier)


def gloo_release():
    _c.fleet_cpu_env_release()


class _SpawnOptions(ctypes.Structure):
    _fields_ = [("processes", ctypes.c_int), ("env", ctypes.POINTER(ctypes.c_char_p)),
                ("stop_timeout_ms", ctypes.c_int)]


_SPAWNED = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _SpawnContext:
    def __init__(self, handle, callback):
        self._handle, self._callback = handle, callback

    def join(self, timeout=None):
        """timeout in seconds. True: all processes have ended well."""
        return _call(_c.fleet_spawn_join, self._handle,
                     -1 if timeout is None else int(timeout * 1000)) == 1

    def __del__(self):
        _c.fleet_spawn_free(self._handle)


def _read_environment():
    """os.environ is a copy: the variables of this process were set after it was made."""
    entries = ctypes.POINTER(ctypes.c_char_p).in_dll(_libc, "environ")
    texts = []
    while entries[len(texts)]:
        texts.append(os.fsdecode(entries[len(texts)]))
    for text in texts:
        name, _, value = text.partition("=")
        if os.environ.get(name) != value:
            os.environ[name] = value


def spawn(func, args=(), nprocs=1, join=True, env=None):
    """Fork processes that call func(*args); an exception is exit code 1 and a trace on stderr."""

    def run(_argument):
        _read_environment()
        try:
            func(*args)
        except BaseException:  # also SystemExit: its code says that the process failed
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()
        return 0

    callback = _SPAWNED(run)
    texts = [f"{name}={value}".encode() for name, value in (env or {}).items()]
    options = _SpawnOptions(nprocs, (ctypes.c_char_p * (len(texts) + 1))(*texts, None), 0)
    handle = ctypes.c_void_p()
    _call(_c.fleet_spawn_start, callback, None, ctypes.byref(options), ctypes.byref(handle))
    context = _SpawnContext(handle, callback)
    if join:
        context.join()
    return context
