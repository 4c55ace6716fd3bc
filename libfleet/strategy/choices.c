/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/strategy/choices.h"

#include <stddef.h>
#include <string.h>

#include "libfleet/strategy/strategy.h"

/* In the order of their enums. */
static const char *const scales[] = {"avg", "sum", "customized", NULL};
static const char *const segments[] = {"segment_broadcast_MB", "segment_anchors", NULL};
static const char *const schedules[] = {"1F1B", "F-then-B", NULL};

static int find(const char *const *words, const char *word)
{
    int i = 0;

    while (words[i] && strcmp(words[i], word) != 0)
        i++;
    return words[i] ? i : 0;
}

enum choices_scale choices_scale(const struct strategy *s)
{
    return (enum choices_scale)find(scales, s->gradient_scale_configs.scale_strategy);
}

const char *choices_scale_text(enum choices_scale scale)
{
    return scales[scale];
}

enum choices_segments choices_segments(const struct strategy *s)
{
    return (enum choices_segments)find(segments, s->sharding_configs.sharding_segment_strategy);
}

enum choices_schedule choices_schedule(const struct strategy *s)
{
    return (enum choices_schedule)find(schedules, s->pipeline_configs.schedule_mode);
}

const char *choices_schedule_text(enum choices_schedule schedule)
{
    return schedules[schedule];
}
