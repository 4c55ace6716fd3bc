/* SPDX-License-Identifier: Apache-2.0 */

/*
 * X.509 by OpenSSL, everything in memory. Each certificate gets 128 random bits as its serial
 * number and is valid from an hour ago, for clocks that are behind.
 */
#include "libfleet/rendezvous/tls_identity.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libfleet/base/assert.h"
#include "libfleet/base/clock.h"
#include "libfleet/base/error.h"

#define COMMON_NAME_MAX 64  /* bytes, by X.520 */
#define NAME_MAX_SIZE   253 /* bytes of a DNS name */
#define DNS_CHARACTERS  "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-."

void tls_identity_release(struct tls_identity *identity)
{
    if (identity->key_pem)
        OPENSSL_cleanse(identity->key_pem, strlen(identity->key_pem));
    free(identity->certificate_pem);
    free(identity->key_pem);
    *identity = (struct tls_identity){0};
}

static int openssl_error(struct fleet_error *err, int code, const char *what)
{
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());

    ERR_clear_error();
    return fleet_error(err, code, "%s: %s", what, reason ? reason : "refused");
}

static char *bio_text(BIO *bio)
{
    char *data;
    long size = BIO_get_mem_data(bio, &data);
    char *text = malloc((size_t)size + 1);

    fleet_assert(text != NULL);
    memcpy(text, data, (size_t)size);
    text[size] = '\0';
    return text;
}

static int to_pem(X509 *certificate, EVP_PKEY *key, struct tls_identity *out,
                  struct fleet_error *err)
{
    BIO *certificate_bio = BIO_new(BIO_s_mem()), *key_bio = BIO_new(BIO_s_mem());
    int rc = 0;

    fleet_assert(certificate_bio != NULL && key_bio != NULL);
    if (!PEM_write_bio_X509(certificate_bio, certificate) ||
        !PEM_write_bio_PKCS8PrivateKey(key_bio, key, NULL, NULL, 0, NULL, NULL)) {
        rc = openssl_error(err, -EIO, "write certificate");
    } else {
        out->certificate_pem = bio_text(certificate_bio);
        out->key_pem = bio_text(key_bio);
    }
    BIO_free(certificate_bio);
    BIO_free(key_bio);
    return rc;
}

static bool add_extension(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509_EXTENSION *extension;
    bool ok;

    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    ok = extension && X509_add_ext(certificate, extension, -1);
    X509_EXTENSION_free(extension);
    return ok;
}

static bool set_serial(X509 *certificate)
{
    unsigned char bytes[16];
    BIGNUM *number;
    bool ok;

    if (RAND_bytes(bytes, sizeof(bytes)) != 1)
        return false;
    bytes[0] &= 0x7f; /* positive */
    bytes[0] |= 0x40; /* and never zero */
    number = BN_bin2bn(bytes, sizeof(bytes), NULL);
    ok = number && BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate));
    BN_free(number);
    return ok;
}

/* All parts of a certificate except the issuer, the extensions and the signature. */
static X509 *new_certificate(const char *name, int days, time_t now, EVP_PKEY *key)
{
    X509 *certificate = X509_new();
    X509_NAME *subject = certificate ? X509_get_subject_name(certificate) : NULL;
    char common_name[COMMON_NAME_MAX + 1]; /* clients verify the DNS name, which is not cut */

    (void)snprintf(common_name, sizeof(common_name), "%s", name);

    if (subject && X509_set_version(certificate, X509_VERSION_3) && set_serial(certificate) &&
        X509_time_adj_ex(X509_getm_notBefore(certificate), 0, -3600, &now) &&
        X509_time_adj_ex(X509_getm_notAfter(certificate), days, 0, &now) &&
        X509_set_pubkey(certificate, key) &&
        X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)common_name,
                                   -1, -1, 0))
        return certificate;
    X509_free(certificate);
    return NULL;
}

static bool complete_ca(X509 *certificate, EVP_PKEY *key)
{
    return X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) &&
           add_extension(certificate, certificate, NID_basic_constraints,
                         "critical,CA:TRUE,pathlen:0") &&
           add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
           add_extension(certificate, certificate, NID_subject_key_identifier, "hash") &&
           X509_sign(certificate, key, EVP_sha256()) > 0;
}

