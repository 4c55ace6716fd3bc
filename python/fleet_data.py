# SPDX-License-Identifier: Apache-2.0
"""InMemoryDataset and QueueDataset of paddle.distributed by libfleet.so (fleet_data.h).

use_var is a list of (name, dtype, shape): dtype "float32" or "int64"; a shape with -1 behind its
first dimension, or without one, is a sparse slot. A batch is a dictionary: name -> one array of
values for each instance.
"""
import array
import contextlib
import ctypes

from fleet import FleetError, _c, _call, _handle


class _Slot(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_int), ("elements", ctypes.c_int64)]


class _Options(ctypes.Structure):
    _fields_ = [("slots", ctypes.POINTER(_Slot)), ("slot_count", ctypes.c_int),
                ("batch_size", ctypes.c_int), ("threads", ctypes.c_int),
                ("pipe_command", ctypes.c_char_p), ("download", ctypes.c_char_p),
                ("timeout_ms", ctypes.c_int), ("bytes_max", ctypes.c_uint64),
                ("parse_ins_id", ctypes.c_bool), ("parse_content", ctypes.c_bool),
                ("merge_by_ins_id", ctypes.c_bool), ("seed", ctypes.c_uint64)]


class _Values(ctypes.Structure):
    _fields_ = [("values", ctypes.c_void_p), ("offsets", ctypes.POINTER(ctypes.c_int64))]


class _Batch(ctypes.Structure):
    _fields_ = [("size", ctypes.c_int), ("slots", ctypes.POINTER(_Values)),
                ("ids", ctypes.c_void_p), ("contents", ctypes.c_void_p)]


def _slot(name, dtype, shape):
    kinds = {"float32": 0, "int64": 1}
    if dtype not in kinds:
        raise FleetError(-22, f"use_var: {name} is {dtype}, allowed: float32, int64")
    inner = list(shape)[1:]
    elements = 0 if not inner or any(one < 1 for one in inner) else 1
    for one in inner:
        elements *= one
    return _Slot(name.encode(), kinds[dtype], elements)


class _Dataset:
    _new = None

    def __init__(self):
        self._dataset = None
        self._slots = []

    def init(self, batch_size=1, thread_num=1, use_var=(), pipe_command="cat", download_cmd=None,
             seed=0, **more):
        """Paddle's input_type, fs_name and fs_ugi have no effect: download_cmd fetches files."""
        self._slots = list(use_var)
        slots = (_Slot * max(1, len(self._slots)))(*[_slot(*one) for one in self._slots])
        options = _Options(slots, len(self._slots), batch_size, thread_num, pipe_command.encode(),
                           download_cmd.encode() if download_cmd else None, seed=seed)
        for name in ("input_type", "fs_name", "fs_ugi", "queue_num"):
            more.pop(name, None)
        for name, value in more.items():
            if name not in {field for field, _ in _Options._fields_}:
                raise FleetError(-22, f"init: {name} is no setting of a data set")
            setattr(options, name, value)
        self._free()
        self._dataset = ctypes.c_void_p()
        _call(getattr(_c, self._new), ctypes.byref(options), ctypes.byref(self._dataset))

    def set_filelist(self, filelist):
        files = (ctypes.c_char_p * max(1, len(filelist)))(*[one.encode() for one in filelist])
        _call(_c.fleet_dataset_set_files, self._dataset, files, len(filelist))

    def _array(self, slot, values, i):
        kind, dtype = ("f", ctypes.c_float) if slot[1] == "float32" else ("Q", ctypes.c_uint64)
        first, end = values.offsets[i], values.offsets[i + 1]
        pointer = ctypes.cast(values.values, ctypes.POINTER(dtype))
        return array.array(kind, pointer[first:end])

    def __iter__(self):
        batch = _Batch()
        _call(_c.fleet_dataset_begin, self._dataset)
        while _call(_c.fleet_dataset_next, self._dataset, ctypes.byref(batch)) == 1:
            yield {slot[0]: [self._array(slot, batch.slots[s], i) for i in range(batch.size)]
                   for s, slot in enumerate(self._slots)}

    def _free(self):
        if self._dataset:
            _c.fleet_dataset_free(self._dataset)
        self._dataset = None

    def __del__(self):
        with contextlib.suppress(AttributeError, TypeError):  # the interpreter may be ending
            self._free()


class InMemoryDataset(_Dataset):
    _new = "fleet_dataset_memory"

    def load_into_memory(self):
        _call(_c.fleet_dataset_load, self._dataset)

    def preload_into_memory(self):
        _call(_c.fleet_dataset_preload, self._dataset)

    def wait_preload_done(self):
        _call(_c.fleet_dataset_preload_wait, self._dataset)

    def local_shuffle(self):
        _call(_c.fleet_dataset_local_shuffle, self._dataset)

    def global_shuffle(self, group=None):
        _call(_c.fleet_dataset_global_shuffle, self._dataset, _handle(group))

    def slots_shuffle(self, slots):
        names = (ctypes.c_char_p * max(1, len(slots)))(*[one.encode() for one in slots])
        _call(_c.fleet_dataset_slots_shuffle, self._dataset, names, len(slots))

    def release_memory(self):
        _c.fleet_dataset_release_memory(self._dataset)

    def get_memory_data_size(self, group=None, of_all=False):
        """Instances of this worker; of_all: of all workers."""
        size = ctypes.c_int64()
        if of_all:
            _call(_c.fleet_dataset_size_of_all, self._dataset, _handle(group), ctypes.byref(size))
        else:
            _call(_c.fleet_dataset_size, self._dataset, ctypes.byref(size))
        return size.value

    get_shuffle_data_size = get_memory_data_size


class QueueDataset(_Dataset):
    _new = "fleet_dataset_queue"

    def local_shuffle(self):
        _call(_c.fleet_dataset_local_shuffle, self._dataset)

    def global_shuffle(self, group=None):
        _call(_c.fleet_dataset_global_shuffle, self._dataset, _handle(group))
