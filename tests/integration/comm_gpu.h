/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_COMM_GPU_H
#define TESTS_INTEGRATION_COMM_GPU_H

/*
 * A device's library for the communicators of a test: over the fake CUDA runtime and the fake NCCL,
 * or, with FLEET_TEST_GPU=LIBRARY (tests/gpu/check.sh), over a GPU that all ranks share, with that
 * libfleet_cuda.so and the NCCL of FLEET_NCCL_LIBRARY. Calls into NCCL are counted, so a test can
 * tell that it was in use.
 */

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/runtime/backend/cuda/cuda_library.h"
#include "agent/runtime/comm/comm.h"
#include "agent/runtime/comm/device.h"
#include "libfleet/base/error.h"

/* The device's queue of this process; NULL: operations run over the host's memory. */
static struct backend *comm_queue;

static const struct comm_device_library *comm_library; /* whose calls are counted */
static long comm_library_calls;

/* The tests run over a GPU. */
static inline bool comm_on_gpu(void)
{
    const char *gpu = getenv("FLEET_TEST_GPU");

    return gpu && gpu[0];
}

static inline int comm_count_exchange(struct comm_device *device, struct backend *queue,
                                      const struct comm_device_part *parts, int count,
                                      struct fleet_error *err)
{
    int rc = comm_library->exchange(device, queue, parts, count, err);

    comm_library_calls += rc == 0;
    return rc;
}

static inline int comm_count_collective(struct comm_device *device, struct backend *queue,
                                        const struct comm_call *call, struct fleet_error *err)
{
    int rc = comm_library->collective(device, queue, call, err);

    comm_library_calls += rc == 0;
    return rc;
}

/* What the file that FLEET_NCCL_LIBRARY names says of itself; 0: this process has not opened it. */
static inline int comm_nccl_version(void)
{
    const char *name = getenv("FLEET_NCCL_LIBRARY");
    void *file = dlopen(name ? name : "libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    int (*get)(int *) = NULL;
    void *found = file ? dlsym(file, "ncclGetVersion") : NULL;
    int version = 0;

    memcpy(&get, &found, sizeof(found));
    if (get)
        (void)get(&version);
    if (file)
        (void)dlclose(file);
    return version;
}

/* Errors of comm_use_device(). All ranks call it. */
static inline int comm_open_device(struct comm *comm, double deadline_ms, struct fleet_error *err)
{
    static struct comm_device_library counting;
    struct comm_device_id id;
    int rc = 0;

    if (!comm_on_gpu()) {
        (void)setenv("FLEET_CUBLASLT_LIBRARY", "none", 1);
        (void)setenv("FLEET_CUDA_LIBRARY", "build/cuda_fake/release/libfleet_cuda.so", 1);
        (void)setenv("FLEET_NCCL_LIBRARY", "build/nccl_fake/libnccl.so.2", 1);
    }
    if ((!comm_queue && (rc = cuda_library_backend(&comm_queue, err)) < 0) ||
        (rc = cuda_library_collectives(&comm_library, err)) < 0 ||
        (rc = comm->rank == 0 ? comm_library->make_id(&id, err) : 0) < 0)
        return rc;
    counting = *comm_library;
    counting.exchange = comm_count_exchange;
    counting.collective = comm_count_collective;
    rc = comm_broadcast(comm, &id, sizeof(id), 0, deadline_ms, err);
    return rc < 0 ? rc : comm_use_device(comm, &counting, &id, comm_queue, deadline_ms, err);
}

#endif
