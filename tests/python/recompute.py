# SPDX-License-Identifier: Apache-2.0
"""The example of fleet.utils.recompute of Paddle's pages: a block with dropout, with and without
recomputation, has the same output and the same gradients, bit for bit."""
import array
import random

import fleet
from fleet_recompute import recompute


def floats(*values):
    return array.array("f", values)


class Block:
    """y = dropout(w x) for each element; it counts its runs."""
    runs = 0

    @staticmethod
    def forward(ctx, x, w, rate):
        Block.runs += 1
        mask = floats(*[random.random() >= rate for _ in range(len(x))])
        ctx.save_for_backward(x, w, mask)
        Block.last = ctx
        return floats(*[a * b * m for a, b, m in zip(x, w, mask)])

    @staticmethod
    def backward(ctx, dy):
        x, w, mask = ctx.saved_tensor()
        return [floats(*[d * b * m for d, b, m in zip(dy, w, mask)]),
                floats(*[d * a * m for d, a, m in zip(dy, x, mask)])]


class Plain:
    """A context that keeps everything: no recomputation."""

    def save_for_backward(self, *tensors):
        self.tensors = tensors

    def saved_tensor(self):
        return self.tensors


def step(recomputes):
    random.seed(7)
    x, w, dy = floats(*range(1, 9)), floats(*range(2, 10)), floats(*[0.5] * 8)
    if not recomputes:
        ctx = Plain()
        out = Block.forward(ctx, x, w, 0.5)
        after = random.random()
        return out, after, Block.backward(ctx, dy)
    run = recompute(Block, x, w, 0.5)
    assert Block.last.saved_tensor() == ()  # the first run keeps nothing
    x[0] = 99  # the library has a copy
    after = random.random()
    gradients = run.backward(dy)
    assert random.getstate() == run_state(after)
    return run.out, after, gradients


def run_state(after):
    """The state behind the number `after`: backward() has left the generator alone."""
    random.seed(7)
    while random.random() != after:
        pass
    return random.getstate()


plain, again = step(False), step(True)
assert Block.runs == 3
assert plain[0].tobytes() == again[0].tobytes() and plain[1] == again[1]
assert [g.tobytes() for g in plain[2]] == [g.tobytes() for g in again[2]]


# Several outputs, a tensor of integers, tensors of two dimensions.
class Two:
    def forward(self, ctx, x, which):
        ctx.save_for_backward(x)
        return x, floats(*[x[i, which[0]] for i in range(2)])

    def backward(self, ctx, dx, dy):
        dx = memoryview(bytearray(dx)).cast("f", [2, 2])
        for i in range(2):
            dx[i, 1] += dy[i]
        return dx, None


x = memoryview(floats(1, 2, 3, 4)).cast("B").cast("f", [2, 2])
like = memoryview(bytearray(16)).cast("f", [2, 2])
two = recompute(Two(), x, array.array("i", [1]), out=[like, floats(0, 0)],
                preserve_rng_state=False)
assert two.out[0].tolist() == [[1, 2], [3, 4]] and list(two.out[1]) == [2, 4]
dx, none = two.backward(x, floats(10, 20))
assert dx.tolist() == [[1, 12], [3, 24]] and none is None


class Fails(Block):
    @staticmethod
    def forward(ctx, *tensors):
        raise ZeroDivisionError("a mistake of the trainer")


class Wrong(Block):
    @staticmethod
    def forward(ctx, x):
        return floats(1, 2, 3)


class Keeps(Block):
    @staticmethod
    def forward(ctx, x):
        return x


one = floats(1)
keeps = recompute(Keeps, array.array("i", [1]))
for action, words in ((lambda: recompute(Fails, one), "a mistake of the trainer"),
                      (lambda: recompute(Wrong, one), "output 0 has shape [3]"),
                      (lambda: recompute(print, one), "lacks forward()"),
                      (lambda: recompute(Block, [one]), "in a list"),
                      (lambda: recompute(Block, 5, out=one), "0 inputs, allowed: 1 to 64"),
                      (lambda: two.backward(x, one), "called before"),
                      (lambda: keeps.backward(one, one), "2 gradients for 1 outputs"),
                      (lambda: keeps.backward(one), "no input needs a gradient")):
    try:
        action()
        raise AssertionError(words)
    except (fleet.FleetError, ZeroDivisionError) as error:
        assert words in str(error), error
