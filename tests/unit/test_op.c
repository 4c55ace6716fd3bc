/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Shapes that operators give and shapes that they refuse, each case a program of one operator in
 * the text form of print.h; then costs.
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/program/program.h"
#include "tests/unit/op_fixture.h"

static void expect_shapes(const struct shape_case *c, const struct program *program)
{
    char name[64], wanted[64], found[64];
    const char *at = c->out;
    int used;

    for (; sscanf(at, " %63s %63s%n", name, wanted, &used) == 2; at += used) {
        int var = program_find_var(program, name), length = 0;

        assert_int_not_equal(var, PROGRAM_NONE);
        length = snprintf(found, sizeof(found), "[");
        for (int i = 0; i < program->vars[var].ndim; i++)
            length += snprintf(found + length, sizeof(found) - (size_t)length, "%s%" PRId64,
                               i ? "," : "", program->vars[var].shape[i]);
        (void)snprintf(found + length, sizeof(found) - (size_t)length, "]");
        if (strcmp(found, wanted) != 0)
            fail_msg("%s: %s has shape %s, expected %s", c->op, name, found, wanted);
    }
}

static void check_case(const struct shape_case *c, bool fits)
{
    struct program program;
    struct fleet_error err = {0};
    int rc;

    read_case(c, &program);
    rc = op_infer(&program, &program.ops[0], &err);
    if (fits && rc < 0)
        fail_msg("%s with %s: %s", c->op, c->vars, err.text);
    if (!fits && rc == 0)
        fail_msg("%s with %s: accepted, expected \"%s\"", c->op, c->vars, c->out);
    if (!fits && !strstr(err.text, c->out))
        fail_msg("%s with %s: \"%s\", expected \"%s\"", c->op, c->vars, err.text, c->out);
    if (fits)
        expect_shapes(c, &program);
    program_release(&program);
}

