"""PyTorch's operations for the cases of bench_gpu (tests/bench/gpu), timed the same way.

case(name, type, sizes) makes sets of operands, larger than the device's cache together, and returns
functions to run; measure() gives the median microseconds of one. CASES has the names; what is not
there has no operation in PyTorch.
"""
import statistics

import torch
from torch.nn import functional as F

SETS_MAX, SAMPLES_MIN, SAMPLES_MAX, SAMPLE_US, LAUNCHES_MAX = 8, 5, 101, 200.0, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


class Sizes:
    def __init__(self, layers=12, width=768, heads=12, context=1024, vocabulary=50304, batch=16,
                 copy_bytes=1 << 32):
        self.layers, self.width, self.heads, self.context = layers, width, heads, context
        self.vocabulary, self.batch, self.copy_bytes = vocabulary, batch, copy_bytes
        self.tokens = batch * context

    def parameters(self):
        w, v = self.width, self.vocabulary
        layer = [w, w, 3 * w * w, 3 * w, w * w, w, w, w, 4 * w * w, 4 * w, 4 * w * w, w]
        return [v * w, self.context * w] + layer * self.layers + [w, w]


def random(*shape, type=torch.float32):
    return torch.randn(*shape, device=DEVICE, dtype=type)


def ids(s, *shape):
    return torch.randint(0, s.vocabulary, shape, device=DEVICE)


# ---- elements ------------------------------------------------------------------------------------

def copy(s, t):
    source = random(s.copy_bytes // 4)
    to = torch.empty_like(source)
    return lambda: to.copy_(source)


def add_residual(s, t):
    a, b = random(s.tokens, s.width, type=t), random(s.tokens, s.width, type=t)
    return lambda: a + b


def add_bias(s, t):
    x, bias = random(s.tokens, 4 * s.width, type=t), random(4 * s.width, type=t)
    return lambda: x + bias


def gelu(s, t):
    x = random(s.tokens, 4 * s.width, type=t)
    return lambda: F.gelu(x, approximate="tanh")


def gelu_gradient(s, t):
    d, x = random(s.tokens, 4 * s.width, type=t), random(s.tokens, 4 * s.width, type=t)
    return lambda: torch.ops.aten.gelu_backward(d, x, approximate="tanh")


def swiglu(s, t):
    a, b = random(s.tokens, 4 * s.width, type=t), random(s.tokens, 4 * s.width, type=t)
    return lambda: F.silu(a) * b


def dropout(s, t):
    x = random(s.tokens, s.width, type=t)
    return lambda: F.dropout(x, 0.1, True)


def cast_narrow(s, t):
    x = random(s.tokens, 4 * s.width)
    return lambda: x.to(torch.bfloat16)


def cast_widen(s, t):
    x = random(s.tokens, 4 * s.width, type=torch.bfloat16)
    return lambda: x.to(torch.float32)


# ---- rows ----------------------------------------------------------------------------------------

def layer_norm(s, t):
    x, scale, shift = random(s.tokens, s.width), random(s.width), random(s.width)
    return lambda: F.layer_norm(x, (s.width,), scale, shift).to(t)


def layer_norm_gradient(s, t):
    x, scale, shift = random(s.tokens, s.width), random(s.width), random(s.width)
    d = random(s.tokens, s.width, type=t)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [s.width], scale, shift, 1e-5)
    return lambda: torch.ops.aten.native_layer_norm_backward(
        d.float(), x, [s.width], mean, rstd, scale, shift, [True, True, True])


def bias_gradient(s, t):
    x = random(s.tokens, 4 * s.width, type=t)
    return lambda: x.sum(0, dtype=torch.float32)


def embedding(s, t):
    i, table, position = ids(s, s.batch, s.context), random(s.vocabulary, s.width), random(
        s.context, s.width)
    return lambda: F.embedding(i, table) + position


def embedding_gradient(s, t):
    i, d = ids(s, s.batch, s.context), random(s.batch, s.context, s.width, type=t)
    return lambda: (torch.ops.aten.embedding_dense_backward(d, i, s.vocabulary, -1, False),
                    d.sum(0))


def cross_entropy(s, t):
    logits, targets = random(s.tokens, s.vocabulary, type=t), ids(s, s.tokens)
    return lambda: F.cross_entropy(logits, targets)


def cross_entropy_gradient(s, t):
    logits, targets = random(s.tokens, s.vocabulary, type=t).requires_grad_(), ids(s, s.tokens)
    loss = F.cross_entropy(logits, targets)
    return lambda: torch.autograd.grad(loss, logits, retain_graph=True)


# ---- products ------------------------------------------------------------------------------------

LAYERS = {"qkv": (1, 3), "projection": (1, 1), "up": (1, 4), "down": (4, 1), "classifier": (1, 0)}


