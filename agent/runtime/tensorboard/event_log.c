/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/tensorboard/event_log.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/memory.h"

#define PREFIX      "events.out.tfevents."
#define SUFFIX      ".fleetjob"
#define DIGITS      10 /* of the seconds in a name */
#define TAGS_MAX    256
#define TAG_SIZE    64 /* with the '\0'; the trainer writes no longer ones */
#define FILES_MAX   100000
#define READ_SIZE   (1 << 16)
#define HEADER_SIZE 12 /* of a frame, before the payload */
#define HOST_SIZE   64
#define BUFFER_SIZE 4096 /* an event of all our curves */

struct tag {
    char name[TAG_SIZE];
    int64_t newest;
};

struct event_log {
    char *folder, *job; /* job: as in a file's name */
    char *name;         /* of our file, NULL = none was begun */
    int fd;             /* of it, -1 = closed */
    off_t size;         /* of it */
    int64_t step;       /* training goes on after this one */
    bool is_started;    /* event_log_resume() was called */
    bool is_resumed;    /* the folder was cut back to `step` */
    bool has_history;   /* earlier events exist: the log says where this run goes on */
    int64_t seconds;    /* of the newest file's name */
    struct tag tags[TAGS_MAX];
    int tag_count;
    struct fleet_strbuf buffer; /* of events on their way out; kept */
};

/* Letters that a part of a file's name may hold: no dot, which separates the parts. */
static char *name_part(const char *text)
{
    char *copy = strdup(text[0] ? text : "job");

    fleet_assert(copy);
    for (char *c = copy; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '-')
            *c = '_';
    return copy;
}

struct event_log *event_log_new(const char *folder, const char *job)
{
    struct event_log *log = calloc(1, sizeof(*log));

    fleet_assert(log);
    log->folder = strdup(folder);
    log->job = name_part(job);
    log->fd = -1;
    fleet_assert(log->folder);
    fleet_strbuf_reserve(&log->buffer, BUFFER_SIZE);
    return log;
}

static void close_file(struct event_log *log)
{
    if (log->fd >= 0)
        (void)close(log->fd);
    log->fd = -1;
    free(log->name);
    log->name = NULL;
}

void event_log_free(struct event_log *log)
{
    if (!log)
        return;
    close_file(log);
    fleet_strbuf_release(&log->buffer);
    free(log->folder);
    free(log->job);
    free(log);
}

/* ---- tags ------------------------------------------------------------------------------------ */

static struct tag *find_tag(const struct event_log *log, const char *name, size_t size)
{
    for (int i = 0; i < log->tag_count; i++)
        if (strlen(log->tags[i].name) == size && memcmp(log->tags[i].name, name, size) == 0)
            return (struct tag *)&log->tags[i];
    return NULL;
}

static int64_t newest_of(const struct event_log *log, const struct event_scalar *scalar)
{
    const struct tag *tag = find_tag(log, scalar->tag, scalar->tag_size);

    return tag ? tag->newest : 0;
}

static void note_tag(struct event_log *log, const struct event_scalar *scalar, int64_t step)
{
    struct tag *tag = find_tag(log, scalar->tag, scalar->tag_size);

    if (!tag) {
        if (log->tag_count == TAGS_MAX || scalar->tag_size >= TAG_SIZE)
            return;
        tag = &log->tags[log->tag_count++];
        tag->newest = 0;
        memcpy(tag->name, scalar->tag, scalar->tag_size);
        tag->name[scalar->tag_size] = '\0';
    }
    tag->newest = step > tag->newest ? step : tag->newest;
}

int64_t event_log_newest(const struct event_log *log, const char *tag)
{
    struct event_scalar scalar = {.tag = tag, .tag_size = strlen(tag)};

    return newest_of(log, &scalar);
}

static int64_t newest_step(const struct event_log *log)
{
    int64_t newest = 0;

    for (int i = 0; i < log->tag_count; i++)
        newest = log->tags[i].newest > newest ? log->tags[i].newest : newest;
    return newest;
}

/* ---- what is there --------------------------------------------------------------------------- */

/* Seconds in the name of one of this job's files; -1 for any other file. */
static int64_t seconds_of(const struct event_log *log, const char *name)
{
    size_t size = strlen(name), prefix = strlen(PREFIX), suffix = strlen(SUFFIX);
    size_t job = strlen(log->job);
    const char *rest = name + prefix + DIGITS + 1;

    if (size < prefix + DIGITS + 1 + job + 1 + suffix || strncmp(name, PREFIX, prefix) != 0 ||
        strspn(name + prefix, "0123456789") != DIGITS || rest[-1] != '.' ||
        strncmp(rest, log->job, job) != 0 || rest[job] != '.' ||
        strcmp(name + size - suffix, SUFFIX) != 0)
        return -1;
    return strtoll(name + prefix, NULL, 10);
}

