/* SPDX-License-Identifier: Apache-2.0 */

/*
 * All facts about the other process come from /proc, and it may execute another program between two
 * reads. So a fact counts only if the program is still the same afterwards.
 */
#include "agent/entrypoint/check.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libfleet/api/wellknown.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"

#define POLL_MS         5
#define HEADERS_MAX     64 /* program headers that are looked at */
#define ENVIRONMENT_MAX (8u << 20)
#define MAPS_MAX        (16u << 20)
#define COMMAND_MAX     180 /* bytes of a command line in a message of at most MESSAGE_REASON_MAX */

static void path_of(int pid, const char *file, char path[64])
{
    (void)snprintf(path, 64, "/proc/%d/%s", pid, file);
}

static int read_file(int pid, const char *file, size_t size_max, char **out, size_t *out_size)
{
    struct fleet_error err;
    char path[64];

    path_of(pid, file, path);
    return fleet_file_read(path, size_max, out, out_size, &err);
}

/* ---- its program ----------------------------------------------------------------------------- */

/* The file that the process executes; -errno. */
static int program_of(int pid, struct stat *out)
{
    char path[64];

    path_of(pid, "exe", path);
    return stat(path, out) < 0 ? -errno : 0;
}

static bool is_same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* Of a program that has changed its user (by gosu) only the command line can be read. */
static bool has_words_of_agent(int pid)
{
    FLEET_AUTO_FREE char *line = NULL;
    char own[4096];
    size_t size = 0;
    ssize_t length = readlink("/proc/self/exe", own, sizeof(own) - 1);

    own[length > 0 ? length : 0] = '\0';
    return read_file(pid, "cmdline", ENVIRONMENT_MAX, &line, &size) == 0 &&
           size > strlen(own) + 3 && strcmp(line, own) == 0 &&
           strcmp(line + strlen(own) + 1, "--") == 0;
}

/* Has the process the environment of the ENTRYPOINT? Before that it is the container runtime's own
 * program. */
static bool is_marked(int pid)
{
    static const char name[] = WELLKNOWN_ENV_AGENT "=";
    FLEET_AUTO_FREE char *environment = NULL;
    size_t size;

    if (read_file(pid, "environ", ENVIRONMENT_MAX, &environment, &size) < 0)
        return false;
    for (const char *entry = environment; entry < environment + size; entry += strlen(entry) + 1)
        if (strncmp(entry, name, sizeof(name) - 1) == 0)
            return true;
    return false;
}

/* Is the program a loader itself (`ENTRYPOINT [/lib/ld-musl-x86_64.so.1, /app]`)? A loader has no
 * loader. */
static bool is_loader(int pid)
{
    char path[64], target[4096];
    const char *name;
    ssize_t size;

    path_of(pid, "exe", path);
    size = readlink(path, target, sizeof(target) - 1);
    target[size > 0 ? size : 0] = '\0';
    name = strrchr(target, '/');
    return name && (strncmp(name, "/ld-", 4) == 0 || strncmp(name, "/ld.so", 6) == 0 ||
                    strcmp(name, "/libc.so") == 0);
}

static bool has_interpreter(int fd, const Elf64_Ehdr *header)
{
    for (int i = 0; i < header->e_phnum && i < HEADERS_MAX; i++) {
        Elf64_Phdr program;
        off_t at = (off_t)(header->e_phoff + (Elf64_Off)i * header->e_phentsize);
        if (pread(fd, &program, sizeof(program), at) == sizeof(program) &&
            program.p_type == PT_INTERP)
            return true;
    }
    return false;
}

static bool read_header(const char *path, int *out_fd, Elf64_Ehdr *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);

    *out_fd = fd;
    return fd >= 0 && pread(fd, out, sizeof(*out), 0) == sizeof(*out);
}

static enum entrypoint_state judge_program(int pid)
{
    FLEET_AUTO_CLOSE int fd = -1, own_fd = -1;
    Elf64_Ehdr header, own;
    char path[64];

    path_of(pid, "exe", path);
    if (!read_header("/proc/self/exe", &own_fd, &own) || !read_header(path, &fd, &header))
        return ENTRYPOINT_STARTING; /* it may be executed but not read: wait and see */
    if (header.e_ident[EI_CLASS] != own.e_ident[EI_CLASS] || header.e_machine != own.e_machine)
        return ENTRYPOINT_OTHER_MACHINE;
    return has_interpreter(fd, &header) || is_loader(pid) ? ENTRYPOINT_STARTING : ENTRYPOINT_STATIC;
}

/* Does the loader of this program ignore variables (set-user-ID, capabilities)? */
static bool is_secure(int pid)
{
    FLEET_AUTO_FREE char *text = NULL;
    size_t size;

    if (read_file(pid, "auxv", 1 << 16, &text, &size) < 0)
        return false;
    for (size_t at = 0; at + sizeof(Elf64_auxv_t) <= size; at += sizeof(Elf64_auxv_t)) {
        Elf64_auxv_t entry;
        memcpy(&entry, text + at, sizeof(entry));
        if (entry.a_type == AT_SECURE)
            return entry.a_un.a_val != 0;
    }
    return false;
}

enum entrypoint_state entrypoint_look(int pid)
{
    struct stat own, before, after;
    enum entrypoint_state state;
    int rc = program_of(pid, &before);

