/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes as a strategy text: an error with line and column, or a strategy that is the same after
 * printing and reading, whose print is a fixed point, and that converts without harm.
 */
#include <stdint.h>
#include <string.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/error.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/prototxt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void convert(const struct strategy *s, enum strategy_dialect to)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf out = {0};
    struct fleet_errors warnings = {0}, errors = {0};
    STRATEGY_AUTO struct strategy copy, back;

    strategy_copy(&copy, s);
    strategy_init(&back);
    if (dialect_convert(&copy, to, 8, "", &warnings, &errors) == 0) {
        fleet_strbuf_append(&out, "");
        fleet_assert(prototxt_print(&copy, to, &out, NULL) == 0);
        fleet_assert(prototxt_merge(&back, "f", out.text, out.length, NULL) == 0);
    }
    fleet_errors_release(&warnings);
    fleet_errors_release(&errors);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf first = {0}, second = {0};
    STRATEGY_AUTO struct strategy s, back;
    struct fleet_error err;

    strategy_init(&s);
    strategy_init(&back);
    if (prototxt_merge(&s, "f", (const char *)data, size, &err) < 0) {
        fleet_assert(strncmp(err.text, "f:", 2) == 0);
        return 0;
    }
    fleet_strbuf_append(&first, "");
    fleet_strbuf_append(&second, "");
    fleet_assert(prototxt_print(&s, STRATEGY_AS_READ, &first, NULL) == 0);
    fleet_assert(prototxt_merge(&back, "f", first.text, first.length, &err) == 0);
    fleet_assert(strategy_equal(&s, &back));
    fleet_assert(prototxt_print(&back, STRATEGY_AS_READ, &second, NULL) == 0);
    fleet_assert(strcmp(first.text, second.text) == 0);
    convert(&s, STRATEGY_2_0);
    convert(&s, STRATEGY_2_1);
    return 0;
}
