/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_INTEGRATION_RUN_STORY_H
#define TESTS_INTEGRATION_RUN_STORY_H

/* What a run has printed with --json, line by line, and what it amounts to. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"
#include "tests/integration/run_program.h"

/* What the lines of a --json run amount to. */
struct story {
    int64_t steps;      /* events, which were 1, 2, 3 … */
    int64_t first_step; /* 1, but of a job that goes on from a checkpoint */
    int64_t lost_steps; /* by restarts, together */
    int restarts, checkpoints;
    char state[32], sha256[80];
    double first_loss, last_loss;
};

static inline void read_step(const cJSON *json, struct story *story)
{
    int64_t step;
    double loss;

    assert_int_equal(fleet_json_get_int(json, "step", &step, NULL), 0);
    assert_int_equal(fleet_json_get_number(json, "loss", &loss, NULL), 0);
    if (story->steps == 0)
        story->first_step = step;
    else if (step != story->steps + 1)
        fail_msg("step %lld was printed after step %lld", (long long)step, (long long)story->steps);
    story->steps = step;
    story->first_loss = step == 1 ? loss : story->first_loss;
    story->last_loss = loss;
}

static inline void read_line(const char *line, size_t size, struct story *story)
{
    FLEET_AUTO_JSON cJSON *json = NULL;
    struct fleet_error err;
    const char *event = "", *text = "";

    if (fleet_json_parse(line, size, 1 << 20, &json, &err) < 0)
        fail_msg("not a JSON object: %.*s (%s)", (int)size, line, err.text);
    assert_int_equal(fleet_json_get_string(json, "event", &event, NULL), 0);
    assert_string_equal(story->state, ""); /* nothing follows the end */
    if (strcmp(event, "step") == 0)
        read_step(json, story);
    story->restarts += strcmp(event, "restart") == 0;
    if (strcmp(event, "restart") == 0) {
        int64_t lost = -1;
        assert_int_equal(fleet_json_get_int(json, "lostSteps", &lost, NULL), 0);
        story->lost_steps += lost;
    }
    story->checkpoints += strcmp(event, "checkpoint") == 0;
    if (strcmp(event, "end") == 0) {
        assert_int_equal(fleet_json_get_string(json, "state", &text, NULL), 0);
        (void)snprintf(story->state, sizeof(story->state), "%s", text);
        text = "";
        (void)fleet_json_opt_string(json, "weightsSha256", &text, NULL);
        (void)snprintf(story->sha256, sizeof(story->sha256), "%s", text);
    }
}

static inline struct story read_story(const struct run *run)
{
    const char *line = fleet_strbuf_text(&run->out);
    struct story story = {0};

    assert_int_equal(strncmp(line, "{\"event\":\"plan\",", 16), 0);
    while (*line) {
        size_t size = strcspn(line, "\n");
        read_line(line, size, &story);
        line += size + (line[size] == '\n');
    }
    return story;
}

#endif
