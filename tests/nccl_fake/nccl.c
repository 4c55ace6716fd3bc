/* SPDX-License-Identifier: Apache-2.0 */

/* The library's functions. The work of a call happens later, when the program polls. One lock
 * guards all communicators; it is not held while work is put into a stream. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/nccl_fake/fake_nccl.h"

#define LATE_MAX 4 /* polls */

struct split {
    struct ncclComm *made; /* NULL: this rank is in no group */
    uint64_t number;
    int color, key;
};

struct choice { /* of a rank, in a file */
    int color, key;
};

pthread_mutex_t fake_nccl_lock = PTHREAD_MUTEX_INITIALIZER;
static int comm_count;
static long calls;
static uint64_t random_state;
static bool is_started;

void fake_nccl_die(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    (void)fprintf(stderr, "fake NCCL: ");
    (void)vfprintf(stderr, format, arguments);
    (void)fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

static long setting(const char *name, long otherwise)
{
    const char *text = getenv(name);

    return text && text[0] ? strtol(text, NULL, 10) : otherwise;
}

uint64_t fake_nccl_draw(void)
{
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* ---- calls that fail on request -------------------------------------------------------------- */

/* True in one process: the one that makes this file. */
static bool make_file(const char *path)
{
    int fd = open(path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);

    if (fd >= 0)
        (void)close(fd);
    return fd >= 0;
}

/* This is arrival `number` of those that go by `path`, counted from 0. */
static bool is_arrival(const char *path, long number)
{
    char file[PATH_SIZE];
    bool is_made = false;
    long at = 0;

    for (; !is_made && at <= number; at++) {
        (void)snprintf(file, sizeof(file), "%s.%ld", path, at);
        is_made = make_file(file);
    }
    return is_made && at == number + 1;
}

/* Is this call of `function` the one that NAME=N[:CODE][:FILE] or NAME=FUNCTION#N[:CODE]:FILE
 * means? */
static bool is_meant(const char *name, const char *function, int *out_code)
{
    const char *text = getenv(name);
    size_t length = strlen(function);
    bool is_named = text && strncmp(text, function, length) == 0 && text[length] == '#';
    char *end;
    long number;

    if (!text || (!is_named && (text[0] < '0' || text[0] > '9')))
        return false;
    number = strtol(is_named ? text + length + 1 : text, &end, 10);
    if (!is_named && number != calls)
        return false;
    if (out_code && *end == ':')
        *out_code = (int)strtol(end + 1, &end, 10);
    if (is_named)
        return *end == ':' && is_arrival(end + 1, number);
    return *end != ':' || make_file(end + 1);
}

/* The lock is held; it is let go by a call that hangs. */
ncclResult_t fake_nccl_call(const char *function)
{
    int code = ncclSystemError;

    if (!is_started)
        random_state = (uint64_t)setting("FAKE_NCCL_SEED", 1);
    is_started = true;
    calls++;
    if (is_meant("FAKE_NCCL_HANG", function, NULL)) {
        pthread_mutex_unlock(&fake_nccl_lock);
        for (;;)
            (void)pause();
    }
    return is_meant("FAKE_NCCL_FAIL", function, &code) ? (ncclResult_t)code : ncclSuccess;
}

/* ---- communicators --------------------------------------------------------------------------- */

static struct ncclComm *comm_new(int ranks, int rank)
{
    struct ncclComm *comm = calloc(1, sizeof(*comm));

    if (!comm || ranks > RANKS_MAX)
        fake_nccl_die("no memory, or %d ranks", ranks);
    comm->ranks = ranks;
    comm->rank = rank;
    comm->users = 1;
    comm_count++;
    return comm;
}

static void number_messages(struct ncclComm *comm)
{
    comm->sent = calloc((size_t)comm->ranks, sizeof(*comm->sent));
    comm->received = calloc((size_t)comm->ranks, sizeof(*comm->received));
    if (!comm->sent || !comm->received)
        fake_nccl_die("no memory");
}

static void drop(struct ncclComm *comm)
{
    if (--comm->users > 0)
        return;
    comm_count--;
    work_free(comm->waiting);
    free(comm->split);
    free(comm->sent);
    free(comm->received);
    free(comm);
}

void fake_nccl_drop(struct ncclComm *comm)
{
    pthread_mutex_lock(&fake_nccl_lock);
    drop(comm);
    pthread_mutex_unlock(&fake_nccl_lock);
}

bool fake_nccl_is_aborted(const struct ncclComm *comm)
{
    bool is_aborted;

    pthread_mutex_lock(&fake_nccl_lock);
    is_aborted = comm->is_aborted || comm->is_revoked;
    pthread_mutex_unlock(&fake_nccl_lock);
    return is_aborted;
}

static uint64_t *next_number(struct ncclComm *comm, const struct work *work)
{
    return work->kind == WORK_SEND      ? &comm->sent[work->peer]
           : work->kind == WORK_RECEIVE ? &comm->received[work->peer]
                                        : &comm->collectives;
}

/* They get their numbers at each launch. */
void fake_nccl_join_graph(struct ncclComm *comm, const struct work *list)
{
    pthread_mutex_lock(&fake_nccl_lock);
    comm->captured++;
    for (; list; list = list->next)
        (*next_number(comm, list))--;
    pthread_mutex_unlock(&fake_nccl_lock);
}

void fake_nccl_leave_graph(struct ncclComm *comm)
{
    pthread_mutex_lock(&fake_nccl_lock);
    comm->captured--;
    pthread_mutex_unlock(&fake_nccl_lock);
}

uint64_t fake_nccl_number(struct ncclComm *comm, const struct work *work)
{
    return (*next_number(comm, work))++;
}

void fake_nccl_launch_again(struct ncclComm *comm, struct work *list)
{
    pthread_mutex_lock(&fake_nccl_lock);
    for (struct work *w = list; w; w = w->next)
        w->number = fake_nccl_number(comm, w);
    comm->users++;
    pthread_mutex_unlock(&fake_nccl_lock);
}

static bool is_busy(const struct ncclComm *comm)
{
    return comm->late > 0 || comm->waiting || !comm->is_joined || comm->split || comm->made_of;
}

void fake_nccl_expect_quiet(const struct ncclComm *comm, const char *name)
{
    if (comm->is_aborted)
        fake_nccl_die("%s of a communicator that was aborted", name);
    if (comm->is_revoked && strcmp(name, "ncclCommShrink") != 0)
        fake_nccl_die("%s of a communicator that was revoked", name);
    if (is_busy(comm))
        fake_nccl_die("%s while the last call is in progress: it was not polled", name);
}

void fake_nccl_check_config(const ncclConfig_t *config)
{
    if (!config || config->magic != NCCL_API_MAGIC || config->blocking != 0)
        fake_nccl_die("a blocking communicator");
}

ncclResult_t fake_nccl_later(struct ncclComm *comm)
{
    comm->late = 1 + (int)(fake_nccl_draw() % LATE_MAX);
    return ncclInProgress;
}

struct ncclComm *fake_nccl_join(const char *folder, int ranks, int rank)
{
    struct ncclComm *comm = comm_new(ranks, rank);
    char path[PATH_SIZE];

    (void)snprintf(comm->folder, sizeof(comm->folder), "%s", folder);
    number_messages(comm);
    meeting_make_folder(comm->folder);
    meeting_path(comm, path, "join-%d", rank);
    if (meeting_exists(path))
        fake_nccl_die("two ranks %d of %d, or an id that was used before", rank, ranks);
    meeting_publish(path, "", 0);
    (void)fake_nccl_later(comm);
    return comm;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = (int)setting("FAKE_NCCL_VERSION", 23203);
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    const char *folder = getenv("FAKE_NCCL_FOLDER");
    struct timespec now;
    ncclResult_t result;

    pthread_mutex_lock(&fake_nccl_lock);
    result = fake_nccl_call(__func__);
    (void)clock_gettime(CLOCK_REALTIME, &now);
    memset(id, 0, sizeof(*id));
    (void)snprintf(id->internal, sizeof(id->internal), "%s/nccl-%d-%ld-%ld",
                   folder ? folder : "/tmp", (int)getpid(), calls, (long)now.tv_nsec);
    pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    char path[PATH_SIZE];
    ncclResult_t result;

    fake_nccl_check_config(config);
    pthread_mutex_lock(&fake_nccl_lock);
    result = fake_nccl_call(__func__);
    if (result == ncclSuccess) {
        (void)snprintf(path, sizeof(path), "%.127s", id.internal);
        *out = fake_nccl_join(path, ranks, rank);
        result = ncclInProgress;
    }
    pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    char path[PATH_SIZE];
    struct choice choice = {color, key};
    ncclResult_t result;

    fake_nccl_check_config(config);
    pthread_mutex_lock(&fake_nccl_lock);
    fake_nccl_expect_quiet(comm, "ncclCommSplit");
    result = fake_nccl_call(__func__);
    if (result == ncclSuccess) {
        struct split *split = calloc(1, sizeof(*split));
        if (!split)
            fake_nccl_die("no memory");
        *split = (struct split){.number = comm->splits++, .color = color, .key = key};
        meeting_path(comm, path, "split-%llu-%d", (unsigned long long)split->number, comm->rank);
        meeting_publish(path, &choice, sizeof(choice));
        comm->split = split;
        if (color != NCCL_SPLIT_NOCOLOR) {
            *out = split->made = comm_new(0, 0);
            split->made->made_of = comm;
        }
        result = fake_nccl_later(comm);
    }
    pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}

/* NCCL waits for the graphs that hold the communicator. */
static bool is_in_graphs(const struct ncclComm *comm)
{
    bool result;

    pthread_mutex_lock(&fake_nccl_lock);
    result = comm->captured > 0;
    pthread_mutex_unlock(&fake_nccl_lock);
    return result;
}

/* An abort takes long: until the file of this setting is there. */
static void wait_to_end(const struct ncclComm *comm)
{
    const char *file = getenv("FAKE_NCCL_ABORT");

    while (is_in_graphs(comm) || (file && access(file, F_OK) != 0))
        (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    ncclResult_t result;

    pthread_mutex_lock(&fake_nccl_lock);
    if (comm->is_aborted)
        fake_nccl_die("a communicator is aborted twice");
    result = fake_nccl_call(__func__);
    comm->is_aborted = true;
    if (comm->split && comm->split->made)
        comm->split->made->made_of = NULL; /* it never gets ready */
    if (comm->made_of)
        comm->made_of->split->made = NULL;
    pthread_mutex_unlock(&fake_nccl_lock);
    wait_to_end(comm); /* its work ends meanwhile */
    fake_nccl_drop(comm);
    return result;
}

/* ---- polling --------------------------------------------------------------------------------- */

static void join(struct ncclComm *comm)
{
    char path[PATH_SIZE];

    if (comm->made_of || comm->folder[0] == '\0')
        return;
    for (int r = 0; r < comm->ranks; r++) {
        meeting_path(comm, path, "join-%d", r);
        if (!meeting_exists(path))
            return;
    }
    comm->is_joined = true;
}

/* Make this rank's group, once all ranks have chosen. */
static void finish_split(struct ncclComm *comm)
{
    struct split *split = comm->split;
    struct ncclComm *made = split->made;
    struct choice theirs;
    char path[PATH_SIZE];
    int ranks = 0, rank = 0;

    for (int r = 0; r < comm->ranks; r++) {
        meeting_path(comm, path, "split-%llu-%d", (unsigned long long)split->number, r);
        if (!meeting_read(path, &theirs, sizeof(theirs)))
            return;
        if (theirs.color != split->color)
            continue;
        ranks++;
        rank += theirs.key < split->key || (theirs.key == split->key && r < comm->rank);
    }
    if (made) {
        made->ranks = ranks;
        made->rank = rank;
        meeting_path(comm, path, "g-%llu-%d", (unsigned long long)split->number, split->color);
        (void)snprintf(made->folder, sizeof(made->folder), "%s", path);
        meeting_make_folder(made->folder);
        number_messages(made);
        made->is_joined = true;
        made->made_of = NULL;
    }
    free(split);
    comm->split = NULL;
}

/* What is still to happen happens now. Returns work for the stream; its communicator has one more
 * user. */
static struct work *go_on(struct ncclComm *comm)
{
    struct work *list = comm->waiting;

    if (comm->late > 0 && --comm->late > 0)
        return NULL;
    if (comm->made_of)
        finish_split(comm->made_of);
    if (comm->split)
        finish_split(comm);
    if (!comm->is_joined)
        join(comm);
    comm->waiting = NULL;
    if (list)
        comm->users++;
    return list;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    struct work *list;
    ncclResult_t result;

    pthread_mutex_lock(&fake_nccl_lock);
    result = fake_nccl_call(__func__);
    list = result == ncclSuccess ? go_on(comm) : NULL;
    *error = result != ncclSuccess ? result : is_busy(comm) ? ncclInProgress : ncclSuccess;
    pthread_mutex_unlock(&fake_nccl_lock);
    if (list)
        work_launch(comm, list);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};

    return result < sizeof(texts) / sizeof(texts[0]) ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}

/* A process that ends in order has freed its communicators. */
__attribute__((destructor)) static void look_for_leaks(void)
{
    if (comm_count > 0)
        fake_nccl_die("%d communicators are not freed", comm_count);
}