def product(layer, what):
    def make(s, t):
        width_in, width_out = (n * s.width if n else s.vocabulary for n in LAYERS[layer])
        turned = layer == "classifier"
        x, d = random(s.tokens, width_in, type=t), random(s.tokens, width_out, type=t)
        w = random(width_out, width_in, type=t).t()
        if not turned:
            w = w.contiguous()
        bias = random(width_out, type=t)
        if what == "by_x":
            return lambda: d @ w.t()
        if what == "by_w":
            return lambda: d.t() @ x if turned else x.t() @ d
        if turned:
            return lambda: x @ w
        if layer == "up":
            return lambda: F.gelu(torch.addmm(bias, x, w), approximate="tanh")
        return lambda: torch.addmm(bias, x, w)
    return make


def heads_of(s, t):
    shape = (s.batch, s.heads, s.context, s.width // s.heads)
    return [random(*shape, type=t) for _ in range(3)]


def attention(s, t):
    q, k, v = heads_of(s, t)
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention_gradient(s, t):
    q, k, v = (x.requires_grad_() for x in heads_of(s, t))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    d = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (q, k, v), d, retain_graph=True)


# ---- the update ----------------------------------------------------------------------------------

def adamw(s, t):
    parameters = [torch.nn.Parameter(random(n)) for n in s.parameters()]
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=True)
    return optimizer.step


def grad_norm(s, t):
    gradients = [random(n) for n in s.parameters()]
    return lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def unscale(s, t):
    gradients = [random(n) for n in s.parameters()]
    found = torch.zeros(1, device=DEVICE)
    scale = torch.full((1,), 0.999999, device=DEVICE)
    return lambda: torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, scale)


def accumulate(s, t):
    n = sum(s.parameters())
    a, b = random(n), random(n)
    return lambda: a.add_(b)


def dgc_select(s, t):
    """Momentum correction as in the paper's code, then the largest of its result."""
    n = s.vocabulary * s.width
    g, u, v = random(n), random(n), random(n)
    return lambda: torch.topk((v + (u * 0.9 + g)).abs_(), max(1, n // 1000), sorted=False)


CASES = {
    "copy": copy, "add.residual": add_residual, "add.bias": add_bias, "gelu": gelu,
    "gelu.gradient": gelu_gradient, "swiglu": swiglu, "dropout": dropout,
    "cast.narrow": cast_narrow, "cast.widen": cast_widen, "layer_norm": layer_norm,
    "layer_norm.gradient": layer_norm_gradient, "bias.gradient": bias_gradient,
    "embedding": embedding, "embedding.gradient": embedding_gradient,
    "cross_entropy": cross_entropy, "cross_entropy.gradient": cross_entropy_gradient,
    "attention": attention, "attention.gradient": attention_gradient, "adamw": adamw,
    "grad_norm": grad_norm, "check_finite.unscale": unscale, "accumulate": accumulate,
    "dgc.select": dgc_select,
}
for _layer in LAYERS:
    for _what in ("forward", "by_x", "by_w"):
        CASES[f"gemm.{_layer}.{_what}"] = product(_layer, _what)


# ---- the clock -----------------------------------------------------------------------------------

def sets_of(make):
    """Functions over different operands, together four times the cache."""
    if DEVICE == "cpu":
        return [make()]
    cache = getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 64 << 20)
    before = torch.cuda.memory_allocated()
    sets = [make()]
    each = max(1, torch.cuda.memory_allocated() - before)
    while len(sets) < SETS_MAX and each * len(sets) < 4 * cache:
        sets.append(make())
    return sets


def measure(make, seconds):
    """Median microseconds of one call of what make() returns."""
    if DEVICE == "cpu":
        import time
        run = make()
        start = time.perf_counter()
        run()
        return (time.perf_counter() - start) * 1e6
    sets, turn = sets_of(make), 0
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample(count):
        nonlocal turn
        first.record()
        for _ in range(count):
            sets[turn % len(sets)]()
            turn += 1
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e3 / count

    sample(1)
    us = sample(len(sets))
    launches = min(LAUNCHES_MAX, int(SAMPLE_US / us) + 1)
    samples = []
    while len(samples) < SAMPLES_MAX and (len(samples) < SAMPLES_MIN or
                                          sum(samples) * launches < seconds * 1e6):
        samples.append(sample(launches))
    return statistics.median(samples)


def run(name, type_name, sizes, seconds):
    """Median microseconds of PyTorch's operation, or None if there is none."""
    if name not in CASES:
        return None
    torch.manual_seed(1)
    try:
        with torch.set_grad_enabled("gradient" in name):
            return measure(lambda: CASES[name](sizes, TYPES[type_name]), seconds)
    finally:
        if DEVICE == "cuda":
            torch.cuda.empty_cache()


def ceiling_product(type_name, size, seconds):
    """TFLOP/s of a square product."""
    def make():
        a, b = (random(size, size, type=TYPES[type_name]) for _ in range(2))
        return lambda: a @ b
    return 2.0 * size ** 3 / measure(make, seconds) * 1e-6
