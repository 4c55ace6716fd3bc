#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plant bugs in the CUDA kernels, one at a time: do the tests on the emulator find each of them?

    make check-cuda-mutants                  # all
    tests/cuda_emulator/mutants.py norm      # those with this word in their line

A bug is compiled in a copy of its source; the working tree does not change. It needs the tests of
`make emulator-race`. LDLIBS are the libraries to link with, as the Makefile has them.
"""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNELS = "cuda/kernels/"
BUILT = "build/emulator/race/"
ARCHIVES = ["build/release/" + name for name in
            ("libruntime.a", "libfakes.a", "libagent.a", "libfleet.a")]
COMPILE = ["g++", "-x", "c++", "-std=c++17", "-O1", "-g", "-Wno-unknown-pragmas",
           "-ffp-contract=off", "-fsanitize=thread"]
LIMIT_S = 900

GENERAL = "test_kernels test_kernels_sizes test_gradients test_parts"
STATISTICS = GENERAL + " test_shared_statistics"
ATTENTION = "test_gradients test_kernels"

# What is wrong, the source, the right text, the wrong text, the tests.
BUGS = [
    ("column_sum: no barrier before the additions", "column_sum.cu",
     "        __syncthreads();\n        for (int at = 0; warp == 0",
     "        for (int at = 0; warp == 0", GENERAL),
    ("column_sum: no barrier behind the additions", "column_sum.cu",
     "            sum += part[at][lane];\n        __syncthreads();",
     "            sum += part[at][lane];", GENERAL),
    ("column_sum: the last of an odd number of rows", "column_sum.cu",
     "for (int64_t row = chunk * CHUNK; row < last; row++)",
     "for (int64_t row = chunk * CHUNK; row < last - (s.rows % 2); row++)", GENERAL),
    ("column_sum: one column too many", "column_sum.cu",
     "    if (warp == 0 && column < s.columns)\n        store",
     "    if (warp == 0 && column <= s.columns)\n        store", GENERAL),
    ("column_sum: the last of an odd run, eight columns at a time", "column_sum.cu",
     "            if (done + f < count)\n#pragma unroll",
     "            if (done + f < count - (count & 1))\n#pragma unroll", GENERAL),
    ("batch_norm: scale and shift swapped", "batch_norm.cu",
     "* rstd * scale + shift;", "* rstd * shift + scale;", STATISTICS),
    ("batch_norm: the variance of all, not of a sample", "batch_norm.cu",
     "squares / (float)(count > 1 ? count - 1 : 1)", "squares / (float)count", STATISTICS),
    ("batch_norm: the last of an odd number of gradients", "batch_norm.cu",
     "b.d_x && i < count; i += THREADS)", "b.d_x && i < count - (count & 1); i += THREADS)",
     STATISTICS),
    ("batch_norm: sums of the gradient swapped", "batch_norm.cu",
     "- shift / n - x * (scale / n)", "- scale / n - x * (shift / n)", STATISTICS),
    ("batch_norm: another number of elements of all ranks", "batch_norm.cu",
     "*rstd = 1.0f / sqrtf(squares / n + b.epsilon);\n    if",
     "*rstd = 1.0f / sqrtf(squares / (n - 1) + b.epsilon);\n    if", STATISTICS),
    ("attention: no barrier before new tiles", "attention.cu",
     "        __syncthreads(); /* the last tiles have been read */\n", "", ATTENTION),
    ("attention: no barrier behind the tiles", "attention.cu",
     "a.heads + a.kv_heads + group), key, a.context);\n        __syncthreads();",
     "a.heads + a.kv_heads + group), key, a.context);", ATTENTION),
    ("attention: no barrier before the weighted sum", "attention.cu",
     "        softmax_rows<D>(a, &run, scores, tile, query, key);\n        __syncthreads();",
     "        softmax_rows<D>(a, &run, scores, tile, query, key);", ATTENTION),
    ("attention: the causal mask is one off", "attention.cu",
     "(!a.causal || key <= query)", "(!a.causal || key < query || query == 0)", ATTENTION),
    ("attention: the last of an odd number of keys", "attention.cu",
     "return key < a.context && query", "return key < a.context - (a.context & 1) && query",
     ATTENTION),
    ("attention: the scale of the whole width", "attention.cu",
     "1.0f / sqrtf((float)a.head_dim)", "1.0f / sqrtf((float)(a.head_dim * a.heads))", ATTENTION),
    ("attention: the last of an odd number of columns", "attention.cu",
     "x.at[l] = i % D + l < p.columns ?", "x.at[l] = i % D + l < p.columns - 1 ?", ATTENTION),
    ("attention: another key head", "attention.cu",
     "int64_t group = head / (a.heads / a.kv_heads);", "int64_t group = head % a.kv_heads;",
     ATTENTION),
    ("attention: the gradient without its scale", "attention.cu",
     "seen ? p * (d_scores[r][c] - dot) * scale : 0.0f;",
     "seen ? p * (d_scores[r][c] - dot) : 0.0f;", ATTENTION),
    ("embedding: no barrier behind the runs", "embedding.cu",
     "    runs[threadIdx.x] = sum;\n    __syncthreads();", "    runs[threadIdx.x] = sum;", GENERAL),
    ("embedding: no barrier before the rows", "embedding.cu",
     "        s.start[rows] = before;\n    }\n    __syncthreads();",
     "        s.start[rows] = before;\n    }", GENERAL),
    ("embedding: no barrier before the least", "embedding.cu",
     "        least[0] = ~0ull;\n    __syncthreads();", "        least[0] = ~0ull;", GENERAL),
    ("embedding: a token counts itself", "embedding.cu",
     "rank += s.placed[at] < i;", "rank += s.placed[at] <= i;", GENERAL),
    ("embedding: the position of another sample", "embedding.cu",
     "load(e.position, e.table_type, i % e.context * e.columns + j)",
     "load(e.position, e.table_type, i / e.context * e.columns + j)", GENERAL),
    ("embedding: the last row of the table", "embedding.cu",
     "return row >= 0 && row < e.rows ? (int)row : -1;",
     "return row >= 0 && row < e.rows - 1 ? (int)row : -1;", GENERAL),
    ("product: no barrier before the tiles", "product.cuh",
     "        __syncthreads(); /* the last round has been read */\n", "", GENERAL),
    ("product: no barrier behind the tiles", "product.cuh",
     "        __syncthreads();\n        int depth", "        int depth", GENERAL),
    ("product: the last of an odd depth", "product.cuh",
     "product.k - k < PRODUCT_DEPTH ? (int)(product.k - k)",
     "product.k - k < PRODUCT_DEPTH ? (int)(product.k - k) / 2 * 2", GENERAL),
    ("product: one column too many", "product.cuh",
     "column + x + 16 * c < product.n)\n                product.put",
     "column + x + 16 * c <= product.n)\n                product.put", GENERAL),
    ("gemm: a chunk forgets those before it", "gemm.cu",
     "return g.accumulates ? static_cast", "return g.accumulates && g.batch > 1 ? static_cast",
     "test_classifier"),
    ("gemm: a chunk goes on with another sum", "gemm.cu",
     "(g.c)[(number * m + i) * n + j] : 0.0f", "(g.c)[(number * m + i) * n + (j ^ 1) % n] : 0.0f",
     "test_classifier"),
    ("layer_norm: no barrier in the sums of rows", "norm.cu",
     "    __syncthreads();\n#pragma unroll\n"
     "    for (int r = 0; r < TOGETHER; r++)\n        sum[r] =",
     "#pragma unroll\n    for (int r = 0; r < TOGETHER; r++)\n        sum[r] =", GENERAL),
    ("layer_norm: one place for two rounds", "norm.cu",
     "row_sums(sum, dot, partial[done / TOGETHER % 2]);", "row_sums(sum, dot, partial[0]);",
     GENERAL),
    ("layer_norm: no barrier before the columns", "norm.cu",
     "    partial[1][warp][lane] = shift;\n    __syncthreads();",
     "    partial[1][warp][lane] = shift;", GENERAL),
    ("layer_norm: scale's gradient is shift's", "norm.cu",
     "        n.d_scale[column] = scale;", "        n.d_scale[column] = shift;", GENERAL),
    ("layer_norm: one row too many", "norm.cu",
     "if (n.d_x && mine && done + r < rows)", "if (n.d_x && mine && done + r <= rows)", GENERAL),
    ("round: halves of a random word swapped", "round.cu",
     "rounded(x.at[2 * p], w.at[p] & 0xffff)", "rounded(x.at[2 * p], w.at[p] >> 16)",
     "test_rounding"),
    ("round: one element too many", "round.cu", "if (at + l < r.count)",
     "if (at + l <= r.count)", "test_rounding"),
    ("round: the last element", "round.cu", "if (at + l < r.count)",
     "if (at + l < r.count - 1)", "test_rounding"),
    ("round: eight elements where seven are left", "round.cu", "if (at + EIGHT <= r.count)",
     "if (at + EIGHT <= r.count + 1)", "test_rounding"),
    ("round: the same numbers in each step", "round.cu", "(uint64_t)r.scalars->step",
     "(uint64_t)0", "test_rounding"),
    ("dropout: one element too many", "dropout.cu", "if (at + l >= 0 && l < left)",
     "if (at + l >= 0 && l <= left)", GENERAL),
]


def compile_with(bug, folder):
    """The sources that have the bug, as objects in the folder."""
    _, name, right, wrong, _ = bug
    text = (ROOT / KERNELS / name).read_text()
    if right not in text:
        sys.exit(f"{name} has no longer: {right}")
    (folder / KERNELS).mkdir(parents=True)
    (folder / KERNELS / name).write_text(text.replace(right, wrong, 1))
    users = [name] if name.endswith(".cu") else [
        path.name for path in sorted((ROOT / KERNELS).glob("*.cu")) if name in path.read_text()]
    objects = []
    for user in users:
        source = folder / KERNELS / user
        if not source.exists():
            source.write_text((ROOT / KERNELS / user).read_text())
        objects.append(str(folder / (user + ".o")))
        subprocess.run([*COMPILE, f"-I{folder}", "-I.", "-isystem", "tests/cuda_emulator/include",
                        "-c", "-o", objects[-1], str(source)], check=True)
    return objects


def first_message(test, objects, folder, libraries):
    """What the test says of the bug; None: it passes."""
    program = folder / test
    subprocess.run(["g++", "-o", str(program), f"{BUILT}tests/numerics/{test}.o", *objects,
                    BUILT + "libkernels.a", "-Wl,--start-group", *ARCHIVES, "-Wl,--end-group",
                    "-lcmocka", *libraries], check=True)
    run = subprocess.run([str(program)], capture_output=True, text=True, errors="replace",
                         timeout=LIMIT_S, env={**os.environ, "FLEET_TEST_VARIANT": "race"})
    if run.returncode == 0:
        return None
    lines = [line for line in (run.stdout + run.stderr).splitlines() if "ERROR: " in line]
    return (lines or [f"exit {run.returncode}"])[0][:140]


def look_for(bug, libraries):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        objects = compile_with(bug, folder)
        for test in bug[4].split():
            message = first_message(test, objects, folder, libraries)
            if message:
                print(f"found   {bug[0]}\n        {test}: {message}", flush=True)
                return True
    print(f"MISSED  {bug[0]}", flush=True)
    return False


def main():
    os.chdir(ROOT)
    libraries = os.environ.get("LDLIBS", "").split()
    bugs = [bug for bug in BUGS if not sys.argv[1:] or any(w in bug[0] for w in sys.argv[1:])]
    missed = [bug[0] for bug in bugs if not look_for(bug, libraries)]
    print(f"{len(bugs)} bugs, {len(missed)} missed")
    sys.exit(1 if missed else 0)


main()