static const struct shape_case good[] = {
    {"ids:int32 [2,3] t [7,4] y [?]", "embedding ids t -> y ;", "y [2,3,4]"},
    {"ids:int32 [2,3] t [7,4] p [5,4] y [?]", "embedding ids t p -> y ;", "y [2,3,4]"},
    {"ids:int32 [2,3] d [2,3,4] dt [7,4] dp [5,4]", "embedding_grad ids d -> dt dp ;",
     "dt [7,4] dp [5,4]"},
    {"x [2,3,4] s [4] b [4] y [?] m [?] r [?]", "layer_norm x s b -> y m r ; epsilon=1e-5",
     "y [2,3,4] m [6] r [6]"},
    {"d [6,4] x [6,4] s [4] m [6] r [6] dx [?] ds [?] db [?]",
     "layer_norm_grad d x s m r -> dx ds db ;", "dx [6,4] ds [4] db [4]"},
    {"x [2,3,4] s [4] y:bf16 [?] r [?]", "rms_norm x s -> y r ;", "y [2,3,4] r [6]"},
    {"d [6,4] x [6,4] s [4] r [6] dx [?] ds [?]", "rms_norm_grad d x s r -> dx ds ;",
     "dx [6,4] ds [4]"},
    {"x [2,3,4] w [4,5] b [5] y [?] pre [?]", "linear x w b -> y pre ; activation=gelu",
     "y [2,3,5] pre [2,3,5]"},
    {"x [2,3,4] w [5,4] y [?]", "linear x w - -> y - ; transposed", "y [2,3,5]"},
    {"d [6,5] x [6,4] w [4,5] dx [?] dw [?] db [?]", "linear_grad d x w - -> dx dw db ;",
     "dx [6,4] dw [4,5] db [5]"},
    {"d [6,5] x [6,4] w [4,5] p [6,5] dw [?]", "linear_grad d x w p -> - dw - ; activation=relu",
     "dw [4,5]"},
    {"q [2,8,24] y [?] l [?]", "attention q -> y l ; heads=4 kv_heads=4 causal",
     "y [2,8,8] l [2,4,8]"},
    {"q [2,8,32] y [?] l [?]", "attention q -> y l ; heads=4 kv_heads=2", "y [2,8,16] l [2,4,8]"},
    {"d [2,8,16] q [2,8,32] y [2,8,16] l [2,4,8] dq [?]",
     "attention_grad d q y l -> dq ; heads=4 kv_heads=2", "dq [2,8,32]"},
    {"x [2,3,7] t:int32 [2,3] loss [?] l [?]", "cross_entropy x t -> loss l ;", "loss [1] l [6,2]"},
    {"x [4,7] t:int32 [4] l [4,2] d [?]", "cross_entropy_grad x t l - -> d ;", "d [4,7]"},
    {"x [2,3,7] t:int32 [2,3] s [?]", "cross_entropy_sums x t -> s ; divided first_word=7",
     "s [6,3]"},
    {"x [4,7] t:int32 [4] s [8,3] loss [?] l [?]", "cross_entropy x t s -> loss l ; divided",
     "loss [1] l [4,2]"},
    {"x [2,3,5] w [7,5] t:int32 [2,3] loss [?] dx [?] dw [?]",
     "linear_cross_entropy x w t - -> loss dx dw ; transposed", "loss [1] dx [2,3,5] dw [7,5]"},
    {"x:bf16 [4,5] w:bf16 [5,7] t:int32 [4] d [1] loss [?]",
     "linear_cross_entropy x w t d -> loss ;", "loss [1]"},
    {"a [2,3] b [2,3] y [?]", "add a b -> y ;", "y [2,3]"},
    {"a [2,3] b [3] y [?]", "add a b -> y ;", "y [2,3]"},
    {"a [2,3] b:bf16 [2,3] y [?]", "add a b -> y ;", "y [2,3]"},
    {"d [2,4,3] y [?]", "add_grad_b d -> y ;", "y [3]"},
    {"x [2,3] y [?]", "scale x -> y ; scale=0.5", "y [2,3]"},
    {"x [2,3] y [?]", "gelu x -> y ;", "y [2,3]"},
    {"d [2,3] x [2,3] y [?]", "gelu_grad d x -> y ;", "y [2,3]"},
    {"x [2,3] y [?]", "relu x -> y ;", "y [2,3]"},
    {"d [2,3] x [2,3] y [?]", "relu_grad d x -> y ;", "y [2,3]"},
    {"x [2,3] y [?]", "silu x -> y ;", "y [2,3]"},
    {"d [2,3] x [2,3] y [?]", "silu_grad d x -> y ;", "y [2,3]"},
    {"g [2,3] u [2,3] y [?]", "swiglu g u -> y ;", "y [2,3]"},
    {"d [2,3] g [2,3] u [2,3] dg [?] du [?]", "swiglu_grad d g u -> dg du ;", "dg [2,3] du [2,3]"},
    {"x [2,8,24] y [?]", "rope x -> y ; heads=5 head_dim=4 base=10000", "y [2,8,24]"},
    {"x [2,3] y [?]", "dropout x -> y ; rate=0.1 stream=3", "y [2,3]"},
    {"x [2,3] y [?]", "softmax x -> y ;", "y [2,3]"},
    {"d [2,3] x [2,3] y [?]", "softmax_grad d x -> y ;", "y [2,3]"},
    {"x [2,3] y:fp16 [?]", "cast x -> y ;", "y [2,3]"},
    {"x [2,3,4,4] s [3] b [3] m [3] v [3] r [2,3,4,4] y [?] a [?] c [?] d [?] e [?]",
     "batch_norm x s b m v r -> y a c d e ; activation=relu", "y [2,3,4,4]"},
    {"x [2,6] y [3,4]", "reshape x -> y ;", "y [3,4]"},
    {"a [2,3,4] b [2,4,5] y [?]", "matmul a b -> y ;", "y [2,3,5]"},
    {"a [4,3] b [5,4] y [?]", "matmul a b -> y ; transposed_a transposed", "y [3,5]"},
    {"x [2,3,5,7] y [?]", "transpose x -> y ; order=0,2,1,3", "y [2,5,3,7]"},
    {"x [2,3] y [?]", "transpose x -> y ; order=1,0,0,0", "y [3,2]"},
    {"x [2,3,5] y [?]", "reduce x -> y ; kept=1", "y [2]"},
    {"x [2,3,5] y [?]", "reduce x -> y ; mean", "y [1]"},
    {"d [2,3] y [2,3,5,7]", "reduce_grad d -> y ; kept=2", "y [2,3,5,7]"},
    {"a [2,3,4] b [2,3,1] c [2,3,7] y [?]", "concat a b c -> y ;", "y [2,3,12]"},
    {"x [2,12] a [2,4] b [2,8]", "split x -> a b ;", "a [2,4] b [2,8]"},
    {"x [2,3,32,32] w [8,3,3,3] y [?]", "conv2d x w -> y ; stride=2x2 padding=1x1",
     "y [2,8,16,16]"},
    {"d [2,8,30,30] x [2,3,32,32] w [8,3,3,3] dx [?] dw [?]",
     "conv2d_grad d x w -> dx dw ; stride=1x1", "dx [2,3,32,32] dw [8,3,3,3]"},
    {"x [2,8,4,4] s [8] b [8] m [8] v [8] y [?] bm [?] br [?] sm [?] sv [?]",
     "batch_norm x s b m v -> y bm br sm sv ; epsilon=1e-5 momentum=0.1",
     "y [2,8,4,4] bm [8] br [8] sm [8] sv [8]"},
    {"d [2,8,4,4] x [2,8,4,4] s [8] m [8] r [8] dx [?] ds [?] db [?]",
     "batch_norm_grad d x s m r -> dx ds db ;", "dx [2,8,4,4] ds [8] db [8]"},
    {"x [2,8,4,4] s [8] b [8] m [8] v [8] t [17] y [?] bm [?] br [?] sm [?] sv [?]",
     "batch_norm x s b m v - t -> y bm br sm sv ; epsilon=1e-5", "y [2,8,4,4] sv [8]"},
    {"d [2,8,4,4] x [2,8,4,4] s [8] m [8] r [8] t [17] o [17] dx [?] ds [?] db [?]",
     "batch_norm_grad d x s m r t o -> dx ds db ;", "dx [2,8,4,4] ds [8] db [8]"},
    {"x:bf16 [2,8,4,4] m [8] o [?]", "batch_norm_sums x m -> o ; training", "o [17]"},
    {"d [2,8] x [2,8] m [8] r [8] o [?]", "batch_norm_grad_sums d x m r -> o ;", "o [17]"},
    {"x [2,3,4,4] w [8,3,1,1] y [?]", "conv2d x w -> y ; stride=1x1 padding=1x2", "y [2,8,6,8]"},
    {"x [2,3,9,9] y [?] i:int32 [?]", "max_pool2d x -> y i ; kernel=3x3 stride=2x2 padding=1x1",
     "y [2,3,5,5] i [2,3,5,5]"},
    {"d [2,3,5,5] x [2,3,9,9] i:int32 [2,3,5,5] y [?]",
     "max_pool2d_grad d x i -> y ; kernel=3x3 stride=2x2 padding=1x1", "y [2,3,9,9]"},
    {"x [2,3,8,8] y [?]", "avg_pool2d x -> y ; kernel=2x2 stride=2x2", "y [2,3,4,4]"},
    {"d [2,3,4,4] x [2,3,8,8] y [?]", "avg_pool2d_grad d x -> y ; kernel=2x2 stride=2x2",
     "y [2,3,8,8]"},
    {"x [2,3,5,6] y [?]", "avg_pool2d x -> y ; kernel=2x2 stride=2x2 round_up", "y [2,3,3,3]"},
    {"x [2,3,5,5] y [?]", "avg_pool2d x -> y ; kernel=2x2 stride=4x3 padding=1x1 round_up",
     "y [2,3,2,2]"},
    {"x [2,3,7,7] y [2,3,1,1]", "adaptive_avg_pool2d x -> y ;", "y [2,3,1,1]"},
    {"x [2,3,7,7] y [2,3,9,1]", "adaptive_avg_pool2d x -> y ;", "y [2,3,9,1]"},
    {"d [2,3,1,1] y [2,3,7,7]", "adaptive_avg_pool2d_grad d -> y ;", "y [2,3,7,7]"},
    {"x:bf16 [2,3] y:bf16 [?]", "memcpy x -> y ;", "y [2,3]"},
    {"y [3]", "fill -> y ; scale=1", "y [3]"},
    {"a [2,3] b [2,3] y [?]", "subtract a b -> y ;", "y [2,3]"},
    {"p! [3] p@GRAD! [3] p@STATE0! [3] p@STATE1! [3]",
     "dgc p p@GRAD p@STATE0 p@STATE1 -> p p@STATE0 p@STATE1 ;", "p [3]"},
    {"p! [3] p@GRAD! [3] p@STATE0! [3] p@STATE1! [3]",
     "dgc_select p p@GRAD p@STATE0 p@STATE1 -> ; sampled", "p [3]"},
    {"y [3]", "dgc_gather -> ; group=data", "y [3]"},
    {"y [3]", "tree_sum -> ; group=sharding+data space=gradients first=16 count=48", "y [3]"},
    {"y [3]", "tree_sum -> ; group=data space=gradients count=64 owned", "y [3]"},
    {"y [3]", "all_reduce -> ; group=data space=parameters count=64 reduction=avg wire=fp16",
     "y [3]"},
    {"y [3]", "broadcast -> ; group=sharding space=parameters first=1 count=2 root=3", "y [3]"},
    {"y [3]", "send -> ; group=pipeline space=gradients count=1 shift=-1", "y [3]"},
    {"x:bf16 [2,3] y:bf16 [?]", "all_reduce x -> y ; group=model", "y [2,3]"},
    {"x [2,3] y [?]", "reduce_to x -> y ; group=model reduction=max root=1", "y [2,3]"},
    {"x [6,3] y [?]", "reduce_scatter x -> y ; group=sharding ranks=3", "y [2,3]"},
    {"x:int32 [6,2] y:int32 [?]", "own_rows x -> y ; group=model ranks=3 place=2", "y [2,2]"},
    {"x:int32 [6] y:int32 [?]", "all_gather x -> y ; group=data ranks=4", "y [24]"},
    {"x:uint8 [6] y:uint8 [?]", "broadcast x -> y ; group=data root=2", "y [6]"},
    {"x [6,2] y [?]", "all_to_all x -> y ; group=data ranks=2", "y [6,2]"},
    {"x [6,2] y [3]", "send x -> ; group=pipeline shift=1", "y [3]"},
    {"y [3]", "receive -> y ; group=pipeline shift=-1", "y [3]"},
    {"p! [4] p@GRAD! [4] n [?]", "grad_norm p@GRAD -> n ;", "n [2]"},
    {"p! [4] a [4] n [?]", "join_norms a -> n ;", "n [2]"},
    {"p! [4] own [2] n [?]", "spread_norms own -> n ;", "n [3]"},
    {"x [3] n [?]", "total_norm x -> n ;", "n [3]"},
    {"p! [4] p@GRAD! [4] n [?]", "check_finite p@GRAD -> n ;", "n [1]"},
    {"p! [4] p@GRAD! [4] p@STATE0! [4] s [6]",
     "trust_squares p p@GRAD p@STATE0 -> s ; norm_index=2", "s [6]"},
    {"p! [4] p@GRAD! [4]", "sgd p p@GRAD -> p ;", "p [4]"},
    {"p! [4] p@GRAD! [4] p@STATE0! [4] p@STATE1! [4] n [2]",
     "adamw p p@GRAD p@STATE0 p@STATE1 n -> p p@STATE0 p@STATE1 ; clip=global_norm", "p [4]"},
};

