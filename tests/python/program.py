# SPDX-License-Identifier: Apache-2.0
"""A model is compiled, trained in two processes, saved by the first and read by the second."""
import array
import os
import tempfile

import fleet
import fleet_program as program

TEXT = """program line micro_batch_size=4 loss=loss
var x fp32 input [4,2]
var labels int32 input [4]
var w fp32 parameter [2,2] trained initial=normal deviation=0.1
var logits fp32 activation [?]
var loss fp32 activation [?]
var lse fp32 activation [?]
forward linear x w - -> logits - ;
forward cross_entropy logits labels - -> loss lse ; ignore_index=-1
"""

fleet.init_parallel_env()
path = os.path.join(tempfile.gettempdir(), f"program-{os.environ['PADDLE_MASTER_ENDPOINT']}.model")
x = array.array("f", [1, 0, 0, 1, 2, 1, 1, 2])
labels = array.array("i", [0, 1, 0, 1])

model = program.to_static(TEXT, fetches=["logits"], seed=3)
first = last = model(x=x, labels=labels)
for step in range(20):
    last = model(x=x, labels=labels)
    for tensor in model.tensors:
        gradient = array.array("f", tensor.gradient.tobytes())
        fleet.all_reduce(gradient, fleet.ReduceOp.AVG)
        for i in range(2):
            for j in range(2):
                tensor.value[i, j] -= 0.5 * gradient[2 * i + j]
assert last < first, (first, last)
model.eval()
assert model(x=x, labels=labels) <= last
program.save_inference_model(model, path)
fleet.barrier()
model.predict()
logits, = model(x=x)
read = program.load_inference_model(path, threads=1)
again, = read(x=x)
assert again.tobytes() == logits.tobytes() and again.shape == (4, 2)
fleet.barrier()
if fleet.get_rank() == 0:
    os.remove(path)

for wrong, word in ((lambda: read(x=labels), "needed is 'f'"), (lambda: read(), "x is not fed"),
                    (lambda: read(x=x, y=x), "y is fed"), (read.train, "this mode"),
                    (lambda: program.to_static("hello"), "line 1"),
                    (lambda: program.load_inference_model(path + ".no"), "No such file"),
                    (lambda: program.save_inference_model(None, path), "DistModel")):
    try:
        wrong()
        raise AssertionError(word)
    except fleet.FleetError as error:
        assert word in str(error), error

# The operators of docs/programs.md: each compiles, runs, and has a gradient where it has one.
OPERATORS = """
x=[2,3,8] w=[8,4] b=[4] : linear x w b -> y pre ; activation=gelu
x=[2,3,8] w=[4,8] : linear x w - -> y - ; transposed
x=[2,3,8] w=[2,8,4] : matmul x w -> y ;
x=[2,3,24] : attention x -> y lse ; heads=2 kv_heads=2 causal
x=[6,8] w=[8] b=[8] : layer_norm x w b -> y mean rstd ; epsilon=0.00001
x=[6,8] w=[8] : rms_norm x w -> y rstd ; epsilon=0.00001
x=[6,8] w=[8] : add x w -> y ;
x=[6,8] : subtract x x -> y ;
x=[6,8] : scale x -> y ; scale=2
x=[6,8] : gelu x -> y ; exact
x=[6,8] : relu x -> y ;
x=[6,8] : silu x -> y ;
x=[6,8] w=[6,8] : swiglu x w -> y ;
x=[6,8] : softmax x -> y ;
x=[6,8] : dropout x -> y ; rate=0.5 stream=1
x=[2,3,16] : rope x -> y ; heads=2 head_dim=8 base=10000
x=[2,3,4,4] w=[5,3,3,3] : conv2d x w -> y ; stride=1x1 padding=1x1
x=[2,3,4,4] : max_pool2d x -> y indices ; kernel=2x2 stride=2x2
x=[2,3,4,4] : avg_pool2d x -> y ; kernel=2x2 stride=2x2
x=[2,3,4] : transpose x -> y ; order=0,2,1,3
x=[2,3,4] : reduce x -> y ; kept=1 mean
x=[2,3] : concat x x -> y ;
x=[2,6] : split x -> y:[2,2] rest:[2,4] ;
x=[2,6] : reshape x -> y:[3,4] ;
"""
KINDS = {"indices": "int32"}
for line in OPERATORS.strip().splitlines():
    shapes, operator = line.split(" : ")
    given = dict(one.split("=") for one in shapes.split())
    text = "program one micro_batch_size=2 loss=loss\n"
    text += f"var x fp32 input {given.pop('x')}\n"
    text += "".join(f"var {n} fp32 parameter {shape} trained initial=normal deviation=1\n"
                    for n, shape in given.items())
    outputs = operator.split(" -> ")[1].split(" ;")[0].split()
    for one in outputs:
        name, _, shape = one.partition(":")
        if name != "-":
            text += f"var {name} {KINDS.get(name, 'fp32')} activation {shape or '[?]'}\n"
        operator = operator.replace(one, name) if shape else operator
    text += f"var loss fp32 activation [?]\nforward {operator}\nforward reduce y -> loss ; mean\n"
    mode = program.TRAIN if given else program.EVAL
    one = program.to_static(text, fetches=["y"], mode=mode, seed=1)
    entry = program._Entry()
    assert program._c.fleet_program_feed(one._handle, mode, 0, program.ctypes.byref(entry))
    x = array.array("f", [0.25 + i % 7 for i in range(program._elements(entry.tensor))])
    one(x=x)
    assert all(any(array.array("f", t.gradient.tobytes())) for t in one.tensors), line
