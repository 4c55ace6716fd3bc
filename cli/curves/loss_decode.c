/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/curves/loss_decode.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "cli/curves/curve.h"
#include "cli/curves/event_losses.h"
#include "cli/curves/json_losses.h"
#include "cli/curves/loss_record.h"
#include "libfleet/base/error.h"

/* A record begins with its header; a record of an older version begins with a step and its loss. */
static bool is_record(const char *text)
{
    size_t digits = strspn(text, "0123456789");

    return strncmp(text, LOSS_RECORD_HEAD, strlen(LOSS_RECORD_HEAD)) == 0 ||
           strncmp(text, "step\t", 5) == 0 || (digits > 0 && text[digits] == '\t');
}

static int decode(const char *text, size_t size, struct curve *out, struct fleet_error *err)
{
    if (size == 0)
        return fleet_error(err, -ENODATA, "the file is empty");
    if (event_losses_begin(text, size))
        return event_losses_decode(text, size, out, err);
    if (strlen(text) == size && text[strspn(text, " \t\r\n")] == '{')
        return json_losses_decode(text, size, out, err);
    if (strlen(text) == size && is_record(text))
        return loss_record_decode(text, out, err);
    return fleet_error(err, -EBADMSG,
                       "not a record of losses: expected losses-NAME.tsv, an event file of "
                       "TensorBoard, the output of `fleetjob run --json`, or a job (.yaml)");
}

int loss_decode(const char *text, size_t size, struct curve *out, struct fleet_error *err)
{
    struct curve curve = {0};
    int rc = decode(text, size, &curve, err);

    if (rc == 0 && curve.losses.count + curve.evaluations.count == 0)
        rc = fleet_error(err, -ENODATA, "there is no loss in it yet");
    if (rc < 0)
        curve_release(&curve);
    else
        *out = curve;
    return rc;
}
