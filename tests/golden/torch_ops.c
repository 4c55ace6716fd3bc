/* SPDX-License-Identifier: Apache-2.0 */

/*
 * torch/ops: every operator against PyTorch's recordings, at every level that the machine has,
 * forward and backward. Tolerance: ten times the distance of PyTorch's own fp32 result from double,
 * and at least 4e-6 of the largest magnitude (another order of summation, another exp); operators
 * without arithmetic must agree exactly.
 */
#include "tests/golden/torch_ops.h"

#include "tests/golden/readers.h"

/* ---- operators ------------------------------------------------------------------------------- */

static void run_linear(struct ops_case *c)
{
    bool bias = holds(c, "grad_bias");
    struct bench y, d;

    bench_init(&y, OP_LINEAR);
    y.rig.op.attributes.transposed = true;
    give(&y, c, "input");
    give(&y, c, "weight");
    if (bias)
        give(&y, c, "bias");
    want(&y, c, "output");
    rig_run(&y.rig, c->level);
    check(c, "output", y.rig.out[0]);

    bench_init(&d, OP_LINEAR_GRAD);
    d.rig.op.attributes.transposed = true;
    give(&d, c, "grad_output");
    give(&d, c, "input");
    give(&d, c, "weight");
    want(&d, c, "input");
    want(&d, c, "weight");
    if (bias)
        want(&d, c, "bias");
    rig_run(&d.rig, c->level);
    check(c, "grad_input", d.rig.out[0]);
    check(c, "grad_weight", d.rig.out[1]);
    if (bias)
        check(c, "grad_bias", d.rig.out[2]);
    bench_release(&y);
    bench_release(&d);
}

static void run_norm(struct ops_case *c, bool centred)
{
    int64_t rows = rows_of(tensor(c, "input"));
    struct bench y, d;

    bench_init(&y, centred ? OP_LAYER_NORM : OP_RMS_NORM);
    y.rig.op.attributes.epsilon = number(c, "eps");
    give(&y, c, "input");
    give(&y, c, "weight");
    if (centred)
        give(&y, c, "bias");
    want(&y, c, "output");
    want_rows(&y, rows);
    if (centred)
        want_rows(&y, rows);
    rig_run(&y.rig, c->level);
    check(c, "output", y.rig.out[0]);

    bench_init(&d, centred ? OP_LAYER_NORM_GRAD : OP_RMS_NORM_GRAD);
    give(&d, c, "grad_output");
    give(&d, c, "input");
    give(&d, c, "weight");
    give_result(&d, &y.rig, 1);
    if (centred)
        give_result(&d, &y.rig, 2);
    want(&d, c, "input");
    want(&d, c, "weight");
    if (centred)
        want(&d, c, "bias");
    rig_run(&d.rig, c->level);
    check(c, "grad_input", d.rig.out[0]);
    check(c, "grad_weight", d.rig.out[1]);
    if (centred)
        check(c, "grad_bias", d.rig.out[2]);
    bench_release(&y);
    bench_release(&d);
}

static void run_layernorm(struct ops_case *c)
{
    run_norm(c, true);
}

static void run_rmsnorm(struct ops_case *c)
{
    run_norm(c, false);
}

static void run_elementwise(struct ops_case *c, enum op_kind kind, enum op_kind grad)
{
    struct bench y, d;

    bench_init(&y, kind);
    give(&y, c, "input");
    want(&y, c, "output");
    rig_run(&y.rig, c->level);
    check(c, "output", y.rig.out[0]);
    bench_init(&d, grad);
    give(&d, c, "grad_output");
    give(&d, c, "input");
    want(&d, c, "input");
    rig_run(&d.rig, c->level);
    check(c, "grad_input", d.rig.out[0]);
    bench_release(&y);
    bench_release(&d);
}

static void run_gelu(struct ops_case *c)
{
    run_elementwise(c, OP_GELU, OP_GELU_GRAD);
}

