/* SPDX-License-Identifier: Apache-2.0 */
#include "distributed/ps/proof.h"

#include <string.h>

#include "libfleet/base/digest.h"
#include "libfleet/base/strbuf.h"

int ps_key_init(struct ps_key *key, const char *const *servers, int count, struct fleet_error *err)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf text = {0};
    bool encrypts;
    int rc = world_encryption(&encrypts, err);

    if (rc < 0)
        return rc;
    fleet_strbuf_append(&text, "parameter servers");
    for (int i = 0; i < count; i++)
        fleet_strbuf_appendf(&text, " %s", servers[i]);
    world_key(text.text, 0, key->proof); /* servers and workers outlive generations */
    if (!encrypts)
        return 0;
    fleet_strbuf_append(&text, " by TLS");
    world_key(text.text, 0, key->tls_key);
    return rpc_secure_new(key->tls_key, &key->tls, err);
}

void ps_key_release(struct ps_key *key)
{
    SSL_CTX_free(key->tls);
    key->tls = NULL;
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
