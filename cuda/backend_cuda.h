/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDA_BACKEND_CUDA_H
#define CUDA_BACKEND_CUDA_H

/*
 * The back end of one NVIDIA GPU (agent/runtime/backend/backend.h): what libfleet_cuda.so gives to
 * the programs that open it.
 *
 * A process uses one GPU, the first that CUDA_VISIBLE_DEVICES leaves it. All handles share its
 * memory and its streams: two for the queues, one for copies beside them. Kernels, fills, additions
 * and copies from the host are put into the stream of the handle and run later; copies from the
 * host go through pinned memory, so the caller may reuse its own at once. copy_out, narrow, widen
 * and map wait for the stream.
 */

struct CUstream_st;
struct backend;
struct fleet_error;

/* Of the sources that the library was built from: FLEET_VERSION. */
const char *fleet_cuda_version(void);

/* A handle. The first one of a process starts the device. -ENODEV, -ENOTSUP, -EIO, -ENOMEM as in
 * agent/runtime/backend/cuda/cuda_library.h. */
int fleet_cuda_backend(struct backend **out, struct fleet_error *err);

/* The stream of a handle: a cudaStream_t. */
struct CUstream_st *cuda_backend_stream(struct backend *backend);

#endif
