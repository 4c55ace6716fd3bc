#!/usr/bin/env python3
"""PyTorch on the demo's model: the rival of bench_gpt_step.

Prints one JSON object: tokens per second of forward, backward, clip and AdamW on batches of random
tokens, best of several runs. Options: --layers --width --heads --context --batch --steps --threads
--runs --device --compile --bf16.
"""
import argparse
import json
import math
import time

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = self.attn(self.ln_1(x)).view(B, T, 3, self.heads, C // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, vocabulary, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02 / (math.sqrt(2 * layers) if "proj" in name or "down" in name else 1))

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("layers", 4), ("width", 128), ("heads", 4), ("context", 128), ("batch", 16),
                          ("steps", 20), ("threads", 2), ("vocabulary", 256), ("runs", 5)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    a = parser.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = GPT(a.vocabulary, a.context, a.layers, a.heads, a.width).to(a.device)
    run = torch.compile(model) if a.compile else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=a.device == "cuda" or None)
    data = torch.randint(0, a.vocabulary, (2, a.batch, a.context), device=a.device)

    def step():
        with torch.autocast(a.device, torch.bfloat16, enabled=a.bf16):
            loss = run(data[0], data[1])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def wait():
        if a.device == "cuda":
            torch.cuda.synchronize()

    for _ in range(5):
        step()
    wait()
    best = float("inf")
    for _ in range(a.runs):
        start = time.perf_counter()
        for _ in range(a.steps):
            step()
        wait()
        best = min(best, (time.perf_counter() - start) / a.steps)
    print(json.dumps({"rival": "pytorch " + torch.__version__, "compile": a.compile, "bf16": a.bf16,
                      "threads": a.threads, "device": a.device, "batch": a.batch, "step_ms": round(best * 1e3, 3),
                      "tokens_per_second": round(a.batch * a.context / best)}))


if __name__ == "__main__":
    main()