    if (rc == -ENOENT || rc == -ESRCH)
        return ENTRYPOINT_GONE;
    if (rc < 0)
        return has_words_of_agent(pid) ? ENTRYPOINT_AGENT : ENTRYPOINT_STARTING;
    if (program_of(getpid(), &own) < 0)
        return ENTRYPOINT_STARTING;
    if (is_same_file(&before, &own))
        return ENTRYPOINT_AGENT;
    if (!is_marked(pid))
        return ENTRYPOINT_STARTING;
    state = judge_program(pid);
    if (state == ENTRYPOINT_STARTING && is_secure(pid))
        state = ENTRYPOINT_PRIVILEGED;
    if (program_of(pid, &after) < 0 || !is_same_file(&before, &after))
        return ENTRYPOINT_STARTING;
    return state;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static bool is_preloaded(int pid)
{
    FLEET_AUTO_FREE char *maps = NULL;
    size_t size;

    return read_file(pid, "maps", MAPS_MAX, &maps, &size) == 0 &&
           strstr(maps, "/" WELLKNOWN_PRELOAD_LIBRARY);
}

/* A program that we may not inspect has more rights than we have. */
static bool is_hidden(int pid)
{
    struct stat program;
    int rc = program_of(pid, &program);

    return rc == -EACCES || rc == -EPERM;
}

enum entrypoint_state entrypoint_wait(int pid, double confirm_ms)
{
    const struct timespec pause = {.tv_nsec = POLL_MS * 1000000};
    double now_ms = fleet_monotonic_ms(), until_ms = now_ms + ENTRYPOINT_PATIENCE_MS;
    double since_ms = now_ms; /* the same process was in `before` */
    enum entrypoint_state state, before = ENTRYPOINT_STARTING;

    for (;;) {
        state = entrypoint_look(pid);
        now_ms = fleet_monotonic_ms();
        if (state < ENTRYPOINT_STARTING)
            return state;
        since_ms = state == before ? since_ms : now_ms;
        before = state;
        if (state > ENTRYPOINT_STARTING && now_ms - since_ms >= confirm_ms)
            return state;
        /* Once the library is loaded, the rest of the program may take its time. */
        if (state == ENTRYPOINT_STARTING && now_ms >= until_ms && !is_preloaded(pid))
            return is_hidden(pid) ? ENTRYPOINT_PRIVILEGED : ENTRYPOINT_IGNORES;
        (void)nanosleep(&pause, NULL);
    }
}

/* ---- what to say ----------------------------------------------------------------------------- */

static const char *reason_of(enum entrypoint_state state)
{
    switch (state) {
    case ENTRYPOINT_STATIC:
        return "is a static program, which the agent cannot take the place of";
    case ENTRYPOINT_OTHER_MACHINE:
        return "is a program for another architecture (or of 32 bits), which the agent cannot take "
               "the place of";
    case ENTRYPOINT_PRIVILEGED:
        return "runs with rights of its own (setuid, setgid, file capabilities), so the agent "
               "cannot take its place";
    default:
        return "has not loaded the agent's library, so the agent cannot take its place";
    }
}

/* The number of strings in a row. */
static int count_of(const char *line, size_t size)
{
    int count = 0;

    for (size_t at = 0; at < size; at += strlen(line + at) + 1)
        count++;
    return count;
}

/* The command line without its last `arguments` as a JSON list, cut if it is long. False if it is
 * not known. */
static bool append_command(int pid, int arguments, struct fleet_strbuf *out)
{
    FLEET_AUTO_FREE char *line = NULL;
    size_t size = 0, at = 0;
    int count;

    if (read_file(pid, "cmdline", ENVIRONMENT_MAX, &line, &size) < 0 || size == 0)
        return false;
    count = count_of(line, size);
    count = count > arguments ? count - arguments : count;
    fleet_strbuf_append_char(out, '[');
    for (int i = 0; i < count; at += strlen(line + at) + 1, i++) {
        FLEET_AUTO_STRBUF struct fleet_strbuf item = {0};
        fleet_json_append_string(&item, line + at);
        fleet_strbuf_append(out, i > 0 ? ", " : "");
        if (out->length + item.length > COMMAND_MAX) {
            fleet_strbuf_append(out, "…");
            break;
        }
        fleet_strbuf_append(out, item.text);
    }
    fleet_strbuf_append_char(out, ']');
    return true;
}

void entrypoint_explain(enum entrypoint_state state, int pid, int arguments,
                        struct fleet_strbuf *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf command = {0};

    fleet_strbuf_appendf(out,
                         "spec.worker.template.spec.containers[0].command: required for this "
                         "image: its ENTRYPOINT %s; set command to what the image starts",
                         reason_of(state));
    if (append_command(pid, arguments, &command))
        fleet_strbuf_appendf(out, ": %s", command.text);
    if (arguments > 0)
        fleet_strbuf_append(out, "; args stay as they are");
}

/* ---- the end --------------------------------------------------------------------------------- */

void entrypoint_stop(int pid)
{
    static const __rlimit_resource_t limits[] = {RLIMIT_FSIZE, RLIMIT_NOFILE, RLIMIT_NPROC,
                                                 RLIMIT_AS, RLIMIT_CPU};
    const struct rlimit none = {0, 0};

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        (void)prlimit(pid, limits[i], &none, NULL);
    (void)kill(pid, SIGTERM);
    (void)kill(pid, SIGKILL);
}
