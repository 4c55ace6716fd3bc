/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_PROGRAM_PRINT_H
#define LIBFLEET_PROGRAM_PRINT_H

/*
 * A program as text, for people, digests and tests; and back. One line a variable, one an operator:
 *
 *     program gpt micro_batch_size=4 tokens_per_sample=64 merge_steps=1 … loss=loss
 *     var wte.weight fp32 parameter [256,128] trained initial=normal deviation=0.02 flat=8192
 *     var wte.weight@GRAD fp32 gradient [256,128] of=wte.weight flat=8192
 *     forward linear ln_f wte.weight - -> lm_head - ; transposed
 *     update adamw wte.weight wte.weight@GRAD … -> … ; decay=0.1 …
 *
 * A word before the operator says the section, forward and backward are the two parts of
 * micro_batch; "-" is an absent operand. Attributes that are zero are left out. Numbers read back
 * to the same bits, so equal programs print equal text and unequal ones do not.
 */

#include <stddef.h>

#include "libfleet/base/strbuf.h"
#include "libfleet/program/program.h"

struct fleet_error;

#define PRINT_SIZE_MAX ((size_t)64 << 20) /* bytes of a text that is read */

/* Append the whole program, its lines in the order of its variables and operators. */
void print_program(const struct program *program, struct fleet_strbuf *out);

/* One operator as in print_program(), without the final newline. */
void print_operator(const struct program *program, const struct program_op *op,
                    struct fleet_strbuf *out);

/*
 * Read what print_program() wrote. *out must be released unless an error is returned: -EINVAL with
 * the line, -EFBIG. Reads only: whether the program makes sense is for verify_program() to say.
 */
int print_parse(const char *text, size_t size, struct program *out, struct fleet_error *err);

#endif
