/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/ps/proof.h"

#include <errno.h>
#include <string.h>

#include "libfleet/base/digest.h"
#include "libfleet/base/strbuf.h"

int ps_proof_key(const char *const *servers, int count, uint8_t out[32], struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool encrypts;
    int rc = world_encryption(&encrypts, err);

    if (rc < 0)
        return rc;
    if (encrypts)
        return fleet_error(err, -ENOTSUP,
                           "FLEET_DATA_ENCRYPTION is AES-GCM: connections to parameter servers are "
                           "not encrypted yet");
    fleet_strbuf_append(&text, "parameter servers");
    for (int i = 0; i < count; i++)
        fleet_strbuf_appendf(&text, " %s", servers[i]);
    world_key(text.text, 0, out); /* servers and workers outlive generations */
    return 0;
}

void ps_proof_make(const uint8_t key[32], const char *side, const uint8_t a[PS_NONCE_SIZE],
                   const uint8_t b[PS_NONCE_SIZE], uint8_t out[PS_PROOF_SIZE])
{
    uint8_t text[6 + 2 * PS_NONCE_SIZE];

    memcpy(text, side, 6);
    memcpy(text + 6, a, PS_NONCE_SIZE);
    memcpy(text + 6 + PS_NONCE_SIZE, b, PS_NONCE_SIZE);
    fleet_hmac_sha256(key, 32, text, sizeof(text), out);
}