struct names {
    char **items; /* ascending */
    int count;
};

static void names_release(struct names *names)
{
    for (int i = 0; i < names->count; i++)
        free(names->items[i]);
    free(names->items);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int list_files(struct event_log *log, struct names *out, struct fleet_error *err)
{
    DIR *folder = opendir(log->folder);
    struct dirent *entry;

    if (!folder)
        return fleet_error(err, -errno, "%s: %s", log->folder, strerror(errno));
    while ((entry = readdir(folder)) && out->count < FILES_MAX) {
        int64_t seconds = seconds_of(log, entry->d_name);
        if (seconds < 0)
            continue;
        log->seconds = seconds > log->seconds ? seconds : log->seconds;
        out->items = fleet_grow(out->items, (size_t)out->count, sizeof(*out->items));
        out->items[out->count] = fleet_dup_text(entry->d_name);
        out->count++;
    }
    (void)closedir(folder);
    if (out->count > 0)
        qsort(out->items, (size_t)out->count, sizeof(*out->items), compare_names);
    return 0;
}

/* A file that is read event by event. */
struct reader {
    int fd;
    uint8_t *bytes; /* [begin, end) are read and not yet used */
    size_t begin, end, capacity;
    off_t offset; /* of `begin` in the file */
};

/* More bytes; false at the end of the file (or what cannot be read). */
static bool read_more(struct reader *reader)
{
    ssize_t got;

    if (reader->begin > 0) {
        memmove(reader->bytes, reader->bytes + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->begin = 0;
    }
    if (reader->capacity - reader->end < READ_SIZE) {
        reader->capacity = 2 * reader->capacity + READ_SIZE;
        reader->bytes = realloc(reader->bytes, reader->capacity);
        fleet_assert(reader->bytes);
    }
    do
        got = read(reader->fd, reader->bytes + reader->end, READ_SIZE);
    while (got < 0 && errno == EINTR);
    if (got <= 0)
        return false;
    reader->end += (size_t)got;
    return true;
}

/* The next complete, undamaged event; false if there is none. Its tags are valid until the next
 * call. */
static bool next_event(struct reader *reader, struct event *out, off_t *out_begin)
{
    size_t payload;
    int rc;

    while ((rc = event_frame(reader->bytes + reader->begin, reader->end - reader->begin, &payload,
                             NULL)) == -EAGAIN)
        if (!read_more(reader))
            return false;
    if (rc < 0 || event_decode(reader->bytes + reader->begin + HEADER_SIZE, payload, out, NULL) < 0)
        return false;
    *out_begin = reader->offset;
    reader->begin += payload + EVENT_FRAME_SIZE;
    reader->offset += (off_t)(payload + EVENT_FRAME_SIZE);
    return true;
}

/* The length to which the file is cut, so that it has no event after `step` and no torn one. Notes
 * the tags before that place. *out_has_scalars: values remain before it. */
static off_t scan(struct event_log *log, int fd, int64_t step, bool *out_has_scalars)
{
    struct reader reader = {.fd = fd};
    off_t end = 0, begin;
    struct event event;

    *out_has_scalars = false;
    while (next_event(&reader, &event, &begin)) {
        if ((event.kind == EVENT_SCALARS || event.kind == EVENT_START) && event.step > step)
            break;
        end = reader.offset;
        for (int i = 0; i < event.scalar_count; i++)
            note_tag(log, &event.scalars[i], event.step);
        *out_has_scalars = *out_has_scalars || event.scalar_count > 0;
    }
    free(reader.bytes);
    return end;
}

static int cut_file(struct event_log *log, const char *name, int64_t step, struct fleet_error *err)
{
    FLEET_AUTO_FREE char *path = fleet_file_join(log->folder, name);
    FLEET_AUTO_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC);
    bool has_scalars;
    off_t end;

    if (fd < 0)
        return fleet_error(err, -errno, "%s: %s", path, strerror(errno));
    end = scan(log, fd, step, &has_scalars);
    if (has_scalars ? end < lseek(fd, 0, SEEK_END) && ftruncate(fd, end) < 0 : unlink(path) < 0)
        return fleet_error(err, -errno, "%s: %s", path, strerror(errno));
    log->has_history = true;
    return 0;
}

static int cut_back(struct event_log *log, const struct names *names, struct fleet_error *err)
{
    for (int i = 0; i < names->count; i++)
        if (cut_file(log, names->items[i], log->step, err) < 0)
            return err->code;
    return 0;
}

/* Is our file still the newest one, and does it end where training goes on? Then no file has to be
 * read. */
static bool is_current(const struct event_log *log, const struct names *names)
{
    return log->fd >= 0 && names->count > 0 &&
           strcmp(names->items[names->count - 1], log->name) == 0 && newest_step(log) <= log->step;
}

static int resume(struct event_log *log, struct fleet_error *err)
{
    struct names names = {0};
    struct fleet_error reason;
    int rc = fleet_file_make_folder(log->folder, &reason);

    if (rc == 0)
        rc = list_files(log, &names, &reason);
    if (rc == 0 && !is_current(log, &names)) {
        close_file(log);
        log->tag_count = 0;
        rc = cut_back(log, &names, &reason);
    }
    names_release(&names);
    log->is_resumed = rc == 0;
    return rc < 0 ? fleet_error(err, rc, "%s", reason.text) : 0;
}

int event_log_resume(struct event_log *log, int64_t step, struct fleet_error *err)
{
    log->step = step;
    log->is_started = true;
    log->is_resumed = false;
    return resume(log, err);
}

/* ---- writing --------------------------------------------------------------------------------- */

static int write_buffer(struct event_log *log, struct fleet_error *err)
{
    ssize_t written;
    int rc;

    do
        written = pwrite(log->fd, log->buffer.text, log->buffer.length, log->size);
    while (written < 0 && errno == EINTR);
    if (written == (ssize_t)log->buffer.length) {
        log->size += written;
        return 0;
    }
    rc = written < 0 ? -errno : -ENOSPC;
    (void)!ftruncate(log->fd, log->size); /* fails: the next reader of the file cuts it */
    return fleet_error(err, rc, "%s/%s: %s", log->folder, log->name, strerror(-rc));
}

static void name_file(struct event_log *log, double wall_s)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf name = {0};
    FLEET_AUTO_FREE char *part = NULL;
    char host[HOST_SIZE] = "host";

    (void)gethostname(host, sizeof(host) - 1);
    part = name_part(host);
    log->seconds = (int64_t)wall_s > log->seconds ? (int64_t)wall_s : log->seconds + 1;
    fleet_strbuf_appendf(&name, PREFIX "%0*lld.%s.%s.%ld" SUFFIX, DIGITS, (long long)log->seconds,
                         log->job, part, (long)getpid());
    log->name = fleet_strbuf_take(&name);
}

