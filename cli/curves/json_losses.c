/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/curves/json_losses.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "cli/curves/curve.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/error.h"
#include "libfleet/base/json.h"

#define LINE_MAX_SIZE ((size_t)1 << 24)

/* A loss; null = not finite. */
static int get_loss(const cJSON *event, double *out, struct fleet_error *err)
{
    *out = NAN;
    if (cJSON_IsNull(fleet_json_at(event, "loss")))
        return 0;
    return fleet_json_get_number(event, "loss", out, err);
}

static int add_loss(const cJSON *event, bool is_evaluation, struct curve *out,
                    struct fleet_error *err)
{
    int64_t step;
    double loss;

    if (fleet_json_get_int(event, "step", &step, err) < 0 || get_loss(event, &loss, err) < 0)
        return -EBADMSG;
    if (step < 1)
        return fleet_error(err, -EBADMSG, "step must be 1 or more, not %lld", (long long)step);
    if (is_evaluation)
        curve_add_evaluation(out, step, loss);
    else
        curve_add(out, step, loss);
    return 0;
}

static int64_t newest_step(const struct curve *curve)
{
    return curve->losses.count > 0 ? curve->losses.points[curve->losses.count - 1].step : -1;
}

static int add_event(const cJSON *event, struct curve *out, struct fleet_error *err)
{
    const char *kind = NULL;

    if (!cJSON_IsObject(event) || fleet_json_opt_string(event, "event", &kind, NULL) < 0 || !kind)
        return fleet_error(err, -EBADMSG,
                           fleet_json_at(event, "members")
                               ? "a state file lists processes, it has no losses"
                               : "expected an event of `fleetjob run --json`");
    if (strcmp(kind, "step") == 0 || strcmp(kind, "evaluation") == 0)
        return add_loss(event, kind[0] == 'e', out, err);
    if (strcmp(kind, "restart") == 0)
        curve_add_mark(out, CURVE_RESTART, newest_step(out));
    if (strcmp(kind, "plan") == 0 && out->losses.count > 0)
        curve_add_mark(out, CURVE_RESUME, newest_step(out));
    return 0;
}

int json_losses_decode(const char *text, size_t size, struct curve *out, struct fleet_error *err)
{
    const char *at = text, *end = text + size;

    for (int number = 1; at < end; number++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at);
        FLEET_AUTO_JSON cJSON *event = NULL;
        int rc = 0;

        if (length > 0 && !(length == 1 && *at == '\r')) {
            rc = fleet_json_parse(at, length, LINE_MAX_SIZE, &event, err);
            if (rc < 0 && !newline && number > 1)
                return 0;
            if (rc == 0)
                rc = add_event(event, out, err);
        }
        if (rc < 0) {
            (void)fleet_error_wrap(err, "line %d", number);
            return -EBADMSG;
        }
        at = newline ? newline + 1 : end;
    }
    return 0;
}
