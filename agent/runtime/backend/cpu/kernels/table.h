/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_TABLE_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_TABLE_H

/*
 * All kernels of one level. A level's file (kernels_plain.c, …) defines CPU_KERNELS as the name of
 * its table and includes this; the compiler flags of the file make the difference.
 */

#include "agent/runtime/backend/cpu/kernels/attention.h"
#include "agent/runtime/backend/cpu/kernels/batch_norm.h"
#include "agent/runtime/backend/cpu/kernels/column_sum.h"
#include "agent/runtime/backend/cpu/kernels/concat.h"
#include "agent/runtime/backend/cpu/kernels/conv2d.h"
#include "agent/runtime/backend/cpu/kernels/cross_entropy.h"
#include "agent/runtime/backend/cpu/kernels/dgc.h"
#include "agent/runtime/backend/cpu/kernels/dropout.h"
#include "agent/runtime/backend/cpu/kernels/elementwise.h"
#include "agent/runtime/backend/cpu/kernels/embedding.h"
#include "agent/runtime/backend/cpu/kernels/grad_norm.h"
#include "agent/runtime/backend/cpu/kernels/linear.h"
#include "agent/runtime/backend/cpu/kernels/matmul.h"
#include "agent/runtime/backend/cpu/kernels/norm.h"
#include "agent/runtime/backend/cpu/kernels/optimizer.h"
#include "agent/runtime/backend/cpu/kernels/pool.h"
#include "agent/runtime/backend/cpu/kernels/reduce.h"
#include "agent/runtime/backend/cpu/kernels/rope.h"
#include "agent/runtime/backend/cpu/kernels/softmax.h"
#include "agent/runtime/backend/cpu/kernels/transpose.h"

#ifndef CPU_KERNELS
#define CPU_KERNELS cpu_kernels_plain
#endif

#define none_kernel NULL

const struct cpu_kernels CPU_KERNELS = {
    .of =
        {
#define OP(kind, name, kernel, axes, class) [OP_##kind] = kernel##_kernel,
#include "libfleet/program/operators.def"
        },
    .add = add_into,
    .narrow = narrow_into,
    .widen = widen_into,
};

#endif
