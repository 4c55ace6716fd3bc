/* SPDX-License-Identifier: Apache-2.0 */
#include "libfleet/base/digest.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <string.h>

#include "libfleet/base/assert.h"

/* struct fleet_sha256 is OpenSSL's EVP_MD_CTX under our own name. */
static EVP_MD_CTX *context_of(struct fleet_sha256 *sha)
{
    return (EVP_MD_CTX *)sha;
}

struct fleet_sha256 *fleet_sha256_new(void)
{
    EVP_MD_CTX *context = EVP_MD_CTX_new();

    fleet_assert(context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1);
    return (struct fleet_sha256 *)context;
}

void fleet_sha256_update(struct fleet_sha256 *sha, const void *data, size_t size)
{
    fleet_assert(EVP_DigestUpdate(context_of(sha), data, size) == 1);
}

void fleet_sha256_finish(struct fleet_sha256 *sha, uint8_t out[FLEET_SHA256_SIZE])
{
    fleet_assert(EVP_DigestFinal_ex(context_of(sha), out, NULL) == 1);
    fleet_sha256_free(sha);
}

void fleet_sha256_free(struct fleet_sha256 *sha)
{
    EVP_MD_CTX_free(context_of(sha));
}

void fleet_sha256(const void *data, size_t size, uint8_t out[FLEET_SHA256_SIZE])
{
    struct fleet_sha256 *sha = fleet_sha256_new();

    fleet_sha256_update(sha, data, size);
    fleet_sha256_finish(sha, out);
}

void fleet_hmac_sha256(const void *key, size_t key_size, const void *data, size_t size,
                       uint8_t out[FLEET_SHA256_SIZE])
{
    unsigned int written = 0;

    fleet_assert(HMAC(EVP_sha256(), key, (int)key_size, data, size, out, &written) != NULL);
    fleet_assert(written == FLEET_SHA256_SIZE);
}

bool fleet_secret_equal(const void *a, const void *b, size_t size)
{
    return CRYPTO_memcmp(a, b, size) == 0;
}

void fleet_random_bytes(void *out, size_t size)
{
    fleet_assert(RAND_bytes(out, (int)size) == 1);
}

void fleet_hex_encode(const void *data, size_t size, char *out)
{
    static const char digits[] = "0123456789abcdef";
    const uint8_t *bytes = data;

    for (size_t i = 0; i < size; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * size] = '\0';
}

static int digit_value(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int fleet_hex_decode(const char *text, void *out, size_t size)
{
    uint8_t *bytes = out;

    if (strnlen(text, 2 * size + 1) != 2 * size)
        return -EINVAL;
    for (size_t i = 0; i < 2 * size; i++)
        if (digit_value(text[i]) < 0)
            return -EINVAL;
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)(digit_value(text[2 * i]) << 4 | digit_value(text[2 * i + 1]));
    return 0;
}
