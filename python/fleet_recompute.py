# SPDX-License-Identifier: Apache-2.0
"""paddle.distributed.fleet.utils.recompute by libfleet.so (fleet_recompute.h).

A part of a model has the form of Paddle's PyLayer:

    class Square:
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return array.array("f", [x[0] * x[0]])

        @staticmethod
        def backward(ctx, dy):
            x, = ctx.saved_tensor()
            return array.array("f", [2 * x[0] * dy[0]])

    run = recompute(Square, x)          # run.out is the output; nothing else is kept but x
    dx = run.backward(dy)               # forward() runs again, then backward()
"""
import ctypes
import random

from fleet import FleetError, _c, _call, _copy, _Error, _Tensor, _tensor
from fleet_mesh import _is_tensor, _new, _view

_TENSORS = ctypes.POINTER(_Tensor)
_FORWARD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _TENSORS, _TENSORS, ctypes.c_bool,
                            ctypes.POINTER(_Error))
_BACKWARD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, _TENSORS, _TENSORS,
                             ctypes.POINTER(_Error))


class _Part(ctypes.Structure):
    _fields_ = [("forward", _FORWARD), ("backward", _BACKWARD), ("context", ctypes.c_void_p),
                ("random_state", ctypes.c_void_p), ("random_bytes", ctypes.c_size_t)]


class Context:
    """Keeps what backward() needs, in the second run only."""

    def __init__(self, keep):
        self._keep, self._saved = keep, ()

    def save_for_backward(self, *tensors):
        self._saved = tensors if self._keep else ()

    def saved_tensor(self):
        return self._saved


def _several(value):
    return list(value) if isinstance(value, (tuple, list)) else [value]


def _structures(tensors):
    """The structures of tensors, and what keeps their memory alive. None has no data."""
    pairs = [_tensor(t) if t is not None else (_Tensor(), None) for t in tensors]
    return (_Tensor * max(1, len(pairs)))(*[pair[0] for pair in pairs]), pairs


def _fill(tensor, value, what):
    """Copy a result into a tensor of the library."""
    given = _tensor(value)[0]
    wanted = list(tensor.shape[:tensor.dimensions])
    if given.type != tensor.type or list(given.shape[:given.dimensions]) != wanted:
        raise FleetError(-22, f"{what} has shape {given.shape[:given.dimensions]} or its type is "
                              f"another one, needed is the shape {wanted}")
    ctypes.memmove(tensor.data, given.data, memoryview(value).nbytes)


class _Owner:
    """Frees what the library keeps; the views of its memory hold it."""

    def __init__(self, handle):
        self.handle = handle

    def __del__(self):
        _c.fleet_recompute_free(self.handle)


class Recomputed:
    """What recompute() returns. out: the output, or the list of them."""

    def __init__(self, function, arguments, out, rng):
        self._function, self._arguments, self._rng, self._problem = function, arguments, rng, None
        self._places = [i for i, a in enumerate(arguments) if _is_tensor(a)]
        tensors = [arguments[i] for i in self._places]
        self._kinds = [(memoryview(t).format.lstrip("@=<"), memoryview(t).shape) for t in tensors]
        self.out = _copy(tensors[0]) if out is None and tensors else out
        self._outputs = _several(self.out)
        self._part = _Part(_FORWARD(self._forward), _BACKWARD(self._backward))
        self._random = rng.getstate() if rng else None
        inputs, self._memory = _structures(tensors)
        outputs, _outputs = _structures(self._outputs)
        handle = ctypes.c_void_p()
        self._run(_c.fleet_recompute_forward, ctypes.byref(self._part), inputs, len(tensors),
                  outputs, len(self._outputs), ctypes.byref(handle))
        self._ctx = None
        self._memory = _Owner(handle)  # with copies of the tensors, which are forgotten here
        for place in self._places:
            arguments[place] = None

    def _run(self, function, *arguments):
        """Call the library; an exception of the part is raised as it was."""
        try:
            _call(function, *arguments)
        except FleetError as error:
            problem, self._problem = self._problem, None
            raise (problem or error) from None

    def _catch(self, error, action):
        try:
            action()
            return 0
        except BaseException as problem:  # C cannot carry it
            self._problem = problem
            error[0].text, error[0].code = str(problem).encode("utf-8", "replace")[:511], -5
            return -5

    def _forward(self, _context, inputs, outputs, keep, error):
        def action():
            arguments = list(self._arguments)
            for i, place in enumerate(self._places):
                arguments[place] = _view(inputs[i], self._memory)
            self._ctx = Context(keep)
            results = _several(self._function.forward(self._ctx, *arguments))
            if len(results) != len(self._outputs):
                raise FleetError(-22, f"recompute: forward() returned {len(results)} tensors, out "
                                      f"has {len(self._outputs)}")
            for i, result in enumerate(results):
                _fill(outputs[i], result, f"recompute: output {i}")
        return self._catch(error, action)

    def _backward(self, _context, output_gradients, input_gradients, error):
        def action():
            given = [_view(output_gradients[i], self._given) for i in range(len(self._outputs))]
            results = _several(self._function.backward(self._ctx, *given))
            if len(results) != len(self._places):
                raise FleetError(-22, f"recompute: backward() returned {len(results)} gradients "
                                      f"for {len(self._places)} tensors")
            for i, result in enumerate(results):
                if input_gradients[i].data:
                    _fill(input_gradients[i], result, f"recompute: gradient {i}")
        return self._catch(error, action)

    def backward(self, *output_gradients):
        """The gradient of the tensor, or the list of them; None for tensors of integers. Once."""
        if self._part is None or len(output_gradients) != len(self._outputs):
            raise FleetError(-22, "recompute: backward() was called before" if not self._part else
                             f"recompute: {len(output_gradients)} gradients for "
                             f"{len(self._outputs)} outputs")
        gradients = [_new(*kind) if kind[0] in "efd" else None for kind in self._kinds]
        given, self._given = _structures(output_gradients)
        wanted, _wanted = _structures(gradients)
        now = self._rng.getstate() if self._rng else None
        try:
            if self._rng:
                self._rng.setstate(self._random)
            self._run(_c.fleet_recompute_backward, self._memory.handle, given, wanted)
        finally:
            self._part = self._ctx = self._memory = self._given = None
            if self._rng:
                self._rng.setstate(now)
        return gradients[0] if len(gradients) == 1 else gradients


def recompute(function, *args, out=None, preserve_rng_state=True, use_reentrant=True, rng=random):
    """Run function.forward(ctx, *args) without keeping what it saves; see Recomputed.

    Arguments without a buffer are handed on as they are. out: the tensors that outputs are written
    to; None: a new one like the first tensor. preserve_rng_state: both runs see the same numbers of
    rng, which has getstate() and setstate(). use_reentrant has no effect."""
    if not callable(getattr(function, "forward", None)) or not callable(
            getattr(function, "backward", None)):
        raise FleetError(-22, f"recompute: {function!r} lacks forward() or backward()")
    if any(isinstance(a, (tuple, list)) and any(map(_is_tensor, a)) for a in args):
        raise FleetError(-22, "recompute: a tensor lies in a list: give each as an argument")
    return Recomputed(function, list(args), out, rng if preserve_rng_state else None)
