/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Ways to go on after a lost rank, with NCCL alone. Three processes share a GPU; rank 1 is killed
 * while the others wait for it in a sum. For each way it prints the milliseconds from that death to
 * a new communicator, to its first sum, and to the end of the old one: the slowest rank's.
 *
 *   NCCL_MULTI_RANK_GPU_ENABLE=1 FLEET_NCCL_LIBRARY=FILE bench_nccl [WAY…]
 *
 *   fresh    abort, then a communicator of the two that are left
 *   beside   the same, while a thread aborts the old one
 *   shrink   ncclCommShrink() with NCCL_SHRINK_ABORT
 *   revoke   ncclCommRevoke(), then ncclCommShrink()
 *   spare    a communicator of the two that was prepared before
 *   rejoin   as fresh, of the two and a new process; from the moment that this one is ready
 *   grow     as shrink, then ncclCommGrow() by a new process; from the moment that it is ready
 *
 * A way that fails, or takes longer than BENCH_NCCL_LIMIT_MS (15 s without it), "DID NOT END". Sums
 * are checked.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cuda/nccl_api.h"

#define WORLD    3
#define VICTIM   1
#define NEWCOMER 3 /* the number of its process; it becomes rank 2 */
#define COUNT    1024
#define LIMIT_MS 15000.0
#define LOOK_NS  200000

struct functions {
#define MEMBER(result, name, parameters) result(*name) parameters;
    NCCL_FUNCTIONS(MEMBER)
    NCCL_NEW_FUNCTIONS(MEMBER)
#undef MEMBER
};

enum step {
    FIRST,
    SPARE,
    LATER,
    STEPS
};

/* Between the processes. */
struct shared {
    ncclUniqueId ids[STEPS];
    atomic_bool has_id[STEPS];
    atomic_int here; /* ranks that wait in the last sum */
    atomic_bool is_lost, is_newcomer_ready;
    double start_ms; /* from which times count */
    double made_ms[WORLD + 1], summed_ms[WORLD + 1], freed_ms[WORLD + 1];
};

static struct functions nccl;
static struct shared *shared;
static cudaStream_t stream;
static float *device, *host;
static int process; /* 0 … WORLD - 1, NEWCOMER */

static double now_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void look_later(void)
{
    (void)nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
}

static void fail(const char *what, const char *why)
{
    (void)fprintf(stderr, "process %d: %s: %s\n", process, what, why);
    _exit(1);
}

static void check_cuda(cudaError_t status, const char *what)
{
    if (status != cudaSuccess)
        fail(what, cudaGetErrorString(status));
}

/* ---- NCCL ------------------------------------------------------------------------------------ */

