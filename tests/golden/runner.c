/* SPDX-License-Identifier: Apache-2.0 */

/* golden FOLDER [PATTERN]: find the files, run their readers side by side, add up. */
#include "tests/golden/runner.h"

#include <errno.h>
#include <fnmatch.h>
#include <ftw.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/child_process.h"

#define SIZE_MAX_OF_A_FILE ((size_t)256 << 20)
#define SECONDS_A_FILE     900
#define REASONS_MAX        64
#define REASON_MARK        '\x1f' /* between the name of a case and its reason */

/* ---- the process of one file ----------------------------------------------------------------- */

/* A result is a letter, its text and a NUL. */
static int results = -1;
static const struct golden_file *at_work;
static jmp_buf *frame; /* of the case at work, else of the file */
static char case_name[256];
static bool has_jumped; /* out of a case, which left something behind */

static void put_result(char letter, const char *text)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};

    fleet_strbuf_appendf(&out, "%c%s%c%s", letter, case_name, REASON_MARK, text);
    fleet_assert(write(results, out.text, out.length + 1) == (ssize_t)out.length + 1);
}

static _Noreturn void leave(char letter, const char *format, va_list args)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char line[4096];

    (void)vsnprintf(line, sizeof(line), format, args);
    if (line[0] && line[strlen(line) - 1] == '\n')
        line[strlen(line) - 1] = '\0';
    fleet_strbuf_append(&text, line);
    put_result(letter, text.text);
    has_jumped = true;
    fleet_strbuf_release(&text);
    longjmp(*frame, 1);
}

void golden_fail(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    leave('F', format, args);
}

void golden_skip(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    leave('S', format, args);
}

void golden_case(void (*run)(void *context), void *context, const char *name, ...)
{
    jmp_buf here, *const outer = frame;
    va_list args;

    va_start(args, name);
    (void)vsnprintf(case_name, sizeof(case_name), name, args);
    va_end(args);
    frame = &here;
    if (setjmp(here) == 0) {
        run(context);
        put_result('P', "");
    }
    frame = outer;
    case_name[0] = '\0';
}

const struct golden_file *golden_at_work(void)
{
    return at_work;
}

const char *golden_beside(const char *name)
{
    static char path[PATH_MAX];
    const char *slash = strrchr(at_work->path, '/');

    (void)snprintf(path, sizeof(path), "%.*s/%s", (int)(slash - at_work->path), at_work->path,
                   name);
    return path;
}

static void read_file(const struct golden_kind *kind, const struct golden_file *file)
{
    jmp_buf here;

    at_work = file;
    frame = &here;
    (void)alarm(SECONDS_A_FILE);
    if (setjmp(here) == 0)
        kind->read(file);
    if (has_jumped)
        _exit(0); /* what such a case has left is no leak */
    exit(0);
}

/* ---- finding files --------------------------------------------------------------------------- */

struct found {
    char *name, *path;
    const struct golden_kind *kind; /* NULL: none matches */
    pid_t pid;
    int results;
    int passed, failed, skipped;
    char *text; /* its results */
    size_t text_size;
    char *crash; /* how the reader failed as a whole, else NULL */
};

static struct found *files;
static size_t file_count, root_length;
static const char *wanted;

static const struct golden_kind *kind_of(const char *name)
{
    for (const struct golden_kind *kind = golden_kinds; kind->pattern; kind++)
        if (fnmatch(kind->pattern, name, FNM_PATHNAME) == 0)
            return kind;
    return NULL;
}

static int visit(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    const char *name = path + root_length + 1;

    (void)st;
    (void)ftw;
    if (type != FTW_F && type != FTW_SL)
        return 0;
    if (wanted && fnmatch(wanted, name, 0) != 0)
        return 0;
    files = realloc(files, (file_count + 1) * sizeof(*files));
    fleet_assert(files);
    files[file_count++] = (struct found){
        .name = strdup(name), .path = strdup(path), .kind = kind_of(name), .results = -1};
    return 0;
}