static const struct shape_case bad[] = {
    {"ids [2,3] t [7,4] y [?]", "embedding ids t -> y ;",
     "embedding: input 0 (ids) is of type fp32"},
    {"ids:int32 [2,3] t [7] y [?]", "embedding ids t -> y ;",
     "input 1 (t) has 1 dimensions, needs 2"},
    {"ids:int32 [2,3] t [7,4] p [2,4] y [?]", "embedding ids t p -> y ;",
     "needs at least 3 rows of 4"},
    {"ids:int32 [2,3] d [2,2,4] dt [7,4]", "embedding_grad ids d -> dt ;", "needs [2,3,4]"},
    {"x [2,4] s [3] b [4] y [?] m [?] r [?]", "layer_norm x s b -> y m r ;",
     "input 1 (s) has shape [3], needs [4]"},
    {"x [2,4] s [4] b [4] y [?] m [?] r [?]", "layer_norm x s b -> y m r ; epsilon=-1",
     "epsilon is -1, must be at least 0"},
    {"x [2,4] s [4] y [?]", "layer_norm x s -> y ;", "has 2 inputs, needs 3 to 3"},
    {"d [5,4] x [6,4] s [4] m [6] r [6] dx [?] ds [?] db [?]",
     "layer_norm_grad d x s m r -> dx ds db ;", "input 0 (d) has shape [5,4], needs [6,4]"},
    {"x [6,4] s:bf16 [4] y [?] r [?]", "rms_norm x s -> y r ;", "input 1 (s) is of type bf16"},
    {"x [2,3,4] w [5,4] y [?]", "linear x w - -> y - ;",
     "linear: input 1 (w) has shape [5,4], needs [4,4]"},
    {"x [2,3,4] w [4,5] b [4] y [?]", "linear x w b -> y - ;",
     "input 2 (b) has shape [4], needs [5]"},
    {"x [2,3,4] w:bf16 [4,5] y [?]", "linear x w - -> y - ;", "are of different types"},
    {"x [2,3,4] w [4,5] y [?] p [?]", "linear x w - -> y p ;", "output 1 (p) needs an activation"},
    {"x [2,3,4] w [4,5] y [7,5]", "linear x w - -> y - ;",
     "output 0 (y) has shape [7,5], needs [2,3,5]"},
    {"x [2,3,4] w [4,5]", "linear x w - -> - - ;", "has no output"},
    {"d [6,4] x [6,4] w [4,5] dx [?] dw [?]", "linear_grad d x w - -> dx dw - ;",
     "input 0 (d) has shape [6,4], needs [6,5]"},
    {"d [6,5] x [6,4] w [4,5] dx [?] dw [?]", "linear_grad d x w - -> dx dw - ; activation=gelu",
     "the value before the activation, is missing"},
    {"q [2,8,25] y [?] l [?]", "attention q -> y l ; heads=4 kv_heads=4",
     "not a multiple of the 12 heads"},
    {"q [2,8,24] y [?] l [?]", "attention q -> y l ; heads=4 kv_heads=3",
     "not a multiple of kv_heads"},
    {"q [2,8,24] y [?] l [?]", "attention q -> y l ; kv_heads=4", "heads is 0, must be at least 1"},
    {"q [8,24] y [?] l [?]", "attention q -> y l ; heads=4 kv_heads=4",
     "has 2 dimensions, needs 3"},
    {"d [2,8,8] q [2,8,24] y [2,8,8] l [2,8,4] dq [?]",
     "attention_grad d q y l -> dq ; heads=4 kv_heads=4",
     "input 3 (l) has shape [2,8,4], needs [2,4,8]"},
    {"x [2,3,7] t:int32 [2,4] loss [?] l [?]", "cross_entropy x t -> loss l ;",
     "input 1 (t) has shape [2,4], needs [2,3]"},
    {"x [2,7] t [2] loss [?] l [?]", "cross_entropy x t -> loss l ;", "needs int32"},
    {"x [4,7] t:int32 [4] l [4] d [?]", "cross_entropy_grad x t l - -> d ;", "needs [4,2]"},
    {"x [4,7] t:int32 [4] loss [?] l [?]", "cross_entropy x t -> loss l ; divided",
     "divided logits need the sums of all ranks, others none"},
    {"x [4,7] t:int32 [4] s [6,3] loss [?] l [?]", "cross_entropy x t s -> loss l ; divided",
     "input 2 (s) has shape [6,3], needs a multiple of 4 rows of 3"},
    {"a [2,3] b [2] y [?]", "add a b -> y ;", "input 1 (b) has shape [2], needs [3]"},
    {"a [2,3] b [3,2] y [?]", "add a b -> y ;", "input 1 (b) has shape [3,2], needs [2,3]"},
    {"d [3] y [?]", "add_grad_b d -> y ;", "needs 2 to 4"},
    {"x:int32 [2,3] y:int32 [?]", "scale x -> y ;", "needs fp32, bf16, fp16"},
    {"x [2,3] y:bf16 [?]", "gelu x -> y ;", "output 0 (y) is of type bf16, needs fp32"},
    {"d [2,3] x [3,2] y [?]", "gelu_grad d x -> y ;", "input 1 (x) has shape [3,2]"},
    {"d [2,3] x [3,2] y [?]", "relu_grad d x -> y ;", "input 1 (x) has shape [3,2]"},
    {"d [2,3] x [3,2] y [?]", "silu_grad d x -> y ;", "input 1 (x) has shape [3,2]"},
    {"g [2,3] u [2,4] y [?]", "swiglu g u -> y ;", "input 1 (u) has shape [2,4]"},
    {"x [2,8,24] y [?]", "rope x -> y ; heads=7 head_dim=4 base=10000",
     "needs at least 7 heads of 4"},
    {"x [2,8,24] y [?]", "rope x -> y ; heads=2 head_dim=3 base=10000",
     "head_dim is 3, must be even"},
    {"x [2,8,24] y [?]", "rope x -> y ; heads=2 head_dim=4", "base is 0, must be above 1"},
    {"x [2,3] y [?]", "dropout x -> y ; rate=1", "rate is 1, must be in [0, 1)"},
    {"d [2,3] x [2] y [?]", "softmax_grad d x -> y ;", "input 1 (x) has shape [2]"},
    {"x:int32 [2,3] y [?]", "cast x -> y ;", "is of type int32"},
    {"x [2,6] y [3,5]", "reshape x -> y ;", "x (12 elements of fp32) cannot become y (15"},
    {"x [2,6] y [?]", "reshape x -> y ;", "output 0 (y) has no shape"},
    {"x [2,3,4,4] s [3] b [3] m [3] v [3] r [2,3,4,5] y [?] a [?] c [?] d [?] e [?]",
     "batch_norm x s b m v r -> y a c d e ;", "input 5 (r) has shape [2,3,4,5]"},
    {"a [2,3] b [2,3] y [?]", "add a b -> y ; activation=gelu", "activation is gelu"},
    {"a [2,3,4] b [3,4,5] y [?]", "matmul a b -> y ;", "input 1 (b) has shape [3,4,5]"},
    {"a [3,4] b [5,6] y [?]", "matmul a b -> y ;", "input 1 (b) has shape [5,6]"},
    {"a [4] b [4,5] y [?]", "matmul a b -> y ;", "input 0 (a)"},
    {"x [2,3] y [?]", "transpose x -> y ; order=1,1,0,0", "order is no permutation"},
    {"x [2,3] y [?]", "reduce x -> y ; kept=2", "kept is 2, must be 0 to 1"},
    {"d [2] y [3,4]", "reduce_grad d -> y ; kept=1", "input 0 (d) has shape [2]"},
    {"d [2] y [?]", "reduce_grad d -> y ; kept=1", "has no shape"},
    {"a [2,3,4] b [2,4,4] y [?]", "concat a b -> y ;",
     "input 1 (b) has shape [2,4,4], needs [2,3,4]"},
    {"a [2,3,4] b:bf16 [2,3,4] y [?]", "concat a b -> y ;", "are of different types"},
    {"x [2,12] a [2,4] b [2,7]", "split x -> a b ;", "x has 12 columns, its parts 11"},
    {"x [2,12] a [2,4] b [3,8]", "split x -> a b ;", "output 1 (b) has shape [3,8], needs [2,8]"},
    {"x [2,12] a [2,4] b [?]", "split x -> a b ;", "output 1 (b) has no shape"},
    {"x [2,3,32,32] w [8,4,3,3] y [?]", "conv2d x w -> y ; stride=1x1", "needs [8,3,3,3]"},
    {"x [2,3,2,2] w [8,3,5,5] y [?]", "conv2d x w -> y ; stride=1x1 padding=1x1",
     "a window of 5 does not fit an image of 2 with padding 1"},
    {"x [2,3,32,32] w [8,3,3,3] y [?]", "conv2d x w -> y ;", "window 3 with stride 0"},
    {"x [2,3,32,32] w [8,3,3,3] y [?]", "conv2d x w -> y ; stride=1x1 padding=1025x1",
     "padding is 1025"},
    {"x [2,3,32,32] y [?]", "avg_pool2d x -> y ; kernel=3x3 stride=1x1 padding=3x1",
     "padding is 3, must be below the window's 3"},
    {"x [2,8,4,4] s [8] b [8] m [7] v [8] y [?] bm [?] br [?] sm [?] sv [?]",
     "batch_norm x s b m v -> y bm br sm sv ;", "input 3 (m) has shape [7], needs [8]"},
    {"x [2,8,4,4] s [8] b [8] m [8] v [8] y [?] bm [?] br [?] sm [?] sv [?]",
     "batch_norm x s b m v -> y bm br sm sv ; momentum=2", "momentum in [0, 1]"},
    {"x [2,8,4,4] s [8] b [8] m [8] v [8] t [16] y [?] bm [?] br [?] sm [?] sv [?]",
     "batch_norm x s b m v - t -> y bm br sm sv ;", "input 6 (t) has shape [16], needs [17]"},
    {"d [2,8,4,4] x [2,8,4,4] s [8] m [8] r [8] t [17] dx [?] ds [?] db [?]",
     "batch_norm_grad d x s m r t -> dx ds db ;", "has one of total and own"},
    {"x [2,8,4,4] m [7] o [?]", "batch_norm_sums x m -> o ;", "needs [8]"},
    {"d [2,8,4] x [2,8,5] m [8] r [8] o [?]", "batch_norm_grad_sums d x m r -> o ;",
     "input 0 (d) has shape [2,8,4]"},
    {"x [2,3,9] y [?]", "max_pool2d x -> y ; kernel=3x3 stride=2x2", "has 3 dimensions, needs 4"},
    {"d [2,3,4,4] x [2,3,9,9] i:int32 [2,3,5,5] y [?]",
     "max_pool2d_grad d x i -> y ; kernel=3x3 stride=2x2 padding=1x1", "needs [2,3,5,5]"},
    {"x [2,3,7,7] y [?]", "adaptive_avg_pool2d x -> y ;", "has no shape [B,C,h,w]"},
    {"x:bf16 [2,3] y [?]", "memcpy x -> y ;", "output 0 (y) is of type fp32, needs bf16"},
    {"y [?]", "fill -> y ; scale=1", "has no shape"},
    {"y [3]", "tree_sum -> ; group=data space=gradients first=32 count=33",
     "33 elements from 32 on do not lie in the space of 64"},
    {"y [3]", "tree_sum -> ; group=data space=gradients first=-1 count=3", "do not lie"},
    {"y [3]", "all_reduce -> ; group=data space=state0 count=1", "do not lie in the space of 0"},
    {"y [3]", "tree_sum -> ; group=data space=parameters count=3", "sums gradients only"},
    {"y [3]", "tree_sum -> ; group=data count=3", "has no range"},
    {"y [3]", "tree_sum -> ; space=gradients count=3", "has no group"},
    {"x [3] y [?]", "all_reduce x -> y ; group=data space=gradients count=3", "has a range"},
    {"y [3]", "all_to_all -> ; group=data space=gradients count=3", "needs operands alone"},
    {"x [3] y [?]", "all_reduce x -> y ; group=data count=3", "has operands and a range"},
    {"x [3] y [?]", "all_reduce x -> ; group=data", "has 1 inputs and 0 outputs, needs 1 and 1"},
    {"x:int32 [3] y:int32 [?]", "all_reduce x -> y ; group=data", "needs fp32, bf16, fp16"},
    {"x:int32 [3] y:int32 [?]", "broadcast x -> y ; group=data wire=fp16", "needs fp32"},
    {"x [3] y:bf16 [?]", "all_reduce x -> y ; group=data", "output 0 (y) is of type bf16"},
    {"x [3] y [?]", "broadcast x -> y ; group=data root=-1", "root is -1"},
    {"x [3] y [?]", "all_reduce x -> y ; group=data root=1", "needs none"},
    {"x [3] y [?]", "all_gather x -> y ; group=data reduction=max ranks=2", "needs none"},
    {"x [3] y [?]", "all_gather x -> y ; group=data", "ranks is 0, must be at least 1"},
    {"x [3] y [?]", "all_reduce x -> y ; group=data ranks=2", "ranks is 2, needs none"},
    {"x [6] y [?]", "own_rows x -> y ; group=model place=1", "ranks is 0, must be at least 1"},
    {"x [6] y [?]", "own_rows x -> y ; group=model ranks=3 place=3", "place is 3, must be below"},
    {"x [5] y [?]", "own_rows x -> y ; group=model ranks=2", "not a multiple of the 2 ranks"},
    {"x [5] y [?]", "reduce_scatter x -> y ; group=data ranks=2",
     "input 0 (x) has 5 rows, not a multiple of the 2 ranks"},
    {"x [] y [?]", "reduce_scatter x -> y ; group=data ranks=2", "no dimension to divide"},
    {"x [3] y [3]", "send x -> ; group=pipeline", "shift is 0"},
    {"y [?]", "receive -> y ; group=pipeline shift=1", "output 0 (y) has no shape"},
    {"p! [4] own [3] n [?]", "spread_norms own -> n ;",
     "input 0 (own) has 3 elements, needs 2, and at most the 3 of the whole model"},
    {"p! [4] a [5] n [?]", "join_norms a -> n ;",
     "input 0 (a) has 5 elements, needs a multiple of 2"},
    {"p! [4] p@GRAD! [4] p@STATE0! [4] s [6]",
     "trust_squares p p@GRAD p@STATE0 -> s ; norm_index=3",
     "output 0 (s) has no place for norm_index 3"},
    {"p! [4] n [?]", "grad_norm p -> n ;", "must be the gradient at the start"},
    {"p [4] g [4]", "sgd p g -> p ;", "input 0 (p) is not a trained parameter"},
    {"p! [4] p@GRAD! [4] q [4]", "sgd p q -> p ;", "input 1 (q) does not belong to p"},
    {"p! [4] p@GRAD! [4] q [4]", "sgd p p@GRAD -> q ;",
     "output 0 is not the variable that is read"},
    {"p! [4] p@GRAD! [3]", "sgd p p@GRAD -> p ;", "input 1 (p@GRAD) has shape [3], needs [4]"},
    {"p! [4] p@GRAD! [4]", "sgd p p@GRAD -> p ; clip=norm", "the norms to clip by, is missing"},
    {"p! [4] p@GRAD! [4] n [2]", "sgd p p@GRAD n -> p ; norm_index=1",
     "norm_index 1 lies outside n"},
    {"x [1048576,1048576,2] y [?]", "scale x -> y ;", "x has more than 2^40 elements"},
    {"x [2097152,2] w [2,2097152] y [?]", "linear x w - -> y - ;", "y has more than 2^40 elements"},
};

