/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/join/device.h"

#include "agent/runtime/trainer.h"

int device_use_level(struct trainer *trainer, enum fleet_isa level, struct fleet_error *err)
{
    struct backend *backend = NULL;
    struct executor *executor = NULL;
    int rc;

    if (trainer->device.executor && trainer->generation.level == level)
        return 0;
    rc = trainer->device.kind->create(level, trainer->job.threads, &backend, err);
    if (rc < 0)
        return rc;
    rc = executor_new(&trainer->job.plan.program, &trainer->placement.memory, backend, &executor,
                      err);
    if (rc < 0) {
        backend_free(backend);
        return rc;
    }
    executor_free(trainer->device.executor);
    if (trainer->device.backend)
        backend_free(trainer->device.backend);
    trainer->device.backend = backend;
    trainer->device.executor = executor;
    trainer->generation.level = level;
    return 0;
}

void device_drop_executor(struct trainer *trainer)
{
    executor_free(trainer->device.executor);
    trainer->device.executor = NULL;
}
