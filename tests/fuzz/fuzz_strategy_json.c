/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Any bytes as a strategy in JSON: errors, or a strategy that is the same after writing and reading
 * as JSON and as text (except for hybrid_configs.order, which no text carries).
 */
#include <stdint.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/cleanup.h"
#include "libfleet/base/errors.h"
#include "libfleet/base/json.h"
#include "libfleet/base/strbuf.h"
#include "libfleet/strategy/knobs.h"
#include "libfleet/strategy/prototxt.h"
#include "libfleet/strategy/strategy_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void through_text(struct strategy *s)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    STRATEGY_AUTO struct strategy back;
    const struct knob_field *hybrid = knobs_find(knobs_root(), "hybrid_configs", NULL);

    knob_clear_list(knobs_find(hybrid->message(), "order", NULL), &s->hybrid_configs.order);
    strategy_init(&back);
    fleet_strbuf_append(&text, "");
    fleet_assert(prototxt_print(s, STRATEGY_AS_READ, &text, NULL) == 0);
    if (prototxt_merge(&back, "f", text.text, text.length, NULL) ==
        0) /* not if not UTF-8, or too long */
        fleet_assert(strategy_means_same(s, &back));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    FLEET_AUTO_JSON cJSON *json = NULL, *again = NULL;
    struct fleet_errors errors = {0};
    STRATEGY_AUTO struct strategy s, back;

    if (fleet_json_parse((const char *)data, size, 1U << 20, &json, NULL) < 0) {
        strategy_init(&s);
        strategy_init(&back);
        return 0;
    }
    strategy_init(&back);
    if (strategy_json_decode(json, "spec.strategy", &s, &errors) == 0) {
        again = strategy_json_encode(&s);
        strategy_release(&back);
        fleet_assert(strategy_json_decode(again, "", &back, &errors) == 0);
        fleet_assert(strategy_equal(&s, &back));
        through_text(&s);
    }
    fleet_errors_release(&errors);
    return 0;
}
