/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_FUNCTIONS_H
#define DISTRIBUTED_RPC_FUNCTIONS_H

/* The functions that fleet_rpc_register() was called for. They outlive fleet_rpc_shutdown(). */

#include <stddef.h>

#include "distributed/distributed.h"

/* Run one. *out is set on success, to be freed. -ENOENT: there is none of that name. -EMSGSIZE: its
 * result is too long. Else its own error; always with a text and a negative code. Any thread. */
int rpc_function_run(const char *name, const void *in, size_t in_bytes, void **out,
                     size_t *out_bytes, struct fleet_error *err);

#endif
