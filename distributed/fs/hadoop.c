/* SPDX-License-Identifier: Apache-2.0 */

/* HDFS by `hadoop fs`. One function runs a command; the others say which. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "distributed/fs/command.h"
#include "distributed/fs/fs.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/strbuf.h"

#define ARGUMENTS_MAX (FLEET_FS_SETTINGS_MAX + 8)
#define ABORTED       134 /* 128 + SIGABRT */

static void pause_ms(int ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000L};

    while (nanosleep(&pause, &pause) != 0 && errno == EINTR)
        continue;
}

/* What `own` points to. */
struct hadoop {
    char *program;
    char *options[FLEET_FS_SETTINGS_MAX]; /* "-Dkey=value" */
    int option_count;
};

static void hadoop_free(struct fleet_fs *fs)
{
    struct hadoop *hadoop = fs->own;

    if (!hadoop)
        return;
    for (int i = 0; i < hadoop->option_count; i++)
        free(hadoop->options[i]);
    free(hadoop->program);
    free(hadoop);
}

int hadoop_open(struct fleet_fs *fs, const char *home, struct fleet_error *err)
{
    struct hadoop *hadoop = calloc(1, sizeof(*hadoop));
    struct fleet_strbuf text = {0};

    home = home ? home : getenv("HADOOP_HOME");
    fs->own = hadoop;
    if (!hadoop)
        return fleet_error(err, -ENOMEM, "out of memory");
    if (!home || !home[0])
        return fleet_error(err, -EINVAL, "HADOOP_HOME is not set, and hadoop_home is NULL");
    for (char **one = fs->settings; *one; one++) {
        fleet_strbuf_appendf(&text, "-D%s", *one);
        hadoop->options[hadoop->option_count++] = fleet_strbuf_take(&text);
    }
    fleet_strbuf_appendf(&text, "%s/bin/hadoop", home);
    hadoop->program = fleet_strbuf_take(&text);
    return 0;
}

/* Is words[i] a path of HDFS? Its "*" would be a pattern. */
static bool is_remote(const char *const words[4], int i)
{
    return i > 0 && words[i][0] != '-' && !(strcmp(words[0], "-put") == 0 && i == 1) &&
           !(strcmp(words[0], "-get") == 0 && i == 2);
}

static char *escape_pattern(const char *path)
{
    struct fleet_strbuf text = {0};

    for (; *path; path++) {
        if (strchr("*?[]{}\\", *path))
            fleet_strbuf_append_char(&text, '\\');
        fleet_strbuf_append_char(&text, *path);
    }
    return fleet_strbuf_take(&text);
}

/* Once. 0 with any exit code. */
static int try_once(const struct fleet_fs *fs, const char *const words[4], size_t output_max,
                    struct command_result *out, struct fleet_error *err)
{
    const struct hadoop *hadoop = fs->own;
    const char *arguments[ARGUMENTS_MAX] = {hadoop->program, "fs"};
    char *paths[4] = {0};
    int count = 2, rc;

    for (int i = 0; i < hadoop->option_count; i++)
        arguments[count++] = hadoop->options[i];
    for (int i = 0; i < 4 && words[i]; i++) {
        if (is_remote(words, i))
            paths[i] = escape_pattern(words[i]);
        arguments[count++] = paths[i] ? paths[i] : words[i];
    }
    rc = command_run(arguments, fs->timeout_ms, output_max, out, err);
    for (int i = 0; i < 4; i++)
        free(paths[i]);
    return rc;
}

static int exit_error(const char *const words[4], const struct command_result *result,
                      struct fleet_error *err)
{
    if (result->exit_code == ABORTED)
        return fleet_error(err, -ECANCELED, "hadoop fs %s %s: aborted", words[0], words[1]);
    return fleet_error(err,
                       strstr(result->error, ": Permission denied")           ? -EACCES
                       : strstr(result->error, ": No such file or directory") ? -ENOENT
                                                                              : -EIO,
                       "hadoop fs %s %s: exit code %d: %s", words[0], words[1], result->exit_code,
                       result->error[0] ? result->error : "it printed no error");
}

/* Until it ends with 0. *result may be NULL. */
static int command(struct fleet_fs *fs, const char *const words[4], size_t output_max,
                   struct command_result *result, struct fleet_error *err)
{
    int rc = 0;

