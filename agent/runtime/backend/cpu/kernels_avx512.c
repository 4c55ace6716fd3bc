/* SPDX-License-Identifier: Apache-2.0 */

/* The kernels at level avx512. */
#define CPU_KERNELS cpu_kernels_avx512
#include "agent/runtime/backend/cpu/kernels/table.h"
