/* SPDX-License-Identifier: Apache-2.0 */

/* The kernels at level avx2. */
#define CPU_KERNELS cpu_kernels_avx2
#include "agent/runtime/backend/cpu/kernels/table.h"
