/* SPDX-License-Identifier: Apache-2.0 */

/* The kernels at level plain. */
#define CPU_KERNELS cpu_kernels_plain
#include "agent/runtime/backend/cpu/kernels/table.h"