    for (int attempt = 0; attempt < fs->attempts; attempt++) {
        struct command_result one = {0};
        if (attempt > 0)
            pause_ms(fs->pause_ms);
        rc = try_once(fs, words, output_max, &one, err);
        if (rc == 0 && one.exit_code == 0) {
            if (result)
                *result = one;
            else
                command_result_release(&one);
            return 0;
        }
        if (rc == 0)
            rc = exit_error(words, &one, err);
        command_result_release(&one);
        if (rc != -EIO && rc != -ETIMEDOUT) /* trying again would not help */
            break;
    }
    return rc;
}

/*
 * -test: 1 yes (exit code 0), 0 no (1). A server that cannot be reached and a user who may not look
 * are exit code 1, too. Then hadoop prints "test: …", and a program of Java that dies prints the
 * lines of its stack; other lines are warnings.
 */
static bool is_no(const struct command_result *result)
{
    const char *line = result->error + strspn(result->error, " \t");

    return result->exit_code == 1 && strncmp(line, "test: ", 6) != 0 &&
           strncmp(line, "at ", 3) != 0 && strncmp(line, "... ", 4) != 0 &&
           strncmp(line, "Error", 5) != 0 && strncmp(line, "Exception", 9) != 0;
}

static int test(struct fleet_fs *fs, const char *flag, const char *path, struct fleet_error *err)
{
    const char *const words[4] = {"-test", flag, path};
    struct command_result result = {0};
    int rc = 0;

    for (int attempt = 0; attempt < fs->attempts; attempt++) {
        if (attempt > 0)
            pause_ms(fs->pause_ms);
        rc = try_once(fs, words, COMMAND_OUTPUT_MAX, &result, err);
        if (rc == 0 && result.exit_code != 0 && !is_no(&result))
            rc = exit_error(words, &result, err);
        else if (rc == 0)
            rc = result.exit_code == 0;
        command_result_release(&result);
        if (rc >= 0 || (rc != -EIO && rc != -ETIMEDOUT))
            return rc;
    }
    return rc;
}

static int hadoop_kind(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    int rc = test(fs, "-e", path, err);

    if (rc <= 0)
        return rc < 0 ? rc : FS_NOTHING;
    rc = test(fs, "-d", path, err);
    if (rc < 0)
        return rc;
    return rc ? FS_FOLDER : FS_FILE;
}

static int hadoop_look(struct fleet_fs *fs, const char *path, struct fleet_fs_info *out,
                       struct fleet_error *err)
{
    const char *const words[4] = {"-stat", "%b %Y", path};
    struct command_result result;
    unsigned long long bytes = 0;
    char *end = NULL;
    int kind = hadoop_kind(fs, path, err), rc;

    if (kind != FS_FILE)
        return kind;
    rc = command(fs, words, COMMAND_OUTPUT_MAX, &result, err);
    if (rc < 0)
        return rc;
    errno = 0;
    bytes = strtoull(result.output, &end, 10);
    if (errno != 0 || end == result.output || *end != ' ')
        rc = fleet_error(err, -EIO, "hadoop fs -stat %s: it printed no size: %.100s", path,
                         result.output);
    else
        (void)snprintf(out->tag, sizeof(out->tag), "%.*s", (int)strcspn(end + 1, "\n"), end + 1);
    out->bytes = bytes;
    command_result_release(&result);
    return rc < 0 ? rc : FS_FILE;
}

/* "drwxr-xr-x - owner group 0 2020-01-01 00:00 /path/name": seven fields, then the path. */
static int add_line(const char *line, size_t length, struct fleet_fs_names *folders,
                    struct fleet_fs_names *files, struct fleet_error *err)
{
    const char *at = line, *end = line + length, *name;
    int fields = 0;

    while (at < end && fields < 7) {
        at += strspn(at, " ");
        at += strcspn(at, " \n");
        fields++;
    }
    at += at < end ? 1 : 0; /* one blank; the path may have more */
    while (at < end && *at == ' ')
        at++;
    if (at >= end || (line[0] != 'd' && line[0] != '-'))
        return 0; /* "Found 3 items", warnings */
    for (name = end; name > at && name[-1] != '/'; name--)
        continue;
    return fs_names_add(line[0] == 'd' ? folders : files, name, (size_t)(end - name), err);
}

