/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/device.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda/cublaslt_library.h"
#include "cuda/products.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/log.h"

#define LEAST_CAPABILITY 80 /* major · 10 + minor: the first architecture of cuda/cuda.mk */

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_device *shared; /* NULL: the process has no handle */

/* ---- errors ---------------------------------------------------------------------------------- */

/* 0: it is sticky. */
static int code_of_one_call(cudaError_t status)
{
    if (status == cudaErrorInvalidValue)
        return -EINVAL;
    if (status == cudaErrorMemoryAllocation)
        return -ENOMEM;
    if (status >= cudaErrorStreamCaptureUnsupported && status <= cudaErrorStreamCaptureWrongThread)
        return -ENOTSUP;
    return 0;
}

/* The first one stays: those that follow are its consequences. */
static void note_failure(struct cuda_device *device, cudaError_t status, const char *what)
{
    pthread_mutex_lock(&device->lock);
    if (!device->has_failed)
        (void)snprintf(device->failure, sizeof(device->failure), "GPU: %s: %s (%s)", what,
                       cudaGetErrorString(status), cudaGetErrorName(status));
    device->has_failed = true;
    pthread_mutex_unlock(&device->lock);
}

int device_check(struct cuda_device *device, struct fleet_error *err)
{
    bool has_failed;

    pthread_mutex_lock(&device->lock);
    has_failed = device->has_failed;
    pthread_mutex_unlock(&device->lock);
    return has_failed ? fleet_error(err, -EIO, "%s", device->failure) : 0;
}

int device_fail(struct cuda_device *device, cudaError_t status, const char *what,
                struct fleet_error *err)
{
    int rc = code_of_one_call(status);

    (void)cudaGetLastError(); /* else the next launch reports this error again */
    if (rc == 0) {
        note_failure(device, status, what);
        return device_check(device, err);
    }
    return fleet_error(err, rc, "GPU: %s: %s (%s)", what, cudaGetErrorString(status),
                       cudaGetErrorName(status));
}

void device_die(struct cuda_device *device, cudaError_t status, const char *what)
{
    if (status == cudaSuccess)
        return;
    note_failure(device, status, what);
    fleet_log_error("Lost the GPU", FLEET_STR("err", device->failure));
    _exit(1);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static int refuse_memory(struct cuda_device *device, cudaError_t status, size_t bytes,
                         struct fleet_error *err)
{
    size_t available = 0, total = 0;

    if (status != cudaErrorMemoryAllocation || cudaMemGetInfo(&available, &total) != cudaSuccess)
        return device_fail(device, status, "allocate memory", err);
    (void)cudaGetLastError();
    return fleet_error(err, -ENOMEM, "allocate %zu bytes on the GPU: %zu of its %zu bytes are free",
                       bytes, available, total);
}

int device_allocate(struct cuda_device *device, cudaStream_t stream, size_t bytes, void **out,
                    struct fleet_error *err)
{
    void *memory = NULL;
    cudaError_t status = cudaMalloc(&memory, bytes ? bytes : 1);

    if (status != cudaSuccess)
        return refuse_memory(device, status, bytes, err);
    status = cudaMemsetAsync(memory, 0, bytes ? bytes : 1, stream);
    if (status != cudaSuccess) {
        (void)cudaFree(memory);
        return device_fail(device, status, "clear new memory", err);
    }
    *out = memory;
    return 0;
}

int device_reserve(struct cuda_device *device, void **memory, size_t *has, size_t bytes,
                   struct fleet_error *err)
{
    cudaError_t status;

    if (bytes <= *has)
        return 0;
    status = cudaStreamSynchronize(device->streams[0]);
    if (status != cudaSuccess)
        return device_fail(device, status, "wait for the kernels", err);
    (void)cudaFree(*memory);
    *memory = NULL;
    *has = 0;
    if (device_allocate(device, device->streams[0], bytes, memory, err) < 0)
        return err ? err->code : -ENOMEM;
    *has = bytes;
    return 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

static int refuse_driver(struct fleet_error *err)
{
    int has = 0, wants = 0;

    (void)cudaDriverGetVersion(&has);
    (void)cudaRuntimeGetVersion(&wants);
    if (has == 0)
        return fleet_error(err, -ENOTSUP,
                           "FLEET_BACKEND=cuda: this machine has no NVIDIA driver (libcuda.so.1)");
    return fleet_error(err, -ENOTSUP,
                       "FLEET_BACKEND=cuda: the NVIDIA driver knows CUDA %d.%d, and this program "
                       "needs CUDA %d.%d or later",
                       has / 1000, has % 1000 / 10, wants / 1000, wants % 1000 / 10);
}

static int find_device(int *out_capability, struct fleet_error *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0, major = 0, minor = 0;
    cudaError_t status = cudaGetDeviceCount(&count);

    if (status == cudaErrorInsufficientDriver)
        return refuse_driver(err);
    if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0))
        return fleet_error(err, -ENODEV,
                           "FLEET_BACKEND=cuda: this machine has no GPU that a process may use%s%s",
                           visible ? "; CUDA_VISIBLE_DEVICES is " : "", visible ? visible : "");
    if (status == cudaSuccess)
        status = cudaSetDevice(0);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    if (status != cudaSuccess)
        return fleet_error(err, -EIO, "FLEET_BACKEND=cuda: start the GPU: %s (%s)",
                           cudaGetErrorString(status), cudaGetErrorName(status));
    *out_capability = major * 10 + minor;
    if (*out_capability < LEAST_CAPABILITY)
        return fleet_error(err, -ENODEV,
                           "FLEET_BACKEND=cuda: the GPU has compute capability %d.%d, at least "
                           "%d.%d is needed",
                           major, minor, LEAST_CAPABILITY / 10, LEAST_CAPABILITY % 10);
    return 0;
}