static void open_library(void)
{
    const char *name = getenv("FLEET_NCCL_LIBRARY");
    void *file = dlopen(name && name[0] ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL), *found;

    if (!file)
        fail("open NCCL", dlerror());
#define FIND(result, name, parameters) \
    found = dlsym(file, #name);        \
    memcpy(&nccl.name, &found, sizeof(found));
    NCCL_FUNCTIONS(FIND)
    NCCL_NEW_FUNCTIONS(FIND)
#undef FIND
    if (!nccl.ncclCommSplit)
        fail("open NCCL", "it is older than 2.18");
}

static ncclConfig_t config(void)
{
    return (ncclConfig_t){.size = sizeof(ncclConfig_t),
                          .magic = NCCL_API_MAGIC,
                          .version = NCCL_CONFIG_VERSION,
                          .blocking = 0,
                          .cgaClusterSize = NCCL_CONFIG_UNDEF_INT,
                          .minCTAs = NCCL_CONFIG_UNDEF_INT,
                          .maxCTAs = NCCL_CONFIG_UNDEF_INT,
                          .splitShare = NCCL_CONFIG_UNDEF_INT};
}

static void check(ncclResult_t result, const char *what)
{
    if (result != ncclSuccess && result != ncclInProgress)
        fail(what, nccl.ncclGetErrorString(result));
}

/* Wait until what was asked of `comm` has happened. */
static void settle(ncclComm_t comm, const char *what)
{
    ncclResult_t state = ncclInProgress;

    while (state == ncclInProgress) {
        check(nccl.ncclCommGetAsyncError(comm, &state), what);
        check(state, what);
        if (state == ncclInProgress)
            look_later();
    }
}

static ncclUniqueId id_of(enum step step, bool makes)
{
    if (makes) {
        check(nccl.ncclGetUniqueId(&shared->ids[step]), "make an id");
        atomic_store(&shared->has_id[step], true);
    }
    while (!atomic_load(&shared->has_id[step]))
        look_later();
    return shared->ids[step];
}

static ncclComm_t make(enum step step, int ranks, int rank)
{
    ncclUniqueId id = id_of(step, rank == 0);
    ncclConfig_t settings = config();
    ncclComm_t comm = NULL;

    check(nccl.ncclCommInitRankConfig(&comm, ranks, id, rank, &settings), "make a communicator");
    settle(comm, "make a communicator");
    return comm;
}

static void start_sum(ncclComm_t comm)
{
    for (int i = 0; i < COUNT; i++)
        host[i] = 1;
    check_cuda(cudaMemcpyAsync(device, host, COUNT * sizeof(*host), cudaMemcpyHostToDevice, stream),
               "copy");
    check(nccl.ncclAllReduce(device, device, COUNT, ncclFloat32, ncclSum, comm, stream), "sum");
    settle(comm, "sum");
}

static void end_sum(int ranks)
{
    check_cuda(cudaMemcpyAsync(host, device, COUNT * sizeof(*host), cudaMemcpyDeviceToHost, stream),
               "copy");
    check_cuda(cudaStreamSynchronize(stream), "wait for a sum");
    for (int i = 0; i < COUNT; i++)
        if (host[i] != (float)ranks)
            fail("sum", "a wrong result");
}

static void sum(ncclComm_t comm, int ranks)
{
    start_sum(comm);
    end_sum(ranks);
}

/* ---- ways ------------------------------------------------------------------------------------ */

struct state {
    ncclComm_t old, spare;
    pthread_t thread;
    int rank; /* among those that are left */
};

static void *run_abort(void *argument)
{
    const struct state *s = argument;

    (void)nccl.ncclCommAbort(s->old);
    shared->freed_ms[process] = now_ms();
    return NULL;
}

/* The first sum of the new communicator, then its end. */
static void use(ncclComm_t comm, int ranks)
{
    shared->made_ms[process] = now_ms();
    sum(comm, ranks);
    shared->summed_ms[process] = now_ms();
}

static void go_on_fresh(struct state *s)
{
    ncclComm_t comm;

    (void)run_abort(s);
    comm = make(LATER, WORLD - 1, s->rank);
    use(comm, WORLD - 1);
    (void)nccl.ncclCommAbort(comm);
}

static void go_on_beside(struct state *s)
{
    ncclComm_t comm;

    (void)pthread_create(&s->thread, NULL, run_abort, s);
    comm = make(LATER, WORLD - 1, s->rank);
    use(comm, WORLD - 1);
    (void)pthread_join(s->thread, NULL);
    (void)nccl.ncclCommAbort(comm);
}

static ncclComm_t shrink(const struct state *s, int flags)
{
    ncclConfig_t settings = config();
    ncclComm_t comm = NULL;
    int excluded = VICTIM;

    if (!nccl.ncclCommShrink)
        fail("shrink", "the library has no ncclCommShrink");
    check(nccl.ncclCommShrink(s->old, &excluded, 1, &comm, &settings, flags), "shrink");
    settle(s->old, "shrink, the old one");
    settle(comm, "shrink");
    return comm;
}

static void go_on_shrunk(struct state *s)
{
    ncclComm_t comm = shrink(s, NCCL_SHRINK_ABORT);

    use(comm, WORLD - 1);
    (void)run_abort(s);
    (void)nccl.ncclCommAbort(comm);
}

static void go_on_revoked(struct state *s)
{
    ncclComm_t comm;

    if (!nccl.ncclCommRevoke)
        fail("revoke", "the library has no ncclCommRevoke");
    check(nccl.ncclCommRevoke(s->old, 0), "revoke");
    settle(s->old, "revoke");
    comm = shrink(s, 0);
    use(comm, WORLD - 1);
    (void)run_abort(s);
    (void)nccl.ncclCommAbort(comm);
}

static void go_on_spare(struct state *s)
{
    (void)pthread_create(&s->thread, NULL, run_abort, s);
    use(s->spare, WORLD - 1);
    (void)pthread_join(s->thread, NULL);
    (void)nccl.ncclCommAbort(s->spare);
}

static void wait_for_newcomer(void)
{
    while (!atomic_load(&shared->is_newcomer_ready))
        look_later();
}

static void go_on_rejoined(struct state *s)
{
    ncclComm_t comm;

    (void)run_abort(s);
    wait_for_newcomer();
    comm = make(LATER, WORLD, s->rank);
    use(comm, WORLD);
    (void)nccl.ncclCommAbort(comm);
}

static ncclComm_t grow(ncclComm_t comm, const ncclUniqueId *id, int rank)
{
    ncclConfig_t settings = config();
    ncclComm_t grown = NULL;

    check(nccl.ncclCommGrow(comm, WORLD, id, rank, &grown, &settings), "grow");
    if (comm)
        settle(comm, "grow, the old one");
    settle(grown, "grow");
    return grown;
}

static void go_on_grown(struct state *s)
{
    ncclComm_t comm = shrink(s, NCCL_SHRINK_ABORT), grown;

    if (!nccl.ncclCommGrow || !nccl.ncclCommGetUniqueId)
        fail("grow", "the library has no ncclCommGrow");
    sum(comm, WORLD - 1);
    (void)run_abort(s);
    wait_for_newcomer();
    if (s->rank == 0) {
        check(nccl.ncclCommGetUniqueId(comm, &shared->ids[LATER]), "make an id");
        atomic_store(&shared->has_id[LATER], true);
    }
    grown = grow(comm, s->rank == 0 ? &shared->ids[LATER] : NULL, -1);
    use(grown, WORLD);
    (void)nccl.ncclCommAbort(comm);
    (void)nccl.ncclCommAbort(grown);
}

static const struct way {
    const char *name;
    void (*go_on)(struct state *s);
    bool has_newcomer, grows;
} ways[] = {{"fresh", go_on_fresh, false, false},   {"beside", go_on_beside, false, false},
            {"shrink", go_on_shrunk, false, false}, {"revoke", go_on_revoked, false, false},
            {"spare", go_on_spare, false, false},   {"rejoin", go_on_rejoined, true, false},
            {"grow", go_on_grown, true, true}};
#define WAYS (sizeof(ways) / sizeof(ways[0]))

/* ---- processes ------------------------------------------------------------------------------- */

static void open_device(void)
{
    void *memory;

    open_library();
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "make a stream");
    check_cuda(cudaMalloc(&memory, COUNT * sizeof(*device)), "allocate");
    device = memory;
    check_cuda(cudaMallocHost(&memory, COUNT * sizeof(*host)), "allocate");
    host = memory;
}

