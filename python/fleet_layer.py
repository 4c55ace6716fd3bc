# SPDX-License-Identifier: Apache-2.0
"""Layers of paddle.distributed by libfleet.so (fleet_mesh.h): shard_layer, split.

A tensor is an object with a writable, contiguous buffer of its shape, as in fleet_mesh. The trainer
computes: forward() of a Layer is its own, with the local parts of the parameters.
"""
import ctypes

from fleet import FleetError, _c, _call, _handle, _Tensor, _tensor, get_world_size
from fleet_mesh import DistTensor, ProcessMesh, _is_tensor, _new, _view
from fleet_strategy import MODEL, degree, group as group_of_axis


class _Param(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", _Tensor), ("sharded", ctypes.c_void_p)]


class _Options(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("rows", ctypes.c_int64), ("columns", ctypes.c_int64),
                ("axis", ctypes.c_int), ("partitions", ctypes.c_int), ("gather_out", ctypes.c_bool),
                ("has_bias", ctypes.c_bool)]


for _name in ("weight", "weight_gradient", "bias", "bias_gradient"):
    getattr(_c, f"fleet_split_{_name}").restype = ctypes.POINTER(_Tensor)


# ---- shard_layer() -------------------------------------------------------------------------------


def _is_parameter(value):
    return isinstance(value, DistTensor) or _is_tensor(value)


class Layer:
    """A model or a part of one. Attributes that are tensors are its parameters, attributes that are
    layers its parts; a name with _ in front is neither."""
    _before = _after = None

    def _attributes(self):
        return [(name, value) for name, value in vars(self).items() if name[0] != "_"]

    def named_sublayers(self, prefix="", include_self=False, layers_set=None):
        """Each part once; layers_set: those that are left out."""
        layers_set = set() if layers_set is None else layers_set
        layers_set.add(self)
        if include_self:
            yield prefix, self
        for name, value in self._attributes():
            if isinstance(value, Layer) and value not in layers_set:
                yield from value.named_sublayers(prefix + ("." if prefix else "") + name, True,
                                                 layers_set)

    def named_parameters(self):
        """Each parameter once, with the name of its first place."""
        found = {}
        for place, part in self.named_sublayers(include_self=True):
            for name, value in part._attributes():
                if _is_parameter(value):
                    found.setdefault(id(value), (f"{place}.{name}" if place else name, value))
        return list(found.values())

    def parameters(self):
        return [value for _, value in self.named_parameters()]

    def __call__(self, *inputs):
        if self._before:
            inputs = self._before(inputs)
            inputs = inputs if isinstance(inputs, (tuple, list)) else (inputs,)
        outputs = self.forward(*inputs)
        return self._after(outputs) if self._after else outputs


def shard_layer(layer, process_mesh, shard_fn=None, input_fn=None, output_fn=None):
    """shard_fn(name, part, mesh) may replace the parameters of each part by shard_tensor(); those
    that it leaves alone are replicated. input_fn(inputs, mesh) and output_fn(outputs, mesh) change
    what goes into the layer and comes out of it."""
    if not isinstance(layer, Layer) or not isinstance(process_mesh, ProcessMesh):
        raise FleetError(-22, f"shard_layer: layer is {layer!r}, process_mesh {process_mesh!r}; "
                              "needed are a Layer and a ProcessMesh")
    parts = list(layer.named_sublayers(include_self=True))
    if shard_fn:
        for name, part in parts:
            shard_fn(name, part, process_mesh)
    _replicate_the_rest(layer, process_mesh)
    if input_fn:
        layer._before = lambda inputs: input_fn(inputs, process_mesh)
    if output_fn:
        layer._after = lambda outputs: output_fn(outputs, process_mesh)
    return layer


def _replicate_the_rest(layer, mesh):
    """Make each plain parameter a DistTensor, and give each parameter its name."""
    named = layer.named_parameters()
    items, keep, new = (_Param * max(1, len(named)))(), [], {}
    for item, (name, value) in zip(items, named):
        item.name = name.encode()
        if isinstance(value, DistTensor):
            item.sharded = value._handle
        else:
            item.value, memory = _tensor(value)
            keep.append(memory)
    try:
        _call(_c.fleet_model_shard, items, len(named), mesh._handle, None, None)
    finally:  # those made before an error, too
        for item, (_, value) in zip(items, named):
            if not isinstance(value, DistTensor) and item.sharded:
                new[id(value)] = DistTensor(ctypes.c_void_p(item.sharded), mesh)
        for _, part in layer.named_sublayers(include_self=True):
            for attribute, value in part._attributes():
                setattr(part, attribute, new.get(id(value), value))
    for name, value in layer.named_parameters():
        value.name = name


# ---- split() -------------------------------------------------------------------------------------


class _Owner:
    """Frees a divided layer; the layer and the views of its memory hold it."""

    def __init__(self, handle):
        self.handle = handle

    def __del__(self):
        _c.fleet_split_free(self.handle)


class SplitLayer:
    """What split() returns. weight, bias and their gradients are views of this rank's parts, `out`
    is the output of the last call."""

    def __init__(self, options, weight, bias, group):
        handle = ctypes.c_void_p()
        (whole, _keep), pair = _tensor(weight), _tensor(bias) if bias is not None else None
        _call(_c.fleet_split_new, ctypes.byref(options), ctypes.byref(whole),
              ctypes.byref(pair[0]) if pair else None, _handle(group), ctypes.byref(handle))
        self._options, self._handle, self._owner = options, handle, _Owner(handle)
        for name in ("weight", "weight_gradient", "bias", "bias_gradient"):
            tensor = getattr(_c, f"fleet_split_{name}")(handle)[0]
            has = options.has_bias or name.startswith("weight")
            setattr(self, name, _view(tensor, self._owner) if has else None)

    def _table(self, value, columns):
        """The tensor as one row for each sample: [n, columns], or [n] numbers for columns 0."""
        tensor, keep = _tensor(value)
        count = 1
        for length in tensor.shape[:tensor.dimensions - (1 if columns else 0)]:
            count *= length
        last = tensor.shape[tensor.dimensions - 1] if tensor.dimensions else 0
        tensor.shape = (ctypes.c_int64 * 8)(count, last if columns else 0)
        tensor.dimensions = 2 if columns else 1
        return tensor, keep

    def __call__(self, x):
        """The output. x must stay as it is until backward()."""
        o = self._options
        view, self._x = memoryview(x), x
        divided = o.kind == 0 and o.axis == 1 and not o.gather_out
        width = o.columns // o.partitions if divided else o.columns
        self.out = _new("f", list(view.shape if o.kind else view.shape[:-1]) + [width])
        (given, _keep), (out, _out) = self._table(x, o.kind == 0), self._table(self.out, True)
        _call(_c.fleet_split_forward, self._handle, ctypes.byref(given), ctypes.byref(out))
        return self.out

    def backward(self, out_gradient):
        """The gradient of x, None for an embedding. The gradients of weight and bias grow."""
        is_linear = self._options.kind == 0
        x, _keep = self._table(self._x, is_linear)
        dy, _dy = self._table(out_gradient, True)
        result = _new("f", list(memoryview(self._x).shape)) if is_linear else None
        dx, _dx = self._table(result, True) if is_linear else (None, None)
        _call(_c.fleet_split_backward, self._handle, ctypes.byref(x), ctypes.byref(dy),
              ctypes.byref(dx) if is_linear else None)
        return result


def _model_group():
    """The ranks that share a model: those of fleet_strategy.init(); without it all."""
    ranks = degree(MODEL)
    if ranks > 1:
        return group_of_axis(MODEL)
    if ranks == 1 and get_world_size() > 1:
        raise FleetError(-22, "split: the degree of the model axis is 1: nothing to divide")
    return None


def split(x, size, operation, axis=0, num_partitions=1, gather_out=True, weight_attr=None,
          bias_attr=None, name=None, group=None):
    """A linear layer or an embedding whose weight is divided over the ranks of the model axis, and
    its output of x: split(…).out. weight_attr: the whole weight, the same on all ranks. bias_attr:
    the whole bias; None: zeros; False: no bias. name has no effect."""
    if operation not in ("linear", "embedding"):
        raise FleetError(-22, f"split: operation is {operation!r}, allowed: 'linear', 'embedding'")
    if weight_attr is None:
        raise FleetError(-22, "split: weight_attr is None, needed is the whole weight")
    rows, columns = size
    bias = None if isinstance(bias_attr, bool) else bias_attr
    has_bias = bias_attr is not False and (operation == "linear" or bias is not None)
    options = _Options(operation == "embedding", rows, columns, axis, num_partitions, gather_out,
                       has_bias)
    layer = SplitLayer(options, weight_attr, bias, group or _model_group())
    layer(x)
    return layer
