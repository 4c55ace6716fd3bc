/* SPDX-License-Identifier: Apache-2.0 */
#include "agent/runtime/comm/seal.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "libfleet/base/assert.h"
#include "libfleet/plan/runtime_connections.h"

#define NONCE_SIZE  12
#define LENGTH_SIZE 4
#define TEXT_MAX    RUNTIME_SEAL_TEXT
#define RECORD_MAX  (LENGTH_SIZE + TEXT_MAX + SEAL_TAG_SIZE)

_Static_assert(RECORD_MAX == RUNTIME_SEAL_RECORD, "the plan counts the buffers");

struct direction {
    EVP_CIPHER_CTX *cipher;
    uint64_t records; /* so far: the number of the next one */
    uint8_t bytes[RECORD_MAX];
};

struct seal {
    struct direction out, in;
    size_t record, sent; /* out.bytes[sent … record) has not left; record 0: there is none */
    size_t text;         /* of the record that leaves: bytes of text */
    size_t filled;       /* in.bytes[0 … filled) has arrived */
    size_t first, end;   /* in.bytes[first … end) is checked text */
};

/* ---- life ------------------------------------------------------------------------------------ */

static void open_direction(struct direction *d, const uint8_t *key, int encrypts)
{
    d->cipher = EVP_CIPHER_CTX_new();
    fleet_assert(d->cipher &&
                 EVP_CipherInit_ex(d->cipher, EVP_aes_256_gcm(), NULL, key, NULL, encrypts) == 1);
}

struct seal *seal_new(const uint8_t send_key[SEAL_KEY_SIZE],
                      const uint8_t receive_key[SEAL_KEY_SIZE])
{
    struct seal *seal = calloc(1, sizeof(*seal));

    fleet_assert(seal != NULL);
    open_direction(&seal->out, send_key, 1);
    open_direction(&seal->in, receive_key, 0);
    return seal;
}

void seal_free(struct seal *seal)
{
    if (!seal)
        return;
    EVP_CIPHER_CTX_free(seal->out.cipher); /* clears the key */
    EVP_CIPHER_CTX_free(seal->in.cipher);
    OPENSSL_cleanse(seal, sizeof(*seal));
    free(seal);
}

/* ---- one record ------------------------------------------------------------------------------ */

static void begin(struct direction *d)
{
    uint8_t nonce[NONCE_SIZE] = {0};
    int length;

    for (int i = 0; i < 8; i++)
        nonce[4 + i] = (uint8_t)(d->records >> (8 * i));
    d->records++;
    fleet_assert(EVP_CipherInit_ex(d->cipher, NULL, NULL, NULL, nonce, -1) == 1 &&
                 EVP_CipherUpdate(d->cipher, NULL, &length, d->bytes, LENGTH_SIZE) == 1);
}

/* Encrypt as much of the parts as a record takes. */
static void close_record(struct seal *seal, const struct iovec *parts, int count)
{
    struct direction *d = &seal->out;
    uint8_t *to = d->bytes + LENGTH_SIZE;
    size_t text = 0;
    int length;

    for (int i = 0; i < count; i++)
        text += parts[i].iov_len;
    text = text < TEXT_MAX ? text : TEXT_MAX;
    for (int i = 0; i < LENGTH_SIZE; i++)
        d->bytes[i] = (uint8_t)(text >> (8 * i));
    begin(d);
    for (size_t left = text; left > 0; parts++) {
        size_t piece = parts->iov_len < left ? parts->iov_len : left;
        if (piece > 0)
            fleet_assert(EVP_CipherUpdate(d->cipher, to, &length, parts->iov_base, (int)piece) ==
                         1);
        to += piece;
        left -= piece;
    }
    fleet_assert(EVP_CipherFinal_ex(d->cipher, to, &length) == 1 &&
                 EVP_CIPHER_CTX_ctrl(d->cipher, EVP_CTRL_GCM_GET_TAG, SEAL_TAG_SIZE, to) == 1);
    seal->text = text;
    seal->sent = 0;
    seal->record = LENGTH_SIZE + text + SEAL_TAG_SIZE;
}