static void test_op__gives_shapes(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(good); i++)
        check_case(&good[i], true);
}

static void test_op__refuses_what_does_not_fit(void **state)
{
    (void)state;
    for (size_t i = 0; i < FLEET_COUNT(bad); i++)
        check_case(&bad[i], false);
}

static void test_op__every_kind_has_a_definition_of_its_name(void **state)
{
    static const char *const names[] = {
#define OP(kind, name, kernel, axes, class) #name,
#include "libfleet/program/operators.def"
    };
    bool tested[OP_KIND_COUNT] = {false};

    (void)state;
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        const struct op_definition *d = op_definition((enum op_kind)kind);
        assert_string_equal(d->name, names[kind]);
        assert_non_null(d->infer);
        assert_in_range(d->input_max, d->input_min, OP_INPUTS_MAX);
        assert_in_range(d->output_max, d->output_min, OP_OUTPUTS_MAX);
    }
    for (size_t i = 0; i < FLEET_COUNT(good); i++) {
        struct program program;
        read_case(&good[i], &program);
        tested[program.ops[0].kind] = true;
        program_release(&program);
    }
    /* These differ from a tested one by the number of states alone. */
    tested[OP_MOMENTUM] = tested[OP_ADAM] = tested[OP_LAMB] = tested[OP_LARS] = true;
    for (int kind = 0; kind < OP_KIND_COUNT; kind++)
        if (!tested[kind])
            fail_msg("no shape of operator %s is tested", names[kind]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_op__gives_shapes),
        cmocka_unit_test(test_op__refuses_what_does_not_fit),
        cmocka_unit_test(test_op__every_kind_has_a_definition_of_its_name),
    };
    return cmocka_run_group_tests_name("op", tests, NULL, NULL);
}
