/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_TENSOR_PARALLEL_FIXTURE_H
#define TESTS_UNIT_TENSOR_PARALLEL_FIXTURE_H

/*
 * Models for tests of tensor parallelism, and their programs.
 */

#include "agent/runtime/executor/executor.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/program/passes/pass.h"
#include "libfleet/program/program_build.h"
#include "libfleet/strategy/strategy.h"
#include "tests/unit/comm_ranks.h"
#include "tests/unit/passes_fixture.h"

#define WORDS 37 /* no multiple of the ranks */

#define JOB(name, rest, optimizer)                                                              \
    "{\"model\":{\"name\":\"" name "\",\"layers\":2,\"heads\":4,\"width\":32,\"context\":16,"   \
    "\"vocabulary\":37" rest "},\"data\":{\"path\":\"t\",\"tokenizer\":\"bpe\",\"vocabulary\":" \
    "\"v\",\"merges\":\"m\"},\"globalBatchSize\":2,\"microBatchSize\":2,\"steps\":8,"           \
    "\"optimizer\":{\"name\":\"sgd\",\"learningRate\":0.1" optimizer "}"
#define MODEL(name, rest) JOB(name, rest, "") "}"

/* Settings of the strategy that are on. */
struct knobs {
    bool recompute; /* the ranks do, the one rank does not: it changes no bit */
    bool amp, pure; /* operators by Paddle's lists; all in 16 bits */
    bool rows;      /* ranks that share tensors divide the rows of activations, too */
    bool given;     /* operators are divided as the job says */
};

static inline int build_cell(const struct training_config *training, struct knobs knobs,
                             struct program_cell cell, struct program *out, struct fleet_error *err)
{
    STRATEGY_AUTO struct strategy strategy = {0};
    struct fleet_errors errors = {0};
    struct pass_context context = {
        .training = training, .strategy = &strategy, .world = 1, .cell = cell};
    int rc;

    strategy_init(&strategy);
    context.cell.divides_rows = knobs.rows;
    context.cell.by_operator = knobs.given;
    strategy.recompute = knobs.recompute;
    strategy.amp = knobs.amp;
    strategy.amp_configs.use_pure_bf16 = knobs.pure;
    rc = program_build(&context, "spec.strategy", out, &errors);
    if (rc < 0)
        (void)fleet_errors_result(&errors, err);
    fleet_errors_release(&errors);
    return rc;
}

#endif