static void run_rank(const struct way *way)
{
    struct state s = {.rank = process > VICTIM ? process - 1 : process};

    open_device();
    s.old = make(FIRST, WORLD, process);
    sum(s.old, WORLD);
    if (way->go_on == go_on_spare && process != VICTIM) {
        s.spare = make(SPARE, WORLD - 1, s.rank);
        sum(s.spare, WORLD - 1);
    }
    sum(s.old, WORLD);
    if (process == VICTIM) {
        while (atomic_load(&shared->here) < WORLD - 1)
            look_later();
        (void)raise(SIGKILL);
    }
    start_sum(s.old);
    atomic_fetch_add(&shared->here, 1);
    while (!atomic_load(&shared->is_lost))
        look_later();
    way->go_on(&s);
    _exit(0);
}

static void run_newcomer(const struct way *way)
{
    ncclComm_t comm;

    while (!atomic_load(&shared->is_lost))
        look_later();
    open_device();
    check_cuda(cudaStreamSynchronize(stream), "start");
    shared->start_ms = now_ms();
    atomic_store(&shared->is_newcomer_ready, true);
    if (way->grows) {
        while (!atomic_load(&shared->has_id[LATER]))
            look_later();
        comm = grow(NULL, &shared->ids[LATER], WORLD - 1);
    } else {
        comm = make(LATER, WORLD, WORLD - 1);
    }
    use(comm, WORLD);
    (void)nccl.ncclCommAbort(comm);
    _exit(0);
}

static pid_t start(const struct way *way, int number)
{
    pid_t child = fork();

    if (child != 0)
        return child;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    process = number;
    if (number == NEWCOMER)
        run_newcomer(way);
    run_rank(way);
    return 0;
}

static double latest(const double *times)
{
    double last = 0;

    for (int i = 0; i <= WORLD; i++)
        last = times[i] > last ? times[i] : last;
    return last > 0 ? last - shared->start_ms : -1;
}

static double limit_ms(void)
{
    const char *text = getenv("BENCH_NCCL_LIMIT_MS");
    double given = text ? strtod(text, NULL) : 0;

    return given > 0 ? given : LIMIT_MS;
}

static bool wait_for(pid_t *children, int count)
{
    double end_ms = now_ms() + limit_ms();
    bool is_good = true;
    int left = 0, status;

    for (int i = 0; i < count; i++)
        left += children[i] > 0;
    while (left > 0 && now_ms() < end_ms) {
        for (int i = 0; i < count; i++)
            if (children[i] > 0 && waitpid(children[i], &status, WNOHANG) == children[i]) {
                children[i] = 0;
                left--;
                is_good &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
                if (!is_good)
                    return false;
            }
        look_later();
    }
    return left == 0 && is_good;
}

static void measure(const struct way *way)
{
    int count = way->has_newcomer ? WORLD + 1 : WORLD;
    pid_t children[WORLD + 1] = {0};
    bool is_good = true;

    memset(shared, 0, sizeof(*shared));
    for (int i = 0; i < count; i++)
        children[i] = start(way, i);
    is_good = wait_for(&children[VICTIM], 1) || children[VICTIM] == 0; /* it dies by a signal */
    if (is_good) {
        shared->start_ms = now_ms();
        atomic_store(&shared->is_lost, true);
        is_good = wait_for(children, count);
    }
    for (int i = 0; i < count; i++)
        if (children[i] > 0) {
            (void)kill(children[i], SIGKILL);
            (void)waitpid(children[i], NULL, 0);
        }
    printf("%-8s made %7.1f ms, summed %7.1f ms, the old one ended %7.1f ms%s\n", way->name,
           latest(shared->made_ms), latest(shared->summed_ms), latest(shared->freed_ms),
           is_good ? "" : "  DID NOT END");
    (void)fflush(stdout);
}

int main(int argc, char **argv)
{
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 1;
    for (size_t i = 0; i < WAYS; i++) {
        bool is_wanted = argc == 1;
        for (int a = 1; a < argc; a++)
            is_wanted = is_wanted || strcmp(argv[a], ways[i].name) == 0;
        if (is_wanted)
            measure(&ways[i]);
    }
    return 0;
}
