/* SPDX-License-Identifier: Apache-2.0 */
#ifndef DISTRIBUTED_RPC_FUNCTIONS_H
#define DISTRIBUTED_RPC_FUNCTIONS_H

/* The functions that fleet_rpc_register() registered. fleet_rpc_shutdown() does not remove them. */

#include <stddef.h>

#include "distributed/distributed.h"

/* Call the function `name` with in[in_bytes]. On success the caller frees *out, which is NULL if
 * the result is empty. -ENOENT: no function has this name. -EMSGSIZE: the result is longer than
 * FLEET_RPC_BYTES_MAX. Else the function's own negative code. `err` always gets a text. Any
 * thread. */
int rpc_function_run(const char *name, const void *in, size_t in_bytes, void **out,
                     size_t *out_bytes, struct fleet_error *err);

#endif
