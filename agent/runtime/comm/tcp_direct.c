/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One copy instead of two and a protocol stack: process_vm_readv() between processes of one
 * machine, one user and one view of process ids. Whether that holds is tried, not guessed: each
 * rank shows the others the address of 32 random bytes and those who read them there can read the
 * rest.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/runtime/comm/tcp.h"
#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/digest.h"
#include "libfleet/base/variable.h"

#define PROOF_SIZE    32
#define PEERS_PID_ENV "FLEET_PEERS_PID" /* ancestor of all trainers of this machine */

struct offer {
    uint64_t pid; /* 0: not wanted */
    uint64_t address;
    uint8_t proof[PROOF_SIZE]; /* what stands at `address` */
};

int tcp_direct_read(int pid, uint64_t address, void *to, uint64_t bytes)
{
    while (bytes > 0) {
        struct iovec local = {.iov_base = to, .iov_len = (size_t)bytes};
        struct iovec remote = {.iov_base = (void *)(uintptr_t)address, .iov_len = (size_t)bytes};
        ssize_t moved = process_vm_readv(pid, &local, 1, &remote, 1, 0);
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved <= 0)
            return moved < 0 ? -errno : -EFAULT;
        to = (char *)to + moved;
        address += (uint64_t)moved;
        bytes -= (uint64_t)moved;
    }
    return 0;
}

static bool can_read(const struct offer *offer)
{
    uint8_t seen[PROOF_SIZE];

    return offer->pid != 0 &&
           tcp_direct_read((int)offer->pid, offer->address, seen, sizeof(seen)) == 0 &&
           memcmp(seen, offer->proof, sizeof(seen)) == 0;
}

/*
 * Where Yama restricts reading to ancestors: let one process and its descendants read us. The
 * trainers of a worker descend from its agent, our parent; those of a run on one machine from the
 * launcher, which tells its number. Elsewhere the call fails and changes nothing.
 */
static void let_peers_read(void)
{
    int pid;

    if (fleet_variable_number(PEERS_PID_ENV, 1, INT_MAX, getppid(), &pid, NULL) < 0)
        pid = getppid();
    (void)prctl(PR_SET_PTRACER, (unsigned long)pid, 0, 0, 0);
}

int tcp_direct_negotiate(struct comm *comm, bool is_wanted, int *pids, bool *reads_us,
                         double deadline_ms, struct fleet_error *err)
{
    size_t world = (size_t)comm->world;
    FLEET_AUTO_FREE struct offer *offers = calloc(world, sizeof(*offers));
    FLEET_AUTO_FREE uint8_t *answers = calloc(2 * world, 1);
    uint8_t secret[PROOF_SIZE], *theirs = answers + world;
    struct offer mine = {.address = (uint64_t)(uintptr_t)secret};
    int rc;

    fleet_assert(offers && answers);
    fleet_random_bytes(secret, sizeof(secret));
    memcpy(mine.proof, secret, sizeof(secret));
    if (is_wanted) {
        mine.pid = (uint64_t)getpid();
        let_peers_read();
    }
    rc = comm_all_gather(comm, &mine, sizeof(mine), offers, deadline_ms, err);
    for (size_t r = 0; r < world && rc == 0; r++)
        answers[r] = is_wanted && (int)r != comm->rank && can_read(&offers[r]);
    if (rc == 0)
        rc = comm_all_to_all(comm, answers, 1, theirs, deadline_ms, err);
    for (size_t r = 0; r < world && rc == 0; r++) {
        pids[r] = answers[r] ? (int)offers[r].pid : 0;
        reads_us[r] = (int)r != comm->rank && theirs[r] == 1;
    }
    return rc;
}