static int hadoop_list(struct fleet_fs *fs, const char *path, struct fleet_fs_names *folders,
                       struct fleet_fs_names *files, struct fleet_error *err)
{
    const char *const words[4] = {"-ls", path};
    struct command_result result;
    const char *line;
    int rc = command(fs, words, COMMAND_OUTPUT_MAX, &result, err);

    if (rc < 0)
        return rc;
    for (line = result.output; rc == 0 && *line;) {
        size_t length = strcspn(line, "\n");
        rc = add_line(line, length, folders, files, err);
        line += length + (line[length] == '\n');
    }
    command_result_release(&result);
    return rc;
}

static int hadoop_make_folder(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    const char *const words[4] = {"-mkdir", "-p", path};
    return command(fs, words, COMMAND_OUTPUT_MAX, NULL, err);
}

static int hadoop_delete(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    const char *const words[4] = {"-rm", "-r", path};
    return command(fs, words, COMMAND_OUTPUT_MAX, NULL, err);
}

static int hadoop_move(struct fleet_fs *fs, const char *from, const char *to,
                       struct fleet_error *err)
{
    const char *const words[4] = {"-mv", from, to};
    return command(fs, words, COMMAND_OUTPUT_MAX, NULL, err);
}

static int hadoop_touch(struct fleet_fs *fs, const char *path, struct fleet_error *err)
{
    const char *const words[4] = {"-touchz", path};
    return command(fs, words, COMMAND_OUTPUT_MAX, NULL, err);
}

static int hadoop_read(struct fleet_fs *fs, const char *path, size_t size_max, char **out,
                       size_t *bytes, struct fleet_error *err)
{
    const char *const words[4] = {"-cat", path};
    struct command_result result;
    int rc = command(fs, words, size_max, &result, err);

    if (rc < 0)
        return rc;
    *out = result.output;
    *bytes = result.bytes;
    return 0;
}

/* Try a copy; what a failed one has left is removed before the next one. */
static int copy(struct fleet_fs *fs, const char *const words[4],
                int (*clear)(struct fleet_fs *fs, const char *target, struct fleet_error *err),
                struct fleet_error *err)
{
    struct fleet_fs once = *fs;
    int rc = 0;

    once.attempts = 1;
    for (int attempt = 0; attempt < fs->attempts; attempt++) {
        if (attempt > 0)
            pause_ms(fs->pause_ms);
        rc = command(&once, words, COMMAND_OUTPUT_MAX, NULL, err);
        if (rc == 0)
            return 0;
        (void)clear(fs, words[2], NULL);
        if (rc != -EIO && rc != -ETIMEDOUT)
            break;
    }
    return rc;
}

static int clear_remote(struct fleet_fs *fs, const char *target, struct fleet_error *err)
{
    return test(fs, "-e", target, err) == 1 ? hadoop_delete(fs, target, err) : 0;
}

static int clear_local(struct fleet_fs *fs, const char *target, struct fleet_error *err)
{
    return fs_local.kind(fs, target, err) > 0 ? fs_local.remove(fs, target, err) : 0;
}

static int hadoop_upload(struct fleet_fs *fs, const char *local, const char *path,
                         struct fleet_error *err)
{
    const char *const words[4] = {"-put", local, path};
    FLEET_AUTO_FREE char *folder = strdup(path);
    char *slash = folder ? strrchr(folder, '/') : NULL;
    int rc = copy(fs, words, clear_remote, err);

    if (rc != -ENOENT || !slash) /* -put makes no folders, as the other file systems do */
        return rc;
    *slash = '\0';
    rc = hadoop_make_folder(fs, folder, err);
    return rc < 0 ? rc : copy(fs, words, clear_remote, err);
}

static int hadoop_download(struct fleet_fs *fs, const char *path, const char *local,
                           struct fleet_error *err)
{
    const char *const words[4] = {"-get", path, local};
    return copy(fs, words, clear_local, err);
}

const struct fs_operations fs_hadoop = {
    .kind = hadoop_kind,
    .look = hadoop_look,
    .list = hadoop_list,
    .make_folder = hadoop_make_folder,
    .remove = hadoop_delete,
    .move = hadoop_move,
    .touch = hadoop_touch,
    .read = hadoop_read,
    .upload = hadoop_upload,
    .download = hadoop_download,
    .free = hadoop_free,
    .needs_transfer = true,
};
