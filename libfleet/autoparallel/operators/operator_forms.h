/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_AUTOPARALLEL_OPERATORS_OPERATOR_FORMS_H
#define LIBFLEET_AUTOPARALLEL_OPERATORS_OPERATOR_FORMS_H

/* The forms of operators: a function each, which gives an operator its axes (operator_axes.h). */

#include "libfleet/autoparallel/operators/operator_axes.h"

struct operator_build {
    const struct program *program;
    const struct program_op *op;
    struct operator_axes *axes; /* operands are there, whole */
};

/* A variable as one piece: none of its dimensions is divided. */
struct operator_operand operator_form_whole(const struct program *program, int var);

void operator_form_elementwise(struct operator_build *b);
void operator_form_leading(struct operator_build *b);
void operator_form_norm(struct operator_build *b);
void operator_form_linear(struct operator_build *b);
void operator_form_matmul(struct operator_build *b);
void operator_form_embedding(struct operator_build *b);
void operator_form_attention(struct operator_build *b);
void operator_form_packed(struct operator_build *b);
void operator_form_rope(struct operator_build *b);
void operator_form_cross_entropy(struct operator_build *b);
void operator_form_conv2d(struct operator_build *b);
void operator_form_images(struct operator_build *b);
void operator_form_reduce(struct operator_build *b);
void operator_form_transpose(struct operator_build *b);
void operator_form_reshape(struct operator_build *b);

#endif