static int compare_found(const void *a, const void *b)
{
    return strcmp(((const struct found *)a)->name, ((const struct found *)b)->name);
}

/* ---- running them ---------------------------------------------------------------------------- */

static void start(const char *folder, struct found *f)
{
    struct golden_file file = {.folder = folder, .name = f->name, .path = f->path};

    f->results = memfd_create("results", MFD_CLOEXEC);
    fleet_assert(f->results >= 0);
    f->pid = child_process_fork();
    if (f->pid == 0) {
        results = f->results;
        read_file(f->kind, &file);
    }
}

static char *take_results(struct found *f, size_t *out_size)
{
    off_t size = lseek(f->results, 0, SEEK_END);
    char *text = calloc(1, (size_t)size + 1);

    fleet_assert(text && size >= 0 && pread(f->results, text, (size_t)size, 0) == size);
    (void)close(f->results);
    *out_size = (size_t)size;
    return text;
}

static void count_results(struct found *f, int status)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf line = {0};
    size_t size;

    f->text = take_results(f, &size);
    f->text_size = size;
    for (char *at = f->text; at < f->text + size; at += strlen(at) + 1) {
        f->passed += *at == 'P';
        f->failed += *at == 'F';
        f->skipped += *at == 'S';
    }
    if (WIFSIGNALED(status))
        fleet_strbuf_appendf(&line, "the reader ended by signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        fleet_strbuf_appendf(&line, "the reader ended with exit code %d", WEXITSTATUS(status));
    else if (f->passed + f->failed + f->skipped == 0)
        fleet_strbuf_append(&line, "holds no case");
    if (line.length) {
        f->failed++;
        f->crash = fleet_strbuf_take(&line);
    }
}

static struct found *with_pid(pid_t pid)
{
    for (size_t i = 0; i < file_count; i++)
        if (files[i].pid == pid)
            return &files[i];
    return NULL;
}

static void wait_for_one(int *running)
{
    int status;
    pid_t pid = wait(&status);
    struct found *f = pid > 0 ? with_pid(pid) : NULL;

    if (!f)
        return;
    (*running)--;
    count_results(f, status);
}

/* Cases of a file that has no reader: rows of its list, else the file itself. */
static int cases_in(const char *path)
{
    static const char *const lists[] = {"rows", "cases", "schedules", "units"};
    FLEET_AUTO_FREE char *text = NULL;
    FLEET_AUTO_JSON cJSON *root = NULL;
    size_t size;

    if (fleet_file_read(path, SIZE_MAX_OF_A_FILE, &text, &size, NULL) < 0 ||
        fleet_json_parse_foreign(text, size, SIZE_MAX_OF_A_FILE, &root, NULL) < 0)
        return 1;
    for (size_t i = 0; i < FLEET_COUNT(lists); i++)
        if (cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, lists[i])) > 0)
            return cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(root, lists[i]));
    return 1;
}

static void run_all(const char *folder)
{
    const char *jobs_text = getenv("TEST_JOBS");
    int jobs = jobs_text ? atoi(jobs_text) : 2, running = 0;

    for (size_t i = 0; i < file_count; i++) {
        struct found *f = &files[i];
        if (!f->kind || !f->kind->read) {
            if (!f->kind || f->kind->why)
                f->skipped = cases_in(f->path);
            continue;
        }
        while (running >= (jobs > 0 ? jobs : 1))
            wait_for_one(&running);
        start(folder, f);
        running++;
    }
    while (running > 0)
        wait_for_one(&running);
}

/* ---- the report ------------------------------------------------------------------------------ */

/* Skips of a kind by reason, so that a hundred rows with one reason are one line. */
struct reasons {
    const char *texts[REASONS_MAX];
    int counts[REASONS_MAX], count;
};

static void note_skip(struct reasons *r, const char *text, int cases)
{
    for (int i = 0; i < r->count; i++)
        if (strcmp(r->texts[i], text) == 0) {
            r->counts[i] += cases;
            return;
        }
    if (r->count < REASONS_MAX) {
        r->counts[r->count] = cases;
        r->texts[r->count++] = text;
    }
}

