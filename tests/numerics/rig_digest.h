/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_NUMERICS_RIG_DIGEST_H
#define TESTS_NUMERICS_RIG_DIGEST_H

/*
 * What an operator gave, as a line of a file, so that runs on different machines can be compared
 * (tests/gpu/compare.sh). FLEET_RIG_DIGEST names the file; without it nothing is written. A line:
 *
 *     operator  inputs  output  type  elements  digest  first elements
 *
 * `inputs` and `digest` are the first 16 digits of SHA-256; elements are in hexadecimal, as they
 * lie in memory, SAMPLE_BYTES at most.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "libfleet/base/digest.h"
#include "libfleet/program/program.h"

#define RIG_SAMPLE_BYTES 64

static inline void rig_digest_hex(FILE *file, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        (void)fprintf(file, "%02x", ((const uint8_t *)data)[i]);
}

static inline void rig_digest_inputs(const struct program *program, const struct program_op *op,
                                     const void *const *in, uint8_t out[FLEET_SHA256_SIZE])
{
    struct fleet_sha256 *sha = fleet_sha256_new();

    for (int i = 0; i < op->input_count; i++) {
        const struct program_var *var;
        if (op->inputs[i] == PROGRAM_NONE || !in[i])
            continue;
        var = &program->vars[op->inputs[i]];
        fleet_sha256_update(sha, &i, sizeof(i));
        fleet_sha256_update(sha, var->shape, (size_t)var->ndim * sizeof(var->shape[0]));
        fleet_sha256_update(sha, in[i], program_var_bytes(var));
    }
    fleet_sha256_finish(sha, out);
}

/* The lines of one operator. */
static inline void rig_digest(const struct program *program, const struct program_op *op,
                              const void *const *in, void *const *out)
{
    static FILE *file;
    const char *path = getenv("FLEET_RIG_DIGEST");
    uint8_t inputs[FLEET_SHA256_SIZE], outputs[FLEET_SHA256_SIZE];

    if (!file && path && path[0])
        file = fopen(path, "a");
    if (!file)
        return;
    rig_digest_inputs(program, op, in, inputs);
    for (int o = 0; o < op->output_count; o++) {
        const struct program_var *var;
        size_t bytes;
        if (op->outputs[o] == PROGRAM_NONE || !out[o])
            continue;
        var = &program->vars[op->outputs[o]];
        bytes = program_var_bytes(var);
        fleet_sha256(out[o], bytes, outputs);
        (void)fprintf(file, "%s ", op_definition(op->kind)->name);
        rig_digest_hex(file, inputs, 8);
        (void)fprintf(file, " %d %s %" PRId64 " ", o, program_type_name(var->type),
                      program_var_elements(var));
        rig_digest_hex(file, outputs, 8);
        (void)fputc(' ', file);
        rig_digest_hex(file, out[o], bytes < RIG_SAMPLE_BYTES ? bytes : RIG_SAMPLE_BYTES);
        (void)fputc('\n', file);
    }
    (void)fflush(file);
}

#endif
