# SPDX-License-Identifier: Apache-2.0
"""The examples of split, shard_layer and shard_optimizer of Paddle's pages, in two processes."""
import array

import fleet
import fleet_layer as layers
import fleet_mesh as dist
import fleet_optimizer as optimizers


def tensor(values, shape):
    return memoryview(array.array("f", values)).cast("B").cast("f", shape)


def refused(words, function, *arguments, **options):
    try:
        function(*arguments, **options)
    except fleet.FleetError as error:
        assert error.code == -22 and words in str(error), error
        return
    raise AssertionError(words)


fleet.init_parallel_env()
rank = fleet.get_rank()

# split: an embedding. Each rank has four of the eight rows, and both get the same output.
table = tensor(range(64), [8, 8])
data = memoryview(array.array("q", [0, 7, 3, 4])).cast("B").cast("q", [2, 2])
emb = layers.split(data, (8, 8), operation="embedding", num_partitions=2, weight_attr=table)
assert emb.weight.tolist() == table.tolist()[4 * rank:4 * rank + 4] and emb.bias is None
assert emb.out.tolist() == [[table.tolist()[i] for i in row] for row in [[0, 7], [3, 4]]]
assert emb.backward(tensor([1] * 32, [2, 2, 8])) is None
assert [row[0] for row in emb.weight_gradient.tolist()] == [[1, 0, 0, 1], [1, 0, 0, 1]][rank]

# split: a linear layer by rows, whose input is divided; by columns, gathered and not.
weight, bias = tensor([1, 2, 3, 4], [2, 2]), array.array("f", [10, 20])
rows = layers.split(array.array("f", [rank + 1]), (2, 2), operation="linear", axis=0,
                    num_partitions=2, weight_attr=weight, bias_attr=bias)
assert rows.out.tolist() == [1 + 2 * 3 + 10, 2 + 2 * 4 + 20]
assert rows.backward(array.array("f", [1, 1])).tolist() == [[3], [7]][rank]
x = tensor([1, 1, 2, 0], [2, 2])
columns = layers.split(x, (2, 2), operation="linear", axis=1, num_partitions=2, weight_attr=weight,
                       bias_attr=False)
assert columns.out.tolist() == [[4, 6], [2, 4]] and columns.bias is None
assert columns.backward(tensor([1, 10, 1, 0], [2, 2])).tolist() == [[21, 43], [1, 3]]
assert columns.weight_gradient.tolist() == [[[3], [1]], [[10], [10]]][rank]
part = layers.split(x, (2, 2), operation="linear", axis=1, num_partitions=2, gather_out=False,
                    weight_attr=weight)
assert part.out.tolist() == [[[4], [2]], [[6], [4]]][rank] and part.bias.tolist() == [0]
refused("axis is 1", layers.split, data, (8, 8), "embedding", 1, 2, weight_attr=table)
refused("axis is 2", layers.split, x, (2, 2), "linear", 2, 2, weight_attr=weight)
refused("partitions is 3", layers.split, x, (2, 2), "linear", 1, 3, weight_attr=weight)
refused("do not divide 3", layers.split, x, (2, 3), "linear", 1, 2, weight_attr=weight)
refused("operation is 'conv'", layers.split, x, (2, 2), "conv", 1, 2, weight_attr=weight)
refused("needed is the whole weight", layers.split, x, (2, 2), "linear", 1, 2)


# shard_layer
class Linear(layers.Layer):
    def __init__(self, values):
        self.weight = tensor(values, [2, 2])

    def forward(self, x):
        whole = dist.unshard_dtensor(self.weight).tolist()
        return [sum(x[i] * whole[i][j] for i in range(2)) for j in range(2)]


class MLP(layers.Layer):
    def __init__(self):
        self.fc1, self.fc2 = Linear([1, 2, 3, 4]), Linear([1, 0, 0, 2])

    def forward(self, x):
        return self.fc2(self.fc1(x))


seen = []


def shard_fn(layer_name, layer, process_mesh):
    seen.append(layer_name)
    if layer_name == "fc1":
        layer.weight = dist.shard_tensor(layer.weight, process_mesh, [dist.Shard(0)])


