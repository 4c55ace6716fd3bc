/* SPDX-License-Identifier: Apache-2.0 */

/* Any bytes as what `fleetjob curve` reads. What is accepted has ascending steps, and its record
 * reads back as the same record. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/curves/curve.h"
#include "cli/curves/loss_decode.h"
#include "cli/curves/loss_record.h"
#include "libfleet/base/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect_ascending(const struct curve_series *series)
{
    for (size_t i = 1; i < series->count; i++)
        fleet_assert(series->points[i].step > series->points[i - 1].step);
}

static void expect_record(const struct curve *curve)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf first = {0}, second = {0};
    struct curve read;

    loss_record_encode(curve, &first);
    fleet_assert(loss_record_decode(first.text, &read, NULL) == 0);
    loss_record_encode(&read, &second);
    fleet_assert(strcmp(first.text, second.text) == 0);
    curve_release(&read);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    struct curve curve;

    fleet_assert(text);
    memcpy(text, data, size);
    text[size] = '\0';
    if (loss_decode(text, size, &curve, NULL) == 0) {
        fleet_assert(curve.losses.count + curve.evaluations.count > 0);
        expect_ascending(&curve.losses);
        expect_ascending(&curve.evaluations);
        expect_record(&curve);
        curve_release(&curve);
    }
    free(text);
    return 0;
}