static void run_relu(struct ops_case *c)
{
    c->exact = true;
    run_elementwise(c, OP_RELU, OP_RELU_GRAD);
}

static void run_residual_add(struct ops_case *c)
{
    struct bench y;

    c->exact = true;
    bench_init(&y, OP_ADD);
    give(&y, c, "input");
    give(&y, c, "residual");
    want(&y, c, "output");
    rig_run(&y.rig, c->level);
    check(c, "output", y.rig.out[0]);
    bench_release(&y);
}

static void run_cross_entropy(struct ops_case *c)
{
    const struct safetensors_tensor *logits = tensor(c, "input");
    const char *reduction = golden_string(params_of(c), "reduction");
    double counting = (double)logits->shape[0] - number(c, "ignored");
    bool sum = strcmp(reduction, "sum") == 0;
    int64_t one = 1, lse[2] = {logits->shape[0], 2};
    float loss, d_loss = (float)(number(c, "grad_scale") * (sum ? counting : 1));
    struct bench y, d;

    if (counting == 0 && !sum)
        golden_skip("no row counts: the mean is NaN in PyTorch, 0 here");
    bench_init(&y, OP_CROSS_ENTROPY);
    y.rig.op.attributes.ignore_index = (int64_t)number(c, "ignore_index");
    give(&y, c, "input");
    give_integers(&y, c, "target");
    want_rows(&y, 1);
    rig_out(&y.rig, PROGRAM_FP32, 2, lse);
    rig_run(&y.rig, c->level);
    loss = ((float *)y.rig.out[0])[0] * (sum ? (float)counting : 1.0f);
    check(c, "output", &loss);

    bench_init(&d, OP_CROSS_ENTROPY_GRAD);
    d.rig.op.attributes.ignore_index = y.rig.op.attributes.ignore_index;
    give(&d, c, "input");
    give_integers(&d, c, "target");
    give_result(&d, &y.rig, 1);
    rig_in(&d.rig, PROGRAM_FP32, 1, &one, &d_loss);
    want(&d, c, "input");
    rig_run(&d.rig, c->level);
    check(c, "grad_input", d.rig.out[0]);
    d.rig.in_place[0] = 1; /* the gradient may be written over the logits */
    rig_run(&d.rig, c->level);
    check(c, "grad_input", d.rig.out[0]);
    bench_release(&y);
    bench_release(&d);
}

static void run_embedding(struct ops_case *c)
{
    const struct safetensors_tensor *ids = tensor(c, "ids"), *weight = tensor(c, "weight");
    int64_t shape[2] = {rows_of(ids), ids->ndim ? ids->shape[ids->ndim - 1] : 1};
    int64_t out[3] = {shape[0], shape[1], weight->shape[1]};
    struct bench y, d;

    c->exact = true;
    bench_init(&y, OP_EMBEDDING);
    rig_in(&y.rig, PROGRAM_INT32, 2, shape, own(&y, integers(c, "ids")));
    give(&y, c, "weight");
    rig_out(&y.rig, PROGRAM_FP32, 3, out);
    rig_run(&y.rig, c->level);
    check(c, "output", y.rig.out[0]);

    c->exact = false;
    bench_init(&d, OP_EMBEDDING_GRAD);
    rig_in(&d.rig, PROGRAM_INT32, 2, shape, own(&d, integers(c, "ids")));
    rig_in(&d.rig, PROGRAM_FP32, 3, out, own(&d, floats(c, "grad_output")));
    want(&d, c, "weight");
    rig_run(&d.rig, c->level);
    check(c, "grad_weight", d.rig.out[0]);
    bench_release(&y);
    bench_release(&d);
}

/* [B,H,T,D] to heads first … of the packed [B,T,width·D], or back. */
static void repack(const int64_t shape[4], float *apart, float *packed, int64_t first,
                   int64_t width, bool into_packed)
{
    for (int64_t b = 0; b < shape[0]; b++)
        for (int64_t h = 0; h < shape[1]; h++)
            for (int64_t t = 0; t < shape[2]; t++) {
                float *one = apart + ((b * shape[1] + h) * shape[2] + t) * shape[3];
                float *other = packed + ((b * shape[2] + t) * width + first + h) * shape[3];
                memcpy(into_packed ? other : one, into_packed ? one : other,
                       (size_t)shape[3] * sizeof(float));
            }
}

