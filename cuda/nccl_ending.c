/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/nccl_ending.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "libfleet/base/assert.h"

struct ending {
    const struct nccl_library *library;
    ncclComm_t comm;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int running; /* guarded by `lock` */

static void count(int difference)
{
    pthread_mutex_lock(&lock);
    running += difference;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void *run(void *argument)
{
    struct ending *ending = argument;

    (void)ending->library->ncclCommAbort(ending->comm);
    free(ending);
    count(-1);
    return NULL;
}

/* Signals are for the program's own threads. */
static bool start_thread(struct ending *ending)
{
    sigset_t all, old;
    pthread_t thread;
    int code;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    code = pthread_create(&thread, NULL, run, ending);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (code == 0)
        (void)pthread_detach(thread);
    return code == 0;
}

bool nccl_ending_start(const struct nccl_library *library, ncclComm_t comm)
{
    struct ending *ending = malloc(sizeof(*ending));

    fleet_assert(ending != NULL);
    *ending = (struct ending){library, comm};
    count(1);
    if (start_thread(ending))
        return true;
    count(-1);
    free(ending);
    return false;
}

void nccl_ending_wait(void)
{
    pthread_mutex_lock(&lock);
    while (running > 0)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}