mesh = dist.ProcessMesh([0, 1], dim_names=["x"])
layer = layers.shard_layer(MLP(), mesh, shard_fn, lambda inputs, _: ([x + 1 for x in inputs[0]],),
                           lambda outputs, _: outputs + ["end"])
assert seen == ["", "fc1", "fc2"]
assert layer.fc1.weight.local.tolist() == [[[1, 2]], [[3, 4]]][rank]
assert layer.fc2.weight.local.tolist() == [[1, 0], [0, 2]]
assert [p.name for p in layer.parameters()] == ["fc1.weight", "fc2.weight"]
assert layer([0, 1]) == [7, 20, "end"]
tied = MLP()
tied.again, tied.fc2.weight = tied.fc1, tied.fc1.weight  # one parameter in three places
tied = layers.shard_layer(tied, mesh)
assert tied.fc2.weight is tied.fc1.weight and len(tied.parameters()) == 1
assert [name for name, _ in tied.named_sublayers()] == ["fc1", "fc2"]
refused("needed are a Layer", layers.shard_layer, layer, None)
refused("needed are a Layer", layers.shard_layer, [1], mesh)
refused("no parameters", layers.shard_layer, layers.Layer(), mesh)


# shard_optimizer: SGD with momentum. The gradients of the ranks add up to 1 everywhere.
def momentum(part):
    for i in range(part.count):
        part.state[0][i] = 0.5 * part.state[0][i] + part.gradient[i]
        part.value[i] -= part.state[0][i]


def optimizer_of(model):
    return optimizers.Optimizer(momentum, model.parameters(), states=1)


def train(of_state, calls=2, steps=1):
    """The weights after two updates, the optimizer, the model."""
    model = layers.shard_layer(MLP(), mesh, shard_fn)
    opt = optimizers.shard_optimizer(optimizer_of(model), of_state, steps)
    for call in range(calls):
        for parameter in model.parameters():
            parameter.grad = dist.dtensor_from_local(tensor([rank] * 4, [2, 2]), [2, 2], mesh,
                                                     [dist.Partial()])
        assert opt.step() == (call % steps == steps - 1)
        opt.clear_grad()
        assert model.fc1.weight.grad is None
    return [dist.unshard_dtensor(p).tolist() for p in model.parameters()], opt, model


after = [[[-1.5, -0.5], [0.5, 1.5]], [[-1.5, -2.5], [-2.5, -0.5]]]
for stage, kinds in ((None, [1, 0]), (optimizers.ShardingStage1(), [1, 1]),
                     (optimizers.ShardingStage2("x"), [1, 1]),
                     (optimizers.ShardingStage3(), [1, 1]),
                     (lambda name, parameter, placements: [dist.Replicate()], [0, 0])):
    found, opt, model = train(stage)
    assert found == after, found
    assert [opt.state_placements(i)[0].kind for i in range(2)] == kinds
    assert model.fc2.weight.placements[0].kind == isinstance(stage, optimizers.ShardingStage3)
assert train(None, calls=4, steps=2)[0] == after
model.fc2.weight.grad = model.fc1.weight.grad = None
assert opt.step() and [dist.unshard_dtensor(p).tolist() for p in model.parameters()] == after
refused("has no dimension", train, optimizers.ShardingStage1("y"))
refused("2 placements for the 1", train, lambda *_: [dist.Replicate()] * 2)
refused("is partial", train, lambda *_: [dist.Partial()])
refused("needed is an Optimizer", optimizers.shard_optimizer, None)
refused("on a mesh", optimizers.shard_optimizer, optimizer_of(MLP()))
model.fc1.weight.grad = dist.shard_tensor(tensor([1], [1]), mesh, [])
refused("another type or shape", opt.step)


def fails(part):
    raise ZeroDivisionError("a mistake of the trainer")


opt = optimizers.shard_optimizer(optimizers.Optimizer(fails, [model.fc2.weight]))
model.fc2.weight.grad = model.fc2.weight
try:
    opt.step()
    raise AssertionError("a mistake is not raised")
except ZeroDivisionError:
    pass
fleet.barrier()