/* Behind the name of its case. */
static const char *reason_in(const char *result)
{
    const char *mark = strchr(result, REASON_MARK);

    return mark ? mark + 1 : result;
}

static void say_failures(const struct found *f)
{
    for (char *at = f->text; at && at < f->text + f->text_size; at += strlen(at) + 1)
        if (*at == 'F') {
            char *mark = strchr(at, REASON_MARK);
            printf("    FAILED %s: %.*s%s%s\n", f->path, mark ? (int)(mark - at - 1) : 0, at + 1,
                   mark && mark > at + 1 ? ": " : "", reason_in(at + 1));
        }
    if (f->crash)
        printf("    FAILED %s: %s\n", f->path, f->crash);
}

static void say_kind(const struct golden_kind *kind)
{
    int passed = 0, failed = 0, skipped = 0, count = 0;
    struct reasons reasons = {0};

    for (size_t i = 0; i < file_count; i++) {
        const struct found *f = &files[i];
        if (f->kind != kind || (kind && !kind->read && !kind->why))
            continue;
        count++;
        passed += f->passed;
        failed += f->failed;
        skipped += f->skipped;
        if (!kind || !kind->read)
            note_skip(&reasons, kind ? kind->why : "no reader knows files of this name",
                      f->skipped);
        for (char *at = f->text; at && at < f->text + f->text_size; at += strlen(at) + 1)
            if (*at == 'S')
                note_skip(&reasons, reason_in(at + 1), 1);
    }
    if (count == 0)
        return;
    printf("  %-4s %-40s %3d file%s %5d passed, %d failed, %d skipped\n",
           failed    ? "FAIL"
           : !passed ? "skip"
                     : "ok",
           kind ? kind->pattern : "other files", count, count == 1 ? " " : "s", passed, failed,
           skipped);
    for (int i = 0; i < reasons.count; i++)
        printf("         %4d skipped: %s\n", reasons.counts[i], reasons.texts[i]);
    for (size_t i = 0; i < file_count; i++) {
        if (files[i].kind == kind)
            say_failures(&files[i]);
        if (!kind && !files[i].kind)
            printf("         %s\n", files[i].name);
    }
}

static void find_files(const char *folder)
{
    static const char *const systems[] = {"paddle", "mindspore", "torch"};

    root_length = strlen(folder);
    for (size_t i = 0; i < FLEET_COUNT(systems); i++) {
        FLEET_AUTO_FREE char *path = fleet_file_join(folder, systems[i]);
        (void)nftw(path, visit, 16, FTW_PHYS); /* a system that was not recorded */
    }
    if (file_count)
        qsort(files, file_count, sizeof(*files), compare_found);
}

static int add_up(void)
{
    int passed = 0, failed = 0, skipped = 0;

    for (const struct golden_kind *kind = golden_kinds; kind->pattern; kind++)
        say_kind(kind);
    say_kind(NULL);
    for (size_t i = 0; i < file_count; i++) {
        passed += files[i].passed;
        failed += files[i].failed;
        skipped += files[i].skipped;
        free(files[i].name);
        free(files[i].path);
        free(files[i].text);
        free(files[i].crash);
    }
    free(files);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed;
}

int main(int argc, char **argv)
{
    char folder[PATH_MAX];

    if (argc < 2 || argc > 3) {
        (void)fprintf(stderr, "usage: golden FOLDER [PATTERN]\n");
        return 2;
    }
    if (!realpath(argv[1], folder)) {
        (void)fprintf(stderr, "golden: the folder of recordings %s: %s\n", argv[1],
                      strerror(errno));
        return 1;
    }
    wanted = argc > 2 ? argv[2] : NULL;
    find_files(folder);
    if (file_count == 0) {
        (void)fprintf(stderr,
                      "golden: %s holds no recordings: no files%s%s below paddle, mindspore or "
                      "torch\n",
                      folder, wanted ? " like " : "", wanted ? wanted : "");
        return 1;
    }
    run_all(folder);
    return add_up() ? 1 : 0;
}