static float *packed_qkv(const struct ops_case *c, const char *const names[3])
{
    const int64_t *shape = tensor(c, names[0])->shape;
    float *packed = malloc((size_t)safetensors_elements(tensor(c, names[0])) * 3 * sizeof(float));

    for (int i = 0; i < 3; i++) {
        float *part = floats(c, names[i]);
        repack(shape, part, packed, i * shape[1], 3 * shape[1], true);
        free(part);
    }
    return packed;
}

static void check_unpacked(const struct ops_case *c, const char *name, float *packed, int64_t first,
                           int64_t width)
{
    float *part = floats(c, name);

    repack(tensor(c, name)->shape, part, packed, first, width, false);
    check(c, name, part);
    free(part);
}

static void run_attention(struct ops_case *c)
{
    static const char *const names[3] = {"q", "k", "v"};
    static const char *const d_names[3] = {"grad_q", "grad_k", "grad_v"};
    const int64_t *s = tensor(c, "q")->shape, heads = s[1];
    int64_t qkv[3] = {s[0], s[2], 3 * heads * s[3]}, out[3] = {s[0], s[2], heads * s[3]};
    float *d_out = floats(c, "grad_output"), *d_packed = malloc((size_t)(s[0] * s[2] * out[2]) * 4);
    struct bench y, d;

    if (fabs(number(c, "scale") - 1 / sqrt((double)s[3])) > 1e-9)
        golden_skip("ours scales by 1/sqrt(D)");
    bench_init(&y, OP_ATTENTION);
    y.rig.op.attributes.heads = y.rig.op.attributes.kv_heads = (int)heads;
    y.rig.op.attributes.causal = true;
    rig_in(&y.rig, PROGRAM_FP32, 3, qkv, own(&y, packed_qkv(c, names)));
    rig_out(&y.rig, PROGRAM_FP32, 3, out);
    rig_out(&y.rig, PROGRAM_FP32, 3, s);
    rig_run(&y.rig, c->level);
    check_unpacked(c, "output", y.rig.out[0], 0, heads);

    bench_init(&d, OP_ATTENTION_GRAD);
    d.rig.op.attributes = y.rig.op.attributes;
    repack(s, d_out, d_packed, 0, heads, true);
    rig_in(&d.rig, PROGRAM_FP32, 3, out, own(&d, d_packed));
    rig_in(&d.rig, PROGRAM_FP32, 3, qkv, own(&d, packed_qkv(c, names)));
    give_result(&d, &y.rig, 0);
    give_result(&d, &y.rig, 1);
    rig_out(&d.rig, PROGRAM_FP32, 3, qkv);
    rig_run(&d.rig, c->level);
    for (int i = 0; i < 3; i++)
        check_unpacked(c, d_names[i], d.rig.out[0], i * heads, 3 * heads);
    free(d_out);
    bench_release(&y);
    bench_release(&d);
}

/* [outer][rows][columns] as [outer][columns][rows], on the heap. */
static float *turned(const float *x, int64_t outer, int64_t rows, int64_t columns)
{
    float *out = malloc((size_t)(outer * rows * columns) * sizeof(*out) + 1);

    golden_check(out);
    for (int64_t i = 0; i < outer * rows * columns; i++) {
        int64_t o = i / (rows * columns), r = i / columns % rows, c = i % columns;
        out[(o * columns + c) * rows + r] = x[i];
    }
    return out;
}

