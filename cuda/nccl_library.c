/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/nccl_library.h"

#include <errno.h>
#include <stddef.h>

#include "cuda/library.h"
#include "libfleet/base/error.h"

static int check_version(const struct library *library, struct fleet_error *err)
{
    const struct nccl_library *nccl = library->table;
    int version = 0;

    if (nccl->ncclGetVersion(&version) == ncclSuccess && version >= NCCL_LEAST)
        return 0;
    return fleet_error(err, -EPROTO, "NCCL: the library has version %d.%d, 2.18 is needed",
                       version / 10000, version % 10000 / 100);
}

int nccl_library_open(const struct nccl_library **out, struct fleet_error *err)
{
#define NCCL_PLACE(result, name, parameters) {#name, offsetof(struct nccl_library, name)},
    static const struct library_function functions[] = {NCCL_FUNCTIONS(NCCL_PLACE){NULL, 0}};
#undef NCCL_PLACE
    static struct nccl_library opened;
    static struct library library = {.title = "NCCL",
                                     .variable = NCCL_LIBRARY_ENV,
                                     .names = {"libnccl.so.2"},
                                     .functions = functions,
                                     .table = &opened,
                                     .check = check_version,
                                     .lock = PTHREAD_MUTEX_INITIALIZER};
    int rc = library_open(&library, err);

    if (rc == 0)
        *out = &opened;
    return rc;
}
