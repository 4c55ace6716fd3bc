/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Communicators of fewer or of more ranks. Ranks meet in a folder of the old communicator. As with
 * NCCL, only quiet communicators shrink unless the flag ends what is in flight, ranks that are
 * added come last, and a communicator of one rank does not grow.
 */
#include <stdio.h>
#include <string.h>

#include "tests/nccl_fake/fake_nccl.h"

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    ncclResult_t result;

    pthread_mutex_lock(&fake_nccl_lock);
    if (flags != 0)
        fake_nccl_die("ncclCommRevoke with flags");
    result = fake_nccl_call(__func__);
    if (result == ncclSuccess) {
        comm->is_revoked = true;
        result = fake_nccl_later(comm);
    }
    pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}

static bool is_excluded(const int *excluded, int count, int rank)
{
    for (int i = 0; i < count; i++)
        if (excluded[i] == rank)
            return true;
    return false;
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int excluded_count, ncclComm_t *made,
                            ncclConfig_t *config, int flags)
{
    ncclResult_t result;
    char path[PATH_SIZE];
    int rank = 0;

    fake_nccl_check_config(config);
    pthread_mutex_lock(&fake_nccl_lock);
    if (flags == NCCL_SHRINK_ABORT)
        comm->is_revoked = true;
    else
        fake_nccl_expect_quiet(comm, "ncclCommShrink");
    if (is_excluded(excluded, excluded_count, comm->rank))
        fake_nccl_die("an excluded rank calls ncclCommShrink");
    result = fake_nccl_call(__func__);
    if (result == ncclSuccess) {
        for (int r = 0; r < comm->rank; r++)
            rank += !is_excluded(excluded, excluded_count, r);
        meeting_path(comm, path, "s-%llu", (unsigned long long)comm->splits++);
        *made = fake_nccl_join(path, comm->ranks - excluded_count, rank);
        result = fake_nccl_later(comm);
    }
    pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}

static void path_of_growth(const struct ncclComm *comm, char path[PATH_SIZE])
{
    meeting_path(comm, path, "m-%llu", (unsigned long long)comm->splits);
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *id)
{
    ncclResult_t result;
    char path[PATH_SIZE];

    pthread_mutex_lock(&fake_nccl_lock);
    result = fake_nccl_call(__func__);
    path_of_growth(comm, path);
    if (strlen(path) >= sizeof(id->internal))
        fake_nccl_die("%s is too long for an id", path);
    memset(id, 0, sizeof(*id));
    memcpy(id->internal, path, strlen(path));
    pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}

ncclResult_t ncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId *id, int rank,
                          ncclComm_t *made, ncclConfig_t *config)
{
    ncclResult_t result;
    char path[PATH_SIZE];

    fake_nccl_check_config(config);
    pthread_mutex_lock(&fake_nccl_lock);
    if (comm ? rank != -1 : !id)
        fake_nccl_die("ncclCommGrow: an old rank has a number, or a new one has no id");
    if (comm)
        fake_nccl_expect_quiet(comm, "ncclCommGrow");
    result = fake_nccl_call(__func__);
    if (result == ncclSuccess && comm && comm->ranks == 1)
        result = ncclInvalidUsage;
    if (result == ncclSuccess) {
        if (comm)
            path_of_growth(comm, path);
        else
            (void)snprintf(path, sizeof(path), "%.127s", id->internal);
        if (comm)
            comm->splits++;
        *made = fake_nccl_join(path, ranks, comm ? comm->rank : rank);
        result = comm ? fake_nccl_later(comm) : ncclInProgress;
    }
    pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}