static bool complete_leaf(X509 *certificate, const char *name, X509 *ca, EVP_PKEY *ca_key)
{
    char names[NAME_MAX_SIZE + 8];

    (void)snprintf(names, sizeof(names), "DNS:%s", name);
    if (ASN1_TIME_compare(X509_get0_notAfter(certificate), X509_get0_notAfter(ca)) > 0 &&
        !X509_set1_notAfter(certificate, X509_get0_notAfter(ca)))
        return false;
    return X509_set_issuer_name(certificate, X509_get_subject_name(ca)) &&
           add_extension(certificate, ca, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(certificate, ca, NID_key_usage, "critical,digitalSignature") &&
           add_extension(certificate, ca, NID_ext_key_usage, "serverAuth") &&
           add_extension(certificate, ca, NID_subject_alt_name, names) &&
           add_extension(certificate, ca, NID_authority_key_identifier, "keyid") &&
           X509_sign(certificate, ca_key, EVP_sha256()) > 0;
}

/* A new key and a certificate for it: self-signed if `ca` is NULL. */
static int make(const char *name, int days, time_t now, X509 *ca, EVP_PKEY *ca_key,
                struct tls_identity *out, struct fleet_error *err)
{
    EVP_PKEY *key = NULL;
    X509 *certificate = NULL;
    int rc;

    if (name[0] == '\0' || strlen(name) > NAME_MAX_SIZE || days < 1 || days > 36500 ||
        (ca && strspn(name, DNS_CHARACTERS) != strlen(name)))
        return fleet_error(
            err, -EINVAL,
            "certificate for \"%.80s\" of %d days: the name must be a DNS name of 1 to %d bytes, "
            "the days be in 1 … 36500",
            name, days, NAME_MAX_SIZE);
    ERR_clear_error();
    key = EVP_EC_gen("P-256");
    certificate = key ? new_certificate(name, days, now, key) : NULL;
    if (certificate &&
        (ca ? complete_leaf(certificate, name, ca, ca_key) : complete_ca(certificate, key)))
        rc = to_pem(certificate, key, out, err);
    else
        rc = openssl_error(err, -EIO, "make certificate");
    X509_free(certificate);
    EVP_PKEY_free(key);
    return rc;
}

int tls_identity_make_ca(const char *common_name, int days, struct tls_identity *out,
                         struct fleet_error *err)
{
    return make(common_name, days, time(NULL), NULL, NULL, out, err);
}

static int read_pem(const struct tls_identity *identity, X509 **out_certificate, EVP_PKEY **out_key,
                    struct fleet_error *err)
{
    BIO *certificate_bio = BIO_new_mem_buf(identity->certificate_pem, -1);
    BIO *key_bio = BIO_new_mem_buf(identity->key_pem, -1);
    X509 *certificate = PEM_read_bio_X509(certificate_bio, NULL, NULL, NULL);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(key_bio, NULL, NULL, NULL);
    int rc = 0;

    if (!certificate)
        rc = openssl_error(err, -EINVAL, "certificate is not PEM");
    else if (!key)
        rc = openssl_error(err, -EINVAL, "key is not PEM");
    else if (X509_check_private_key(certificate, key) != 1)
        rc = openssl_error(err, -EINVAL, "key does not belong to the certificate");
    if (rc < 0) {
        X509_free(certificate);
        EVP_PKEY_free(key);
    } else {
        *out_certificate = certificate;
        *out_key = key;
    }
    BIO_free(certificate_bio);
    BIO_free(key_bio);
    return rc;
}

int tls_identity_sign_at(const struct tls_identity *ca, const char *name, int days,
                         int64_t now_wall_ms, struct tls_identity *out, struct fleet_error *err)
{
    X509 *certificate;
    EVP_PKEY *key;
    int rc = read_pem(ca, &certificate, &key, err);

    if (rc < 0)
        return fleet_error_wrap(err, "read CA");
    rc = make(name, days, (time_t)(now_wall_ms / 1000), certificate, key, out, err);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return rc;
}

int tls_identity_sign(const struct tls_identity *ca, const char *name, int days,
                      struct tls_identity *out, struct fleet_error *err)
{
    return tls_identity_sign_at(ca, name, days, fleet_wall_ms(), out, err);
}

static int64_t to_wall_ms(const ASN1_TIME *time)
{
    struct tm parts;

    return ASN1_TIME_to_tm(time, &parts) == 1 ? (int64_t)timegm(&parts) * 1000 : 0;
}

int tls_identity_validity(const char *certificate_pem, int64_t *out_from_wall_ms,
                          int64_t *out_until_wall_ms, struct fleet_error *err)
{
    BIO *bio = BIO_new_mem_buf(certificate_pem, -1);
    X509 *certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL);

    BIO_free(bio);
    if (!certificate)
        return openssl_error(err, -EINVAL, "certificate is not PEM");
    *out_from_wall_ms = to_wall_ms(X509_get0_notBefore(certificate));
    *out_until_wall_ms = to_wall_ms(X509_get0_notAfter(certificate));
    X509_free(certificate);
    return 0;
}

int tls_identity_check(const char *certificate_pem, const char *key_pem, struct fleet_error *err)
{
    struct tls_identity identity = {(char *)certificate_pem, (char *)key_pem};
    X509 *certificate;
    EVP_PKEY *key;
    int rc = read_pem(&identity, &certificate, &key, err);

    if (rc < 0)
        return rc;
    X509_free(certificate);
    EVP_PKEY_free(key);
    return 0;
}

double tls_identity_expiry_s(const char *certificate_pem)
{
    BIO *bio = BIO_new_mem_buf(certificate_pem, -1);
    X509 *certificate = bio ? PEM_read_bio_X509(bio, NULL, NULL, NULL) : NULL;
    struct tm when;
    double expiry_s = 0;

    if (certificate && ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &when) == 1)
        expiry_s = (double)timegm(&when);
    X509_free(certificate);
    BIO_free(bio);
    return expiry_s;
}
