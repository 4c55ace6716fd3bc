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
 * lie in memory, SAMPLE_BYTES at most. All NaNs of an output count as one.
 */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* A copy of an output, which the caller frees, with one bit pattern for all NaNs: what a NaN holds
 * depends on the processor. */
static inline void *rig_digest_copy(const struct program_var *var, const void *data)
{
    size_t bytes = program_var_bytes(var);
    uint16_t infinity = var->type == PROGRAM_FP16 ? 0x7c00 : 0x7f80;
    void *copy = malloc(bytes + 1);
    uint32_t *words = copy;
    uint16_t *halves = copy;

    if (!copy)
        abort();
    memcpy(copy, data, bytes);
    for (size_t i = 0; var->type == PROGRAM_FP32 && i < bytes / sizeof(*words); i++)
        if ((words[i] & 0x7fffffff) > 0x7f800000)
            words[i] = 0x7fc00000;
    for (size_t i = 0;
         (var->type == PROGRAM_BF16 || var->type == PROGRAM_FP16) && i < bytes / sizeof(*halves);
         i++)
        if ((halves[i] & 0x7fff) > infinity)
            halves[i] = 0x7fff;
    return copy;
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
        void *copy;
        if (op->outputs[o] == PROGRAM_NONE || !out[o])
            continue;
        var = &program->vars[op->outputs[o]];
        bytes = program_var_bytes(var);
        copy = rig_digest_copy(var, out[o]);
        fleet_sha256(copy, bytes, outputs);
        (void)fprintf(file, "%s ", op_definition(op->kind)->name);
        rig_digest_hex(file, inputs, 8);
        (void)fprintf(file, " %d %s %" PRId64 " ", o, program_type_name(var->type),
                      program_var_elements(var));
        rig_digest_hex(file, outputs, 8);
        (void)fputc(' ', file);
        rig_digest_hex(file, copy, bytes < RIG_SAMPLE_BYTES ? bytes : RIG_SAMPLE_BYTES);
        (void)fputc('\n', file);
        free(copy);
    }
    (void)fflush(file);
}

#endif
