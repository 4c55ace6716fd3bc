/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PASSES_PIPELINE_H
#define LIBFLEET_PROGRAM_PASSES_PIPELINE_H

/*
 * pipeline: leaves in the program what one rank of a pipeline runs, the operators of its stage
 * (stages.h). With several chunks a rank has a run of layers for each chunk: chunk c of stage s is
 * the virtual stage c·P + s. The pass runs right behind autodiff, so later passes rewrite a stage.
 *
 *   - A tensor that another virtual stage reads is handed on from neighbour to neighbour: SEND at
 *     the end of a part, RECEIVE at the beginning of one. Parts are the forward and the backward
 *     operators of a chunk (program_op.chunk). A stage has the forward parts of its chunks first.
 *   - A cast of a parameter is repeated on each stage that reads the result.
 *   - A parameter that several stages read (tied embeddings) is a parameter of each. What a later
 *     stage adds to its gradient is handed on to the first of them in every micro-batch, so the
 *     additions are those of one rank. The first one has the complete gradient. In the section
 *     check it sends that to the others, and all make the same update.
 *   - With PROGRAM_EVERY_STAGE nothing is left out. Each parameter gets its first stage
 *     (program_var.stage), and the program runs on one rank. A model that cannot be cut is no error
 *     here.
 *   - With splits_weights the backward part of a stage ends with the SEND; operators that make
 *     nothing but gradients of parameters follow as a part of their own (program_op.weights).
 *     linear_grad becomes two operators. A gradient that is a by-product of an operator in front of
 *     the SEND is copied into its place in the second part.
 *
 * -EINVAL: localsgd, adaptive_localsgd or dgc is on; running statistics; more stages than layers,
 * numbers of layers (strategyOptions.pipelineLayers) that do not fit, or a tensor that an earlier
 * stage would have to read in its forward part.
 */

#include <stdbool.h>

struct fleet_error;
struct pass_context;
struct program;
struct program_cell;

/* Chunks of layers on each stage, and virtual stages. */
int pipeline_chunks(const struct program_cell *cell);
int pipeline_virtual_stages(const struct program_cell *cell);

bool pipeline_wanted(const struct pass_context *context);
int pipeline_apply(struct program *program, const struct pass_context *context,
                   struct fleet_error *err);

/* Give the backward operators of `program`, a stage with one chunk, two parts. */
void pipeline_split_weights(struct program *program);

#endif
