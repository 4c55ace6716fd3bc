/* SPDX-License-Identifier: Apache-2.0 */

/* Reductions at level plain. */
#define COMM_FOLDINGS comm_foldings_plain
#include "agent/runtime/comm/fold_loops.h"