static void release(struct cuda_device *device)
{
    products_free(device->products);
    (void)cudaFree(device->product_workspace);
    staging_release(&device->staging);
    (void)cudaFree(device->scratch);
    (void)cudaFree(device->scalars);
    (void)cudaFree(device->gradients);
    free(device->gradient_rows);
    (void)cudaFree(device->parameter);
    (void)cudaFree(device->faults);
    for (int q = 0; q <= DEVICE_ASIDE; q++)
        if (device->streams[q])
            (void)cudaStreamDestroy(device->streams[q]);
    pthread_mutex_destroy(&device->lock);
    pthread_mutex_destroy(&device->first_use);
    free(device);
}

static_assert(sizeof(struct fleet_cuda_scalars) + sizeof(struct fleet_cuda_parameter) +
                          DEVICE_FAULTS * sizeof(uint64_t) <=
                      GPU_SCRATCH_TABLES &&
                  sizeof(struct fleet_cuda_gradient) == GPU_SCRATCH_ROW,
              "as the plan counts");

/* Memory that kernels need for every program. */
static int allocate_tables(struct cuda_device *device, struct fleet_error *err)
{
    const struct {
        void **memory;
        size_t bytes;
    } tables[] = {{(void **)&device->scalars, sizeof(*device->scalars)},
                  {(void **)&device->parameter, sizeof(*device->parameter)},
                  {(void **)&device->faults, DEVICE_FAULTS * sizeof(*device->faults)}};
    int rc = 0;

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]) && rc == 0; i++)
        rc = device_allocate(device, device->streams[0], tables[i].bytes, tables[i].memory, err);
    return rc;
}

/* Without cuBLASLt our own kernels multiply; a library that was named must be there. */
static int open_products(struct cuda_device *device, struct fleet_error *err)
{
    const struct cublaslt_library *library;
    struct fleet_error reason;
    char version[48];
    int rc = cublaslt_library_open(&library, &reason);

    if (rc == -ENOENT) {
        fleet_log_info("Found no cuBLASLt, own kernels multiply matrices",
                       FLEET_STR("err", reason.text));
        return 0;
    }
    if (rc < 0)
        return fleet_error(err, rc, "%s", reason.text);
    rc = device_allocate(device, device->streams[0], PRODUCTS_WORKSPACE_BYTES,
                         &device->product_workspace, err);
    if (rc == 0)
        rc = products_new(library, device->product_workspace, &device->products, err);
    if (rc < 0)
        return rc;
    (void)snprintf(version, sizeof(version), "%zu.%zu.%zu", library->version / 10000,
                   library->version / 100 % 100, library->version % 100);
    fleet_log_info("Opened cuBLASLt", FLEET_STR("library", library->file),
                   FLEET_STR("version", version));
    return 0;
}

static int start(struct cuda_device **out, struct fleet_error *err)
{
    struct cuda_device *device;
    int capability = 0, rc = find_device(&capability, err);

    if (rc < 0)
        return rc;
    device = calloc(1, sizeof(*device));
    fleet_assert(device != NULL);
    device->capability = capability;
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->first_use, NULL);
    staging_init(&device->staging);
    for (int q = 0; q <= DEVICE_ASIDE && rc == 0; q++) {
        cudaError_t status = cudaStreamCreateWithFlags(&device->streams[q], cudaStreamNonBlocking);
        if (status != cudaSuccess) {
            device->streams[q] = NULL;
            rc = device_fail(device, status, "make a stream", err);
        }
    }
    if (rc == 0)
        rc = allocate_tables(device, err);
    if (rc == 0)
        rc = open_products(device, err);
    if (rc < 0) {
        release(device);
        return rc;
    }
    *out = device;
    return 0;
}

int device_open(struct cuda_device **out, struct fleet_error *err)
{
    int rc = 0;

    pthread_mutex_lock(&opening);
    if (!shared)
        rc = start(&shared, err);
    if (rc == 0) {
        shared->users++;
        *out = shared;
    }
    pthread_mutex_unlock(&opening);
    return rc;
}

void device_close(struct cuda_device *device)
{
    pthread_mutex_lock(&opening);
    if (--device->users == 0) {
        release(device);
        shared = NULL;
    }
    pthread_mutex_unlock(&opening);
}
