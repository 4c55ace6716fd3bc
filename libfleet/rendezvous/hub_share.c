/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/rendezvous/hub_share.h"

#include <math.h>

bool hub_share_spend(struct hub_share *share, double now_ms)
{
    share->spent = fmax(share->spent - (now_ms - share->at_ms) * share->rate / 1000, 0);
    share->at_ms = now_ms;
    if (share->spent + 1 > share->burst)
        return false;
    share->spent++;
    return true;
}