/* Ours is over the last dimension: another one is turned there and back, as a transpose would. */
static void run_softmax(struct ops_case *c)
{
    const struct safetensors_tensor *input = tensor(c, "input");
    int dim = (int)number(c, "dim");
    int64_t outer = 1, inner = 1, shape[2];
    struct bench y, d;

    dim += dim < 0 ? input->ndim : 0;
    golden_check(dim >= 0 && dim < input->ndim);
    for (int i = 0; i < input->ndim; i++)
        *(i < dim ? &outer : &inner) *= i == dim ? 1 : input->shape[i];
    shape[0] = outer * inner;
    shape[1] = input->shape[dim];
    bench_init(&y, OP_SOFTMAX);
    rig_in(&y.rig, PROGRAM_FP32, 2, shape,
           own(&y, turned(own(&y, floats(c, "input")), outer, shape[1], inner)));
    rig_out(&y.rig, PROGRAM_FP32, 2, shape);
    rig_run(&y.rig, c->level);
    check(c, "output", own(&y, turned(y.rig.out[0], outer, inner, shape[1])));
    bench_init(&d, OP_SOFTMAX_GRAD);
    rig_in(&d.rig, PROGRAM_FP32, 2, shape,
           own(&d, turned(own(&d, floats(c, "grad_output")), outer, shape[1], inner)));
    give_result(&d, &y.rig, 0);
    rig_out(&d.rig, PROGRAM_FP32, 2, shape);
    rig_run(&d.rig, c->level);
    check(c, "grad_input", own(&d, turned(d.rig.out[0], outer, inner, shape[1])));
    bench_release(&y);
    bench_release(&d);
}

/* ---- the index ------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*run)(struct ops_case *c);
    const char *params[8]; /* all that we know */
} readers[] = {
    {"linear", run_linear, {"bias"}},
    {"layernorm", run_layernorm, {"eps"}},
    {"rmsnorm", run_rmsnorm, {"eps"}},
    {"gelu_tanh", run_gelu, {NULL}},
    {"relu", run_relu, {NULL}},
    {"cross_entropy", run_cross_entropy, {"ignore_index", "reduction", "grad_scale", "ignored"}},
    {"embedding", run_embedding, {NULL}},
    {"causal_attention", run_attention, {"scale"}},
    {"residual_add", run_residual_add, {NULL}},
    {"softmax", run_softmax, {"dim"}},
    {"conv2d", golden_run_conv2d, {"stride", "padding", "kernel", "bias"}},
    {"batchnorm2d", golden_run_batchnorm, {"momentum", "eps", "training"}},
    {"maxpool2d", golden_run_maxpool, {"kernel", "stride", "padding", "ceil_mode"}},
    {"avgpool2d",
     golden_run_avgpool,
     {"kernel", "stride", "padding", "count_include_pad", "ceil_mode"}},
    {"adaptive_avgpool2d", golden_run_adaptive, {"output_size"}},
};

static void run_case(void *context)
{
    struct ops_case *c = context;
    size_t i = 0;

    while (i < FLEET_COUNT(readers) && strcmp(readers[i].name, c->op) != 0)
        i++;
    if (i == FLEET_COUNT(readers))
        golden_skip("operator %s has no counterpart here", c->op);
    golden_known_keys(params_of(c), readers[i].params);
    for (int level = 0; level <= (int)backend_level_detect(); level++) {
        c->level = (enum fleet_isa)level;
        c->exact = false;
        readers[i].run(c);
    }
}

static void read_operator(const cJSON *op)
{
    struct safetensors_file file;
    const cJSON *json;

    golden_tensors(golden_beside(golden_string(op, "file")), &file);
    cJSON_ArrayForEach(json, golden_array(op, "cases"))
    {
        struct ops_case c = {.op = op->string, .json = json, .file = &file};
        c.number = golden_int(json, "case");
        golden_case(run_case, &c, "%s case %d", op->string, c.number);
    }
    safetensors_release(&file);
}

void golden_torch_ops(const struct golden_file *file)
{
    cJSON *index = golden_json(file->path);
    const cJSON *op;

    cJSON_ArrayForEach(op, golden_at(index, "ops")) read_operator(op);
    cJSON_Delete(index);
}