/* A new file with its first events. */
static int begin_file(struct event_log *log, double wall_s, struct fleet_error *err)
{
    struct event event = {.kind = EVENT_VERSION, .wall_s = wall_s};
    FLEET_AUTO_FREE char *path = NULL;
    int rc;

    name_file(log, wall_s);
    path = fleet_file_join(log->folder, log->name);
    log->size = 0;
    log->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (log->fd < 0) {
        rc = fleet_error(err, -errno, "%s: %s", path, strerror(errno));
        close_file(log);
        return rc;
    }
    fleet_strbuf_clear(&log->buffer);
    event_append(&log->buffer, &event);
    if (log->has_history) {
        event = (struct event){.kind = EVENT_START, .wall_s = wall_s, .step = newest_step(log) + 1};
        event_append(&log->buffer, &event);
    }
    rc = write_buffer(log, err);
    if (rc < 0) {
        (void)unlink(path);
        close_file(log);
    }
    return rc;
}

int event_log_append(struct event_log *log, int64_t step, double wall_s,
                     const struct event_scalar *scalars, int count, struct fleet_error *err)
{
    struct event event = {.kind = EVENT_SCALARS, .wall_s = wall_s, .step = step};
    struct fleet_error reason;
    int rc = 0;

    fleet_assert(log->is_started);
    if (!log->is_resumed)
        rc = resume(log, &reason);
    for (int i = 0; i < count && event.scalar_count < EVENT_SCALARS_MAX; i++)
        if (newest_of(log, &scalars[i]) < step)
            event.scalars[event.scalar_count++] = scalars[i];
    if (rc == 0 && event.scalar_count == 0)
        return 0;
    if (rc == 0 && log->fd < 0)
        rc = begin_file(log, wall_s, &reason);
    if (rc < 0)
        return fleet_error(err, rc, "%s", reason.text);
    fleet_strbuf_clear(&log->buffer);
    event_append(&log->buffer, &event);
    rc = write_buffer(log, err);
    for (int i = 0; i < event.scalar_count && rc == 0; i++)
        note_tag(log, &event.scalars[i], step);
    return rc;
}
