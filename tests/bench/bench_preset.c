/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The 124M preset on this machine, as a user runs it: `fleetjob run` for some steps in fp32 and
 * bf16. What the plan says a rank takes and what the trainer then holds, the time from the start to
 * the first forward, tokens a second.
 *
 * Before each run as much memory is touched once and given back: a virtual machine whose host takes
 * free pages away (free page reporting) waits for each of them to come back, and 2.8 GB then take 4
 * to 8 s where they take 0.3 s otherwise. That time is printed beside, as the machine's. The rival
 * for the tokens is
 *
 *   tests/bench/rival_gpt.py --layers 12 --width 768 --heads 12 --context 1024 --vocabulary 50257
 *   --batch 1
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/file.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "tests/support/job_run.h"

#define STEPS   4
#define LIMIT_S 900.0
#define MEMORY  ((size_t)3 << 30) /* somewhat more than a trainer holds */

struct measure {
    double started_ms, first_forward_s; /* from the start of `fleetjob` */
    double tokens_per_second;           /* best step */
    double held_bytes;
};

/* Seconds until this machine has given that memory. */
static double fetch_memory(void)
{
    double started_ms = fleet_monotonic_ms();
    char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    fleet_assert(memory != MAP_FAILED);
    (void)madvise(memory, MEMORY, MADV_HUGEPAGE);
    for (size_t at = 0; at < MEMORY; at += 4096)
        memory[at] = 1;
    fleet_assert(munmap(memory, MEMORY) == 0);
    return (fleet_monotonic_ms() - started_ms) / 1e3;
}

static double anonymous_bytes(pid_t pid)
{
    FLEET_AUTO_FCLOSE FILE *file = NULL;
    char path[64], line[256];
    double kilobytes = 0;

    (void)snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "RssAnon: %lf kB", &kilobytes) == 1)
            break;
    return kilobytes * 1024;
}

static void watch(void *context, struct job_run *run, const cJSON *event)
{
    struct measure *m = context;
    const char *name = "";
    double rate = 0, tokens = 0;
    pid_t trainer;

    (void)fleet_json_opt_string(event, "event", &name, NULL);
    if (strcmp(name, "step") != 0)
        return;
    (void)fleet_json_opt_number(event, "tokensPerSecond", &rate, NULL);
    (void)fleet_json_opt_number(event, "tokens", &tokens, NULL);
    if (run->step_count == 1 && rate > 0)
        m->first_forward_s = (fleet_monotonic_ms() - m->started_ms) / 1e3 - tokens / rate;
    m->tokens_per_second = rate > m->tokens_per_second ? rate : m->tokens_per_second;
    if (run->step_count == STEPS / 2 && job_run_trainers(run->pid, &trainer, 1) == 1)
        m->held_bytes = anonymous_bytes(trainer);
}

static char *write_job(const char *folder, const char *precision)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    char *path = fleet_file_join(folder, "job.yaml");

    fleet_strbuf_appendf(&text,
                         "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\n"
                         "metadata: {name: preset}\nspec:\n  worker: {replicas: 1}\n  training:\n"
                         "    model: {preset: gpt2-124m}\n"
                         "    data: {tokenizer: synthetic-markov, order: 1, symbols: 64}\n"
                         "    optimizer: {name: adamw, learningRate: 0.0003}\n"
                         "    globalBatchSize: 1\n    microBatchSize: 1\n    steps: %d\n"
                         "    precision: %s\n",
                         STEPS, precision);
    fleet_assert(fleet_file_write(path, text.text, text.length, NULL) == 0);
    return path;
}

static int bench(const char *precision)
{
    char *folder = job_run_folder();
    FLEET_AUTO_FREE char *path = write_job(folder, precision);
    const char *arguments[] = {path, NULL};
    double memory_s = fetch_memory();
    struct measure m = {.started_ms = fleet_monotonic_ms()};
    struct job_run run;
    double planned = 0;
    int code;

    job_run(arguments, LIMIT_S, watch, &m, &run);
    code = run.exit_code;
    if (code != 0)
        (void)fprintf(stderr, "%s: exit %d: %s\n", precision, code, run.errors);
    (void)fleet_json_opt_number(run.plan, "bytesPerRank.total", &planned, NULL);
    (void)printf("%-5s planned %7.1f MB, held %7.1f MB (%+.2f %%), first forward after %.2f s, "
                 "%.1f tokens/s; the machine's memory came in %.2f s\n",
                 precision, planned / 1e6, m.held_bytes / 1e6, 100 * (m.held_bytes / planned - 1),
                 m.first_forward_s, m.tokens_per_second, memory_s);
    (void)printf("{\"bench\":\"preset\",\"model\":\"gpt2-124m\",\"precision\":\"%s\","
                 "\"plannedBytes\":%.0f,\"heldBytes\":%.0f,\"firstForwardSeconds\":%.3f,"
                 "\"tokensPerSecond\":%.2f,\"memorySeconds\":%.3f}\n",
                 precision, planned, m.held_bytes, m.first_forward_s, m.tokens_per_second,
                 memory_s);
    job_run_release(&run);
    job_run_remove(folder);
    free(folder);
    return code;
}

int main(void)
{
    int fp32 = bench("fp32"), bf16 = bench("bf16");

    return fp32 || bf16 ? 1 : 0;
}
