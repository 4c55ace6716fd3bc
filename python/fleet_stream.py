# SPDX-License-Identifier: Apache-2.0
"""paddle.distributed.stream by libfleet.so; a program uses it as fleet.stream.

Tensors lie in the host's memory, and the calling thread is their compute stream. With
use_calc_stream=True an operation therefore returns when it is complete, and sync_op=False is refused
as in Paddle. The output comes first in every argument list.
"""
import fleet as _fleet
from fleet import FleetError, ReduceOp


def _check(name, sync_op, use_calc_stream):
    if use_calc_stream and not sync_op:
        raise FleetError(-22, f"stream.{name}: use_calc_stream=True needs sync_op=True")


def _is_list(value):
    return isinstance(value, (list, tuple))


def _whole(value):
    """A tensor, or a list of tensors as one buffer; what copies it back into the list."""
    return _fleet._join(value) if _is_list(value) else (value, None)


def _one_kind(name, out, given):
    if _is_list(out) != _is_list(given):
        raise FleetError(-22, f"stream.{name}: one of input and output is a list, the other a tensor")


def all_reduce(tensor, op=ReduceOp.SUM, group=None, sync_op=True, use_calc_stream=False):
    _check("all_reduce", sync_op, use_calc_stream)
    return _fleet.all_reduce(tensor, op, group, sync_op)


def reduce(tensor, dst=0, op=ReduceOp.SUM, group=None, sync_op=True, use_calc_stream=False):
    _check("reduce", sync_op, use_calc_stream)
    return _fleet.reduce(tensor, dst, op, group, sync_op)


def broadcast(tensor, src, group=None, sync_op=True, use_calc_stream=False):
    _check("broadcast", sync_op, use_calc_stream)
    return _fleet.broadcast(tensor, src, group, sync_op)


def send(tensor, dst=0, group=None, sync_op=True, use_calc_stream=False):
    _check("send", sync_op, use_calc_stream)
    return _fleet.send(tensor, dst, group, sync_op)


def recv(tensor, src=0, group=None, sync_op=True, use_calc_stream=False):
    _check("recv", sync_op, use_calc_stream)
    return _fleet.recv(tensor, src, group, sync_op)


def all_gather(tensor_or_tensor_list, tensor, group=None, sync_op=True, use_calc_stream=False):
    """Into one tensor of ranks × the size, or into a list; an empty list is filled."""
    _check("all_gather", sync_op, use_calc_stream)
    out = tensor_or_tensor_list
    if _is_list(out) and not out:
        out.extend(_fleet._copy(tensor) for _ in range(_fleet.get_world_size(group)))
    whole, back = _whole(out)
    return _fleet._run(_fleet._c.fleet_all_gather, [whole, tensor], [], group, sync_op, back)


def reduce_scatter(tensor, tensor_or_tensor_list, op=ReduceOp.SUM, group=None, sync_op=True,
                   use_calc_stream=False):
    _check("reduce_scatter", sync_op, use_calc_stream)
    whole, _ = _whole(tensor_or_tensor_list)
    return _fleet._run(_fleet._c.fleet_reduce_scatter, [tensor, whole], [op], group, sync_op)


def scatter(tensor, tensor_or_tensor_list=None, src=0, group=None, sync_op=True,
            use_calc_stream=False):
    _check("scatter", sync_op, use_calc_stream)
    whole = None
    if _fleet.get_rank() == src:
        if tensor_or_tensor_list is None:
            raise FleetError(-22, f"stream.scatter: rank {src} has no tensors to scatter")
        whole, _ = _whole(tensor_or_tensor_list)
    return _fleet._run(_fleet._c.fleet_scatter, [tensor, whole], [src], group, sync_op)


def alltoall(out_tensor_or_tensor_list, in_tensor_or_tensor_list, group=None, sync_op=True,
             use_calc_stream=False):
    _check("alltoall", sync_op, use_calc_stream)
    out, given = out_tensor_or_tensor_list, in_tensor_or_tensor_list
    _one_kind("alltoall", out, given)
    if _is_list(out) and not out:
        out.extend(_fleet._copy(t) for t in given)
    receive, back = _whole(out)
    send_whole, _ = _whole(given)
    return _fleet._run(_fleet._c.fleet_all_to_all, [receive, send_whole], [], group, sync_op, back)


def alltoall_single(out_tensor, in_tensor, out_split_sizes=None, in_split_sizes=None, group=None,
                    sync_op=True, use_calc_stream=False):
    _check("alltoall_single", sync_op, use_calc_stream)
    return _fleet.alltoall_single(in_tensor, out_tensor, in_split_sizes, out_split_sizes, group,
                                  sync_op)
