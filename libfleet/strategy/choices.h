/* SPDX-License-Identifier: Apache-2.0 */
#ifndef LIBFLEET_STRATEGY_CHOICES_H
#define LIBFLEET_STRATEGY_CHOICES_H

/*
 * Settings whose values are words in Paddle's message. Code that decides asks here, so that each
 * word has one place. A word that strategy_check() refuses counts as the first of its enum.
 */

struct strategy;

/* gradient_scale_configs.scale_strategy: what happens to the mean gradients of the workers. */
enum choices_scale {
    CHOICES_SCALE_AVERAGE,    /* avg */
    CHOICES_SCALE_SUM,        /* sum: added, not divided by the number of workers */
    CHOICES_SCALE_CUSTOMIZED, /* customized: the program scales by itself */
};

enum choices_scale choices_scale(const struct strategy *s);
const char *choices_scale_text(enum choices_scale scale);

/* sharding_configs.sharding_segment_strategy: where the segments of parameters end. */
enum choices_segments {
    CHOICES_SEGMENTS_BY_SIZE,    /* segment_broadcast_MB */
    CHOICES_SEGMENTS_BY_ANCHORS, /* segment_anchors */
};

enum choices_segments choices_segments(const struct strategy *s);

/* pipeline_configs.schedule_mode: the order of forward and backward passes in a stage. */
enum choices_schedule {
    CHOICES_SCHEDULE_1F1B,
    CHOICES_SCHEDULE_F_THEN_B,
};

enum choices_schedule choices_schedule(const struct strategy *s);
const char *choices_schedule_text(enum choices_schedule schedule);

#endif
