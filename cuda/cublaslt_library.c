/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/cublaslt_library.h"

#include <errno.h>
#include <stddef.h>

#include "cuda/library.h"
#include "libfleet/base/error.h"

static int check_version(const struct library *library, struct fleet_error *err)
{
    struct cublaslt_library *cublaslt = library->table;

    cublaslt->file = library->file;
    cublaslt->version = cublaslt->cublasLtGetVersion();
    if (cublaslt->version >= CUBLASLT_LEAST)
        return 0;
    return fleet_error(err, -EPROTO, "cuBLASLt: the library has version %zu.%zu, 12.0 is needed",
                       cublaslt->version / 10000, cublaslt->version % 10000 / 100);
}

int cublaslt_library_open(const struct cublaslt_library **out, struct fleet_error *err)
{
#define CUBLASLT_PLACE(result, name, parameters) {#name, offsetof(struct cublaslt_library, name)},
    static const struct library_function functions[] = {
        CUBLASLT_FUNCTIONS(CUBLASLT_PLACE){NULL, 0}};
#undef CUBLASLT_PLACE
    static struct cublaslt_library opened;
    static struct library library = {.title = "cuBLASLt",
                                     .variable = CUBLASLT_LIBRARY_ENV,
                                     .names = {"libcublasLt.so.13", "libcublasLt.so.12"},
                                     .functions = functions,
                                     .table = &opened,
                                     .check = check_version,
                                     .lock = PTHREAD_MUTEX_INITIALIZER};
    int rc = library_open(&library, err);

    if (rc == 0)
        *out = &opened;
    return rc;
}
