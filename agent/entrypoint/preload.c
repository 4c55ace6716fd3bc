/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fleetjob-preload.so: hands the container over to the agent, before the program of its ENTRYPOINT
 * has begun.
 *
 * It needs no C library and does not touch the one that is loaded beside it. glibc passes the
 * command line to constructors and musl does not. So command line and environment are read from
 * /proc, exactly as the kernel got them: an argument may be empty, and there may be megabytes of
 * them.
 *
 * It does nothing in the agent itself and in any process that is not the container's first one (a
 * probe, a hook, `kubectl exec`).
 */
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h> /* only numbers */

#include "agent/entrypoint/entrypoint.h"
#include "agent/entrypoint/first_process.h"
#include "agent/entrypoint/raw.h"
#include "libfleet/api/wellknown.h"

#define BYTES_FIRST 65536 /* grows as needed */

struct text {
    char *bytes; /* NUL-terminated strings, one behind the other */
    size_t size;
};

static void *allocate(size_t size)
{
    /* mmap() has six arguments, the last is zero */
    long at =
        raw_call(SYS_mmap, 0, (long)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);

    return at < 0 && at > -4096 ? NULL : (void *)at; /* NOLINT(performance-no-int-to-ptr) */
}

static void *grow(void *old, size_t old_size, size_t size)
{
    long at =
        raw_call(SYS_mremap, (long)(intptr_t)old, (long)old_size, (long)size, MREMAP_MAYMOVE, 0);

    return at < 0 && at > -4096 ? NULL : (void *)at; /* NOLINT(performance-no-int-to-ptr) */
}

static size_t length_of(const char *text)
{
    size_t length = 0;

    while (text[length])
        length++;
    return length;
}

static bool is_same(const char *a, const char *b)
{
    while (*a && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

/* What follows "name=" in the entry, or NULL if it is another variable. */
static const char *value_of(const char *entry, const char *name)
{
    while (*name && *entry == *name) {
        entry++;
        name++;
    }
    return !*name && *entry == '=' ? entry + 1 : NULL;
}

/* End the process: it must not train alone. */
__attribute__((noreturn)) static void give_up(const char *what, long number)
{
    static const char start[] = "fleetjob-preload: cannot start the agent instead of the image's "
                                "ENTRYPOINT: ";
    char digits[24];
    const char *parts[] = {start, what, ": error ", NULL, "\n"};
    size_t at = sizeof(digits) - 1;

    digits[at] = '\0';
    number = number < 0 ? -number : number;
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    parts[3] = digits + at;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        (void)raw_call(SYS_write, 2, (long)(intptr_t)parts[i], (long)length_of(parts[i]), 0, 0);
    for (;;)
        (void)raw_call(SYS_exit_group, ENTRYPOINT_EXIT_CODE, 0, 0, 0, 0);
}

/* The whole file, ended by a NUL. */
static struct text read_all(const char *path)
{
    struct text text = {allocate(BYTES_FIRST), 0};
    size_t room = BYTES_FIRST;
    long fd = raw_open(path, O_RDONLY | O_CLOEXEC), size = 1;

    if (fd < 0)
        give_up(path, fd);
    while (text.bytes && size > 0) {
        if (text.size + 1 >= room) {
            text.bytes = grow(text.bytes, room, 2 * room);
            room *= 2;
            continue;
        }
        size = raw_read(fd, text.bytes + text.size, room - text.size - 1);
        text.size += size > 0 ? (size_t)size : 0;
    }
    raw_close(fd);
    if (!text.bytes || size < 0)
        give_up(path, size);
    if (text.size > 0 && text.bytes[text.size - 1])
        text.size++; /* the room is zero */
    return text;
}

/* A list of pointers to the strings: `extra` free places first, NULL at the end. */
static char **split(const struct text *text, size_t extra, size_t *out_count)
{
    char **list;
    size_t count = extra, used = extra;

    for (size_t i = 0; i < text->size; i++)
        count += text->bytes[i] == '\0';
    list = allocate((count + 1) * sizeof(*list));
    if (!list)
        give_up("memory", 0);
    for (size_t at = 0; at < text->size; at += length_of(text->bytes + at) + 1)
        list[used++] = text->bytes + at;
    list[used] = NULL;
    *out_count = used;
    return list;
}

/* The agent's path, if the variables say that the agent takes over this container. */
static char *take_agent(char **environment, size_t count)
{
    const char *agent = NULL;
    size_t kept = 0;

    for (size_t i = 0; i < count; i++) {
        const char *value = value_of(environment[i], WELLKNOWN_ENV_AGENT);
        if (value)
            agent = value;
        else if (!value_of(environment[i], "LD_PRELOAD"))
            environment[kept++] = environment[i];
    }
    environment[kept] = NULL;
    return (char *)agent;
}

static bool is_agent_itself(const char *agent)
{
    char path[4096];
    long size = raw_call(SYS_readlinkat, AT_FDCWD, (long)(intptr_t) "/proc/self/exe",
                         (long)(intptr_t)path, (long)sizeof(path) - 1, 0);

    if (size <= 0)
        return false;
    path[size] = '\0';
    return is_same(path, agent);
}

static bool is_first(void)
{
    long self = raw_call(SYS_getpid, 0, 0, 0, 0, 0);

    return self == 1 || (raw_call(SYS_getppid, 0, 0, 0, 0, 0) == 0 && first_process_find() == self);
}

__attribute__((constructor)) static void hand_over(void)
{
    struct text command, variables;
    char **arguments, **environment, *agent;
    size_t argument_count, variable_count;

    if (!is_first())
        return;
    variables = read_all("/proc/self/environ");
    environment = split(&variables, 0, &variable_count);
    agent = take_agent(environment, variable_count);
    if (!agent || is_agent_itself(agent))
        return;
    command = read_all("/proc/self/cmdline");
    arguments = split(&command, 2, &argument_count);
    arguments[0] = agent;
    arguments[1] = (char *)"--";
    give_up(agent, raw_call(SYS_execve, (long)(intptr_t)agent, (long)(intptr_t)arguments,
                            (long)(intptr_t)environment, 0, 0));
}
