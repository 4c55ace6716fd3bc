# SPDX-License-Identifier: Apache-2.0
"""paddle.distributed.to_static and fleet.save_inference_model by libfleet.so (fleet_program.h).

    model = to_static(text, fetches=["logits"])
    loss = model(x=x, labels=labels)            # as in Paddle: the loss, and the gradients
    for tensor in model.tensors: …              # tensor.name, tensor.value, tensor.gradient
    save_inference_model(model, "mine.model")
    logits, = load_inference_model("mine.model")(x=x)

Feeds are objects with a buffer, such as array.array or numpy.ndarray, with the shape of the
program's input (a flat buffer of as many elements will do). Results are memoryviews.
"""
import ctypes

from fleet import FleetError, _Tensor, _c, _call

HIGHEST, PREDICT, EVAL, TRAIN = range(4)
_FORMATS = {0: ("B", 1), 2: ("i", 4), 4: ("H", 2), 5: ("H", 2), 6: ("f", 4)}  # by enum fleet_type


class _Entry(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("tensor", _Tensor)]


class _Options(ctypes.Structure):
    _fields_ = [("fetches", ctypes.POINTER(ctypes.c_char_p)), ("fetch_count", ctypes.c_int),
                ("highest", ctypes.c_int), ("seed", ctypes.c_uint64), ("threads", ctypes.c_int)]


class _DdpTensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", _Tensor), ("gradient", ctypes.c_void_p),
                ("kind", ctypes.c_int)]


_c.fleet_program_tensors.restype = ctypes.POINTER(_DdpTensor)
for _name in ("fleet_program_feed", "fleet_program_fetch"):
    getattr(_c, _name).restype = ctypes.c_bool


def _names(names):
    return (ctypes.c_char_p * len(names))(*[name.encode() for name in names])


def _elements(tensor):
    count = 1
    for size in tensor.shape[:tensor.dimensions]:
        count *= size
    return count


def _view(tensor, address):
    """The memory at an address as a memoryview with the shape of the tensor."""
    kind, size = _FORMATS[tensor.type]
    memory = (ctypes.c_char * (size * _elements(tensor))).from_address(address)
    shape = list(tensor.shape[:tensor.dimensions]) or [1]
    return memoryview(memory).cast("B").cast(kind, shape)


class Tensor:
    """A parameter or buffer of a program. value and gradient are views of the program's memory."""

    def __init__(self, tensor, owner):
        self.name, self._owner = tensor.name.decode(), owner
        self.value = _view(tensor.value, tensor.value.data)
        self.gradient = _view(tensor.value, tensor.gradient) if tensor.gradient else None


class DistModel:
    """A compiled program. train(), eval() and predict() choose the mode of the calls."""

    def __init__(self, handle):
        self._handle = handle
        self._mode = _c.fleet_program_highest(handle)
        count = ctypes.c_int()
        tensors = _c.fleet_program_tensors(handle, ctypes.byref(count))
        self.tensors = [Tensor(tensors[i], self) for i in range(count.value)]

    def _choose(self, mode, name):
        entry = _Entry()
        if not _c.fleet_program_fetch(self._handle, mode, 0, ctypes.byref(entry)):
            raise FleetError(-22, f"{name}: the program does not have this mode")
        self._mode = mode

    def train(self):
        self._choose(TRAIN, "train")

    def eval(self):
        self._choose(EVAL, "eval")

    def predict(self):
        self._choose(PREDICT, "predict")

    def _entries(self, function):
        entries, entry = [], _Entry()
        while function(self._handle, self._mode, len(entries), ctypes.byref(entry)):
            entries.append(entry)
            entry = _Entry()
        return entries

    def _feed(self, entries, feeds):
        """The entries of the feeds, and what keeps their memory alive."""
        known, out, keep = {entry.name.decode(): entry for entry in entries}, [], []
        for name, value in feeds.items():
            entry, view = _Entry(name.encode()), memoryview(value)
            if name in known:
                needed = known[name].tensor
                kind, size = _FORMATS[needed.type]
                if view.format.lstrip("@=<").replace("l", "i") not in (kind, "e") or (
                        view.itemsize != size or view.nbytes != size * _elements(needed) or (
                            view.ndim > 1 and list(view.shape) != needed.shape[:needed.dimensions])):
                    raise FleetError(-22, f"{name} has format {view.format!r} and shape "
                                          f"{view.shape}, needed is {kind!r} and "
                                          f"{tuple(needed.shape[:needed.dimensions])}")
                keep.append(ctypes.create_string_buffer(view.tobytes(), max(view.nbytes, 1)))
                entry.tensor = _Tensor(ctypes.addressof(keep[-1]), needed.type, needed.dimensions,
                                       needed.shape)
            out.append(entry)
        return out, keep

    def __call__(self, **feeds):
        """The loss in the modes train and eval, the list of all fetches in the mode predict."""
        fed, keep = self._feed(self._entries(_c.fleet_program_feed), feeds)
        results = self._entries(_c.fleet_program_fetch)
        for entry in results:
            size = _FORMATS[entry.tensor.type][1] * _elements(entry.tensor)
            keep.append(ctypes.create_string_buffer(size))
            entry.tensor.data = ctypes.addressof(keep[-1])
        _call(_c.fleet_program_run, self._handle, self._mode, (_Entry * len(fed))(*fed), len(fed),
              (_Entry * len(results))(*results), len(results))
        self.outputs = {}
        for entry, memory in zip(results, keep[len(keep) - len(results):]):
            kind = _FORMATS[entry.tensor.type][0]
            shape = list(entry.tensor.shape[:entry.tensor.dimensions]) or [1]
            self.outputs[entry.name.decode()] = memoryview(memory).cast("B").cast(kind, shape)
        values = list(self.outputs.values())
        return values if self._mode == PREDICT else values[-1][0]

    def __del__(self):
        _c.fleet_program_free(self._handle)


def to_static(text, fetches=(), mode=HIGHEST, seed=0, threads=0):
    """text: the program. fetches: names of variables that runs return beside the loss."""
    handle = ctypes.c_void_p()
    options = _Options(_names(fetches), len(fetches), mode, seed, threads)
    _call(_c.fleet_program_compile, text.encode(), ctypes.byref(options), ctypes.byref(handle))
    return DistModel(handle)


def save_inference_model(model, path, feeded_var_names=(), target_vars=()):
    """Rank 0 writes the file, the other ranks return."""
    if not isinstance(model, DistModel):
        raise FleetError(-22, "save_inference_model: model must be a DistModel")
    _call(_c.fleet_save_inference_model, model._handle, path.encode(), _names(feeded_var_names),
          len(feeded_var_names), _names(target_vars), len(target_vars))


def load_inference_model(path, threads=0):
    handle = ctypes.c_void_p()
    _call(_c.fleet_load_inference_model, path.encode(), threads, ctypes.byref(handle))
    return DistModel(handle)
