/* SPDX-License-Identifier: Apache-2.0 */

/* Calls that fail on request, and what the device says of itself. */
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cuda_runtime_api.h>

#include "tests/cuda_fake/fake.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long calls, fail_at;
static int fail_code, sticky, last_error;
static const char *once; /* the file that only the first process makes; NULL: all fail */
static bool has_read_environment;

void fake_lock(void)
{
    pthread_mutex_lock(&lock);
}

void fake_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void fake_die(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)fprintf(stderr, "fake CUDA: ");
    (void)vfprintf(stderr, format, arguments);
    (void)fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

long fake_setting(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text && text[0] ? strtol(text, NULL, 10) : otherwise;
}

static void read_environment(void)
{
    const char *text = getenv("FAKE_CUDA_FAIL");
    char *end;

    has_read_environment = true;
    if (!text)
        return;
    fail_at = strtol(text, &end, 10);
    fail_code = *end == ':' ? (int)strtol(end + 1, &end, 10) : cudaErrorUnknown;
    once = *end == ':' ? end + 1 : NULL;
}

void fake_cuda_fail(long call, int code)
{
    fail_at = call;
    fail_code = code;
    sticky = 0;
    last_error = 0;
    has_read_environment = true;
}

long fake_cuda_calls(void)
{
    return calls;
}

void fake_calls_reset(void)
{
    calls = 0;
    sticky = 0;
    last_error = 0;
    fail_at = 0;
}

void fake_calls_break(int code)
{
    sticky = code;
}

int fake_calls_broken(void)
{
    return sticky;
}

static bool is_sticky(int code)
{
    return code != cudaErrorInvalidValue && code != cudaErrorMemoryAllocation &&
           code != cudaErrorNotReady && code != cudaErrorNoDevice &&
           code != cudaErrorInsufficientDriver &&
           (code < cudaErrorStreamCaptureUnsupported || code > cudaErrorStreamCaptureWrongThread);
}

static bool is_first(void)
{
    int fd = once ? open(once, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600) : -1;

    if (fd >= 0)
        (void)close(fd);
    return !once || fd >= 0;
}

int fake_call(const char *name)
{
    (void)name;
    if (!has_read_environment)
        read_environment();
    if (++calls == fail_at && is_first()) {
        if (is_sticky(fail_code))
            sticky = fail_code;
        last_error = fail_code;
        return fail_code;
    }
    if (sticky)
        last_error = sticky;
    return sticky;
}

/* ---- what the device says of itself ---------------------------------------------------------- */

static cudaError_t said(const char *name)
{
    int status;

    fake_lock();
    status = fake_call(name);
    fake_unlock();
    return (cudaError_t)status;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t status = said("cudaGetDeviceCount");

    if (status != cudaSuccess)
        return status;
    if (fake_setting("FAKE_CUDA_DRIVER", 13000) < 13000)
        return cudaErrorInsufficientDriver;
    *count = (int)fake_setting("FAKE_CUDA_DEVICES", 1);
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return said("cudaSetDevice");
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    long capability = fake_setting("FAKE_CUDA_CAPABILITY", 90);
    cudaError_t status = said("cudaDeviceGetAttribute");

    (void)device;
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = (int)(capability / 10);
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = (int)(capability % 10);
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = 2;
        break;
    case cudaDevAttrL2CacheSize:
        *value = 1 << 16;
        break;
    }
    return status;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = (int)fake_setting("FAKE_CUDA_DRIVER", 13000);
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    int status;

    fake_lock();
    status = sticky ? sticky : last_error;
    last_error = 0;
    fake_unlock();
    return (cudaError_t)status;
}

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const char *cudaGetErrorName(cudaError_t error)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].code == error)
            return errors[i].name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t error)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].code == error)
            return errors[i].text;
    return "unrecognized error code";
}
