/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CPU_KERNELS_TABLE_H
#define AGENT_RUNTIME_BACKEND_CPU_KERNELS_TABLE_H

/*
 * All kernels of one level. A level's file (kernels_plain.c, …) defines CPU_KERNELS as the name of
 * its table and includes this; the compiler flags of the file make the difference.
 */

#include "cpu_kernels.h" /* the build writes it: every other header of this folder */

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