/* Bytes of the record that arrives; 0: not known yet. -EBADMSG: there is no such record. */
static ssize_t record_bytes(const struct seal *seal)
{
    size_t text = 0;

    if (seal->filled < LENGTH_SIZE)
        return 0;
    for (int i = 0; i < LENGTH_SIZE; i++)
        text |= (size_t)seal->in.bytes[i] << (8 * i);
    if (text == 0 || text > TEXT_MAX)
        return -EBADMSG;
    return (ssize_t)(LENGTH_SIZE + text + SEAL_TAG_SIZE);
}

/* The record is here: check and decrypt it, in place. */
static int open_record(struct seal *seal, size_t record)
{
    struct direction *d = &seal->in;
    size_t text = record - LENGTH_SIZE - SEAL_TAG_SIZE;
    uint8_t *at = d->bytes + LENGTH_SIZE;
    int length;

    begin(d);
    fleet_assert(EVP_CipherUpdate(d->cipher, at, &length, at, (int)text) == 1 &&
                 EVP_CIPHER_CTX_ctrl(d->cipher, EVP_CTRL_GCM_SET_TAG, SEAL_TAG_SIZE, at + text) ==
                     1);
    if (EVP_CipherFinal_ex(d->cipher, at + text, &length) != 1)
        return -EBADMSG;
    seal->first = LENGTH_SIZE;
    seal->end = LENGTH_SIZE + text;
    return 0;
}

/* ---- the socket ------------------------------------------------------------------------------ */

static ssize_t result_of(ssize_t moved, bool sends)
{
    if (moved < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -errno;
    return moved == 0 && !sends ? -EPIPE : moved;
}

/* Returns 1: the whole record has left; 0: the socket is full; or an error. */
static int flush(struct seal *seal, int fd)
{
    while (seal->sent < seal->record) {
        ssize_t moved;
        do
            moved = send(fd, seal->out.bytes + seal->sent, seal->record - seal->sent,
                         MSG_DONTWAIT | MSG_NOSIGNAL);
        while (moved < 0 && errno == EINTR);
        moved = result_of(moved, true);
        if (moved <= 0)
            return (int)moved;
        seal->sent += (size_t)moved;
    }
    seal->record = seal->sent = 0;
    return 1;
}

ssize_t seal_send(struct seal *seal, int fd, const struct iovec *parts, int count)
{
    int rc;

    if (seal->record == 0)
        close_record(seal, parts, count);
    rc = flush(seal, fd);
    return rc <= 0 ? rc : (ssize_t)seal->text;
}

/* Read until there is checked text. Returns 1: there is; 0: nothing more has come; or an error. */
static int fill(struct seal *seal, int fd)
{
    for (;;) {
        ssize_t record = record_bytes(seal), moved;
        size_t wanted = record > 0 ? (size_t)record : LENGTH_SIZE;
        if (record < 0)
            return (int)record;
        if (record > 0 && seal->filled >= wanted)
            return open_record(seal, wanted) < 0 ? -EBADMSG : 1;
        do /* what follows the record stays in the socket */
            moved = recv(fd, seal->in.bytes + seal->filled, wanted - seal->filled, MSG_DONTWAIT);
        while (moved < 0 && errno == EINTR);
        moved = result_of(moved, false);
        if (moved <= 0)
            return (int)moved;
        seal->filled += (size_t)moved;
    }
}

ssize_t seal_receive(struct seal *seal, int fd, const struct iovec *parts, int count)
{
    ssize_t moved = 0;

    for (int i = 0; i < count; i++) {
        char *to = parts[i].iov_base;
        for (size_t left = parts[i].iov_len; left > 0;) {
            size_t piece;
            int rc = seal_has_text(seal) ? 1 : fill(seal, fd);
            if (rc <= 0)
                return moved > 0 ? moved : rc;
            piece = seal->end - seal->first < left ? seal->end - seal->first : left;
            memcpy(to, seal->in.bytes + seal->first, piece);
            seal->first += piece;
            to += piece;
            left -= piece;
            moved += (ssize_t)piece;
            if (!seal_has_text(seal))
                seal->filled = 0;
        }
    }
    return moved;
}

bool seal_is_sending(const struct seal *seal)
{
    return seal->record > 0;
}

bool seal_has_text(const struct seal *seal)
{
    return seal->first < seal->end;
}
