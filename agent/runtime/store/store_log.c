/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/store/store_log.h"

#include "libfleet/base/clock.h"
#include "libfleet/base/log.h"

#define SAY_EVERY_MS 10000.0

void store_log_begin(const char *url, int64_t files, uint64_t bytes, const char *to)
{
    fleet_log_info("Reading data from the store", FLEET_STR("path", url), FLEET_INT("files", files),
                   FLEET_INT("bytes", (int64_t)bytes), FLEET_STR("to", to));
}

void store_log_end(const char *url, uint64_t bytes, double seconds)
{
    fleet_log_info("Read data from the store", FLEET_STR("path", url),
                   FLEET_INT("bytes", (int64_t)bytes), FLEET_NUM("seconds", seconds));
}

void store_log_resume(const char *path, uint64_t done, uint64_t bytes)
{
    fleet_log_info("Going on with a file that was read in part", FLEET_STR("path", path),
                   FLEET_INT("bytes", (int64_t)done), FLEET_INT("of", (int64_t)bytes));
}

void store_log_step(const char *path, uint64_t done, uint64_t bytes, double *said_ms)
{
    if (fleet_monotonic_ms() - *said_ms < SAY_EVERY_MS)
        return;
    *said_ms = fleet_monotonic_ms();
    fleet_log_info("Reading from the store", FLEET_STR("path", path),
                   FLEET_INT("bytes", (int64_t)done), FLEET_INT("of", (int64_t)bytes));
}

void store_log_unreachable(const char *url, const struct fleet_error *err)
{
    fleet_log_warning("The store cannot be reached: using what was read before",
                      FLEET_STR("path", url), FLEET_STR("err", err->text));
}
