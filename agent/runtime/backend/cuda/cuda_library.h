/* SPDX-License-Identifier: Apache-2.0 */
#ifndef AGENT_RUNTIME_BACKEND_CUDA_CUDA_LIBRARY_H
#define AGENT_RUNTIME_BACKEND_CUDA_CUDA_LIBRARY_H

/*
 * Opens the back end for NVIDIA GPUs: libfleet_cuda.so (cuda/backend_cuda.h), at run time, so that
 * the same programs run on machines without a GPU. The library is the file that the environment
 * variable FLEET_CUDA_LIBRARY names, else libfleet_cuda.so in the folder of the program. It stays
 * open until the process ends.
 */

struct backend;
struct comm_device_library;
struct fleet_error;

#define CUDA_LIBRARY_ENV  "FLEET_CUDA_LIBRARY"
#define CUDA_LIBRARY_NAME "libfleet_cuda.so"

/*
 * A handle of the process's GPU; all handles of a process share its memory and its queues.
 * -ENOENT: there is no library, or it cannot be opened; the error has the loader's reason.
 * -EPROTO: it belongs to another version of FleetJob.
 * -ENODEV: the machine has no GPU, or none that the library has code for.
 * -ENOTSUP: the driver is missing or too old.
 * -EIO, -ENOMEM: the device does not start.
 */
int cuda_library_backend(struct backend **out, struct fleet_error *err);

/* NCCL, or what the environment names (cuda/comm_library.h). Errors as above; -ENOENT: there is no
 * NCCL, -EINVAL: the file that FLEET_NCCL_LIBRARY names cannot be opened, or FLEET_CUDA_COMM names
 * nothing; -EPROTO: NCCL is too old. */
int cuda_library_collectives(const struct comm_device_library **out, struct fleet_error *err);

#endif
