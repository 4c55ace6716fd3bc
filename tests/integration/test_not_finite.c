/* SPDX-License-Identifier: Apache-2.0 */

/*
 * fp16_allreduce: the curve not_finite_gradients has the number of elements that 16 bits did not
 * hold, for each update. A loss scale that is far too large makes them in the first updates; amp
 * then skips the update and lowers the scale.
 */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/file.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/tensorboard/event.h"
#include "tests/support/job_run.h"

#define LIMIT_S 600.0
#define STEPS   10
#define O1                                                                            \
    "amp: true, amp_configs: {init_loss_scaling: 1.0e9, decr_every_n_nan_or_inf: 1, " \
    "decr_ratio: 0.03125}"

/* The event file of a run. */
static char *read_charts(const char *folder, size_t *out_size)
{
    FLEET_AUTO_FREE char *charts = fleet_file_join(folder, "charts");
    DIR *dir = opendir(charts);
    struct dirent *entry;
    char *text = NULL;

    assert_non_null(dir);
    while ((entry = readdir(dir)))
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            FLEET_AUTO_FREE char *path = fleet_file_join(charts, entry->d_name);
            assert_null(text);
            assert_int_equal(fleet_file_read(path, 1 << 20, &text, out_size, NULL), 0);
        }
    (void)closedir(dir);
    assert_non_null(text);
    return text;
}

/* counts[step]: the value of that step, NaN if it has none. */
static void read_counts(const char *folder, double counts[STEPS + 1])
{
    size_t size = 0, at = 0, payload;
    FLEET_AUTO_FREE char *text = read_charts(folder, &size);

    for (int step = 0; step <= STEPS; step++)
        counts[step] = NAN;
    while (at < size) {
        struct event event;
        int frame = event_frame((const uint8_t *)text + at, size - at, &payload, NULL);
        assert_int_equal(frame, 0);
        assert_int_equal(event_decode((const uint8_t *)text + at + 12, payload, &event, NULL), 0);
        at += payload + EVENT_FRAME_SIZE;
        for (int i = 0; event.kind == EVENT_SCALARS && i < event.scalar_count; i++)
            if (event.scalars[i].tag_size == strlen("not_finite_gradients") &&
                memcmp(event.scalars[i].tag, "not_finite_gradients", event.scalars[i].tag_size) ==
                    0)
                counts[event.step] = event.scalars[i].value;
    }
}

static void run_job(const char *strategy, double counts[STEPS + 1])
{
    char *folder = job_run_folder(), here[4096];
    FLEET_AUTO_FREE char *path = fleet_file_join(folder, "job.yaml");
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    const char *arguments[] = {path, NULL};
    struct job_run run;

    assert_non_null(getcwd(here, sizeof(here)));
    fleet_strbuf_appendf(
        &text,
        "apiVersion: fleetjob.dev/v1alpha1\nkind: FleetJob\nmetadata: {name: halves}\nspec:\n"
        "  worker: {replicas: 2}\n  strategy: {%s}\n  training:\n"
        "    model: {name: gpt, layers: 1, heads: 2, width: 32, context: 16}\n"
        "    optimizer: {name: adamw, learningRate: 0.003}\n    globalBatchSize: 8\n"
        "    microBatchSize: 2\n    steps: %d\n    log: {tensorboard: charts}\n"
        "    data: {path: %s/tests/golden/torch/jobs/text.txt}\n",
        strategy, STEPS, here);
    assert_int_equal(fleet_file_write(path, text.text, text.length, NULL), 0);
    job_run(arguments, LIMIT_S, NULL, NULL, &run);
    if (strcmp(run.state, "Succeeded") != 0 || run.problem[0])
        fail_msg("{%s}: %s %s %s", strategy, run.state, run.problem, run.errors);
    job_run_release(&run);
    read_counts(folder, counts);
    job_run_remove(folder);
    free(folder);
}

static void test_not_finite__is_counted_in_each_update(void **state)
{
    double counts[STEPS + 1];

    (void)state;
    run_job("fp16_allreduce: true, " O1, counts);
    assert_true(counts[1] >= 1 && counts[1] == floor(counts[1]));
    for (int step = 2; step <= STEPS; step++)
        assert_true(counts[step] >= 0);
    assert_true(counts[STEPS] == 0); /* the scale fits by then */
}

static void test_not_finite__is_a_curve_of_this_setting_alone(void **state)
{
    double counts[STEPS + 1];

    (void)state;
    run_job(O1, counts);
    for (int step = 1; step <= STEPS; step++)
        assert_true(isnan(counts[step]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_not_finite__is_counted_in_each_update),
        cmocka_unit_test(test_not_finite__is_a_curve_of_this_setting_alone),
    };

    return cmocka_run_group_tests_name("not_finite", tests, NULL, NULL);
}
