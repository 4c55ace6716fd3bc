/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Training steps of a GPT without data loader and network: tokens a second, arithmetic a second and
 * its share of the rate of a chain of fused multiply-adds on the same threads in the same run.
 *
 *   bench_gpt_step [--layers N] [--width N] [--heads N] [--context N] [--vocabulary N] [--batch N]
 *                  [--threads N] [--seconds N] [--level NAME] [--bf16]
 *
 * Defaults are the demo's model with a micro-batch of 4 on one thread. The rival is
 * tests/bench/rival_gpt.py with the same sizes.
 */
#include <immintrin.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"
#include "tests/bench/gpt_sizes.h"
#include "tests/numerics/step_rig.h"

struct sizes {
    struct gpt_sizes gpt;
    int threads, seconds;
    bool bf16;
    enum fleet_isa level;
};

static double cpu_seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* GFLOP/s of one thread: eight independent chains of the widest multiply-add. */
#define CHAINS(type, set, fma, lanes, constraint)                                       \
    type s0 = set(0), s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0;    \
    type a = set(1.0000001f), b = set(1e-9f);                                           \
    double then = cpu_seconds();                                                        \
    for (long r = 0; r < CHAIN_ROUNDS; r++) {                                           \
        s0 = fma(s0, a, b), s1 = fma(s1, a, b), s2 = fma(s2, a, b), s3 = fma(s3, a, b); \
        s4 = fma(s4, a, b), s5 = fma(s5, a, b), s6 = fma(s6, a, b), s7 = fma(s7, a, b); \
        __asm__ volatile(""                                                             \
                         : "+" constraint(s0), "+" constraint(s1), "+" constraint(s2),  \
                           "+" constraint(s3), "+" constraint(s4), "+" constraint(s5),  \
                           "+" constraint(s6), "+" constraint(s7));                     \
    }                                                                                   \
    return 8.0 * (lanes)*2 * CHAIN_ROUNDS / (cpu_seconds() - then) * 1e-9

#define CHAIN_ROUNDS 20000000L

__attribute__((target("avx512f"))) static double peak_avx512(void)
{
    CHAINS(__m512, _mm512_set1_ps, _mm512_fmadd_ps, 16, "v");
}

__attribute__((target("avx2,fma"))) static double peak_avx2(void)
{
    CHAINS(__m256, _mm256_set1_ps, _mm256_fmadd_ps, 8, "x");
}

static double peak_of(enum fleet_isa level)
{
    if (level >= FLEET_ISA_AVX512)
        return peak_avx512();
    return level == FLEET_ISA_AVX2 ? peak_avx2() : 0;
}

static void parse(int argc, char **argv, struct sizes *s)
{
    static const struct option options[] = {GPT_SIZES_OPTIONS,         {"threads", 1, NULL, 't'},
                                            {"seconds", 1, NULL, 's'}, {"level", 1, NULL, 'i'},
                                            {"bf16", 0, NULL, 'f'},    {0}};
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == 'f')
            s->bf16 = true;
        else if (c == 'i' && fleet_isa_parse(optarg) < FLEET_ISA_COUNT)
            s->level = fleet_isa_parse(optarg);
        else if ((c == 't' || c == 's') && atoi(optarg) > 0)
            *(c == 't' ? &s->threads : &s->seconds) = atoi(optarg);
        else if (!gpt_sizes_take(&s->gpt, c, optarg))
            exit(2);
    }
}

static void init_rig(struct step_rig *rig, const struct sizes *s)
{
    char job[512];

    (void)snprintf(job, sizeof(job),
                   "{\"model\":{\"name\":\"gpt\",\"layers\":%" PRId64 ",\"heads\":%" PRId64
                   ",\"width\":%" PRId64 ",\"context\":%" PRId64 ",\"vocabulary\":%" PRId64
                   "},\"data\":{\"path\":\"t\",\"tokenizer\":"
                   "\"tokens-u16\"},\"optimizer\":{\"name\":\"adamw\",\"learningRate\":0.001,"
                   "\"clip\":{\"globalNorm\":1.0}},\"globalBatchSize\":%" PRId64
                   ",\"microBatchSize\":%" PRId64 ","
                   "\"steps\":1000000,\"precision\":\"%s\"}",
                   s->gpt.layers, s->gpt.heads, s->gpt.width, s->gpt.context, s->gpt.vocabulary,
                   s->gpt.batch, s->gpt.batch, s->bf16 ? "bf16" : "fp32");
    step_rig_init(rig, job, s->level, s->threads);
    for (int64_t i = 0; i < s->gpt.batch * s->gpt.context; i++) {
        ((int32_t *)step_rig_at(rig, "ids"))[i] = (int32_t)(i * 7919 % s->gpt.vocabulary);
        ((int32_t *)step_rig_at(rig, "targets"))[i] = (int32_t)((i + 1) * 7919 % s->gpt.vocabulary);
    }
}

int main(int argc, char **argv)
{
    struct sizes s = {
        .gpt =
            {.layers = 4, .width = 128, .heads = 4, .context = 128, .vocabulary = 256, .batch = 4},
        .threads = 1,
        .seconds = 3,
        .level = backend_level_detect()};
    struct executor_times times;
    struct step_rig rig;
    double best = 1e9, then, flops, peak;
    int64_t steps = 0;

    parse(argc, argv, &s);
    init_rig(&rig, &s);
    flops = rig.plan.flops;
    then = fleet_monotonic_ms();
    while (fleet_monotonic_ms() - then < 1e3 * s.seconds || steps < 3) {
        double start = s.threads == 1 ? cpu_seconds() : fleet_monotonic_ms() * 1e-3, end;
        step_rig_micro_batch(&rig, 0, steps, 0);
        step_rig_update(&rig, 1, 1e-3, ++steps);
        end = s.threads == 1 ? cpu_seconds() : fleet_monotonic_ms() * 1e-3;
        best = end - start < best ? end - start : best;
    }
    executor_times(rig.executor, &times);
    peak = peak_of(s.level) * s.threads;
    printf("%s, %d thread(s): %.0f tokens/s, %.1f GFLOP/s, %.0f %% of the peak\n",
           fleet_isa_names[s.level], s.threads, (double)(s.gpt.batch * s.gpt.context) / best,
           flops / best * 1e-9, peak > 0 ? 100 * flops / best * 1e-9 / peak : 0.0);
    printf("{\"bench\":\"gpt_step\",\"level\":\"%s\",\"threads\":%d,\"tokensPerSecond\":%.0f,"
           "\"gflops\":%.1f,\"shareOfPeak\":%.2f,\"stepMs\":%.2f,\"forwardShare\":%.2f,"
           "\"backwardShare\":%.2f,\"updateShare\":%.2f}\n",
           fleet_isa_names[s.level], s.threads, (double)(s.gpt.batch * s.gpt.context) / best,
           flops / best * 1e-9, peak > 0 ? flops / best * 1e-9 / peak : 0.0, best * 1e3,
           times.forward_s / (times.forward_s + times.backward_s + times.check_s + times.update_s),
           times.backward_s / (times.forward_s + times.backward_s + times.check_s + times.update_s),
           (times.check_s + times.update_s) /
               (times.forward_s + times.backward_s + times.check_s + times.update_s));
    step_rig_release(&rig);
    return 0;
}
