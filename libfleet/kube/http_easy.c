/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A call as options of curl: address, headers, body, credential, time limit. curl copies everything
 * except the body and the lists, which the call keeps.
 *
 * If a connection breaks before any answer, curl sends the request again on a new one. That is
 * right for a request that only reads. The server may have carried out a request that changes
 * something, and its caller may have lost the lease meanwhile (leader_io.h). So curl gets a body
 * once and cannot rewind it.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "libfleet/base/assert.h"
#include "libfleet/kube/config.h"
#include "libfleet/kube/http_internal.h"

#define CONNECT_TIMEOUT_MS 10000L
#define PEER_SILENT_MS     20000 /* without an acknowledgement for this long, it is dead */
#define KEEPALIVE_S        15L

static size_t on_curl_bytes(char *bytes, size_t one, size_t size, void *user)
{
    struct kube_call *call = user;

    (void)one;
    if (call->answer.length + size > KUBE_RESPONSE_MAX) {
        call->too_large = true;
        return 0;
    }
    fleet_strbuf_append_bytes(&call->answer, bytes, size);
    if (call->request.streaming && kube_call_is_success(call))
        kube_call_make_ready(call);
    return size;
}

static size_t on_curl_wants_body(char *out, size_t one, size_t room, void *user)
{
    struct kube_call *call = user;
    size_t size = call->request.body_size - call->body_taken;

    if (!kube_call_may_leave(call))
        return CURL_READFUNC_ABORT;
    if (size > one * room)
        size = one * room;
    memcpy(out, call->body + call->body_taken, size);
    call->body_taken += size;
    return size;
}

static int on_curl_wants_body_again(void *user, curl_off_t offset, int from)
{
    const struct kube_call *call = user;

    return offset == 0 && from == SEEK_SET && call->body_taken == 0 ? CURL_SEEKFUNC_OK
                                                                    : CURL_SEEKFUNC_FAIL;
}

/* Unacknowledged data reveals a vanished peer within seconds instead of hours. */
static int on_curl_socket_made(void *user, curl_socket_t fd, curlsocktype purpose)
{
    unsigned int silent_ms = PEER_SILENT_MS;
    int one = 1;

    (void)user;
    (void)purpose;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silent_ms, sizeof(silent_ms));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return CURL_SOCKOPT_OK;
}

static void set_blob(CURL *easy, CURLoption option, const struct kube_secret *secret)
{
    struct curl_blob blob = {.data = secret->text, .len = secret->size, .flags = CURL_BLOB_COPY};

    if (secret->text)
        (void)curl_easy_setopt(easy, option, &blob);
}

static void set_identity(CURL *easy, const struct kube_config *config)
{
    set_blob(easy, CURLOPT_CAINFO_BLOB, &config->ca);
    if (config->client_certificate.text && config->client_key.text) {
        set_blob(easy, CURLOPT_SSLCERT_BLOB, &config->client_certificate);
        set_blob(easy, CURLOPT_SSLKEY_BLOB, &config->client_key);
    }
    if (config->proxy) { /* from the kubeconfig, for this server; $no_proxy does not matter */
        (void)curl_easy_setopt(easy, CURLOPT_PROXY, config->proxy);
        (void)curl_easy_setopt(easy, CURLOPT_NOPROXY, "");
    }
    if (config->token.text) {
        (void)curl_easy_setopt(easy, CURLOPT_XOAUTH2_BEARER, config->token.text);
        (void)curl_easy_setopt(easy, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    }
}

static void set_header(struct kube_call *call, const char *name, const char *value)
{
    struct fleet_strbuf line = {0};

    fleet_strbuf_appendf(&line, "%s: %s", name, value);
    call->headers = curl_slist_append(call->headers, line.text);
    fleet_assert(call->headers != NULL);
    fleet_strbuf_release(&line);
}

/* Owned by the caller (curl_free); never NULL. */
static char *url_part(CURLU *url, CURLUPart part, unsigned int flags)
{
    char *text = NULL;

    fleet_assert(curl_url_get(url, part, &text, flags) == CURLUE_OK);
    return text;
}

/*
 * The certificate has another name than the address (tls-server-name). curl gets that name as the
 * host, and the address as the target of the connection. The Host header has the address, as it
 * does without tls-server-name.
 */
static void append_named_server(struct kube_call *call, const char *name, struct fleet_strbuf *out)
{
    FLEET_AUTO_STRBUF struct fleet_strbuf dial = {0}, own = {0};
    CURLU *url = curl_url();
    char *scheme, *host, *port, *path;

    fleet_assert(url != NULL);
    fleet_assert(curl_url_set(url, CURLUPART_URL, call->http->config->server, 0) == CURLUE_OK);
    scheme = url_part(url, CURLUPART_SCHEME, 0);
    host = url_part(url, CURLUPART_HOST, 0);
    port = url_part(url, CURLUPART_PORT, CURLU_DEFAULT_PORT);
    path = url_part(url, CURLUPART_PATH, 0);
    fleet_strbuf_appendf(out, "%s://%s:%s%s", scheme, name, port, path[1] ? path : "");
    fleet_strbuf_appendf(&dial, "%s:%s:%s:%s", name, port, host, port);
    fleet_strbuf_appendf(&own, "%s:%s", host, port);
    call->dial = curl_slist_append(NULL, dial.text);
    (void)curl_easy_setopt(call->easy, CURLOPT_CONNECT_TO, call->dial);
    set_header(call, "Host", own.text);
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_free(path);
    curl_url_cleanup(url);
}

static void set_url(struct kube_call *call)
{
    const struct kube_config *config = call->http->config;
    FLEET_AUTO_STRBUF struct fleet_strbuf url = {0};

    if (config->tls_server_name)
        append_named_server(call, config->tls_server_name, &url);
    else
        fleet_strbuf_append(&url, config->server);
    fleet_strbuf_append(&url, call->path);
    (void)curl_easy_setopt(call->easy, CURLOPT_URL, url.text);
}

static void set_body(struct kube_call *call)
{
    CURL *easy = call->easy;

    set_header(call, "Content-Type", call->content_type);
    set_header(call, "Expect", "");
    (void)curl_easy_setopt(easy, CURLOPT_POST, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)call->request.body_size);
    (void)curl_easy_setopt(easy, CURLOPT_READFUNCTION, on_curl_wants_body);
    (void)curl_easy_setopt(easy, CURLOPT_READDATA, call);
    (void)curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, on_curl_wants_body_again);
    (void)curl_easy_setopt(easy, CURLOPT_SEEKDATA, call);
}

static void set_request(struct kube_call *call)
{
    CURL *easy = call->easy;

    set_url(call);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_2TLS);
    (void)curl_easy_setopt(easy, CURLOPT_PIPEWAIT, 1L); /* join a connection rather than open one */
    (void)curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call->request.method);
    (void)curl_easy_setopt(easy, CURLOPT_USERAGENT, call->http->user_agent);
    set_header(call, "Accept", call->accept);
    if (call->content_type)
        set_body(call);
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, call->headers);
}

static void set_limits(struct kube_call *call, double now_ms)
{
    CURL *easy = call->easy;

    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
    if (call->deadline_ms > 0)
        (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)(call->deadline_ms - now_ms) + 1);
    if (!call->request.streaming) { /* a watch is silent while nothing changes */
        (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
        (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)call->http->stall_s);
    }
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPIDLE, KEEPALIVE_S);
    (void)curl_easy_setopt(easy, CURLOPT_TCP_KEEPINTVL, KEEPALIVE_S);
    (void)curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, on_curl_socket_made);
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, call->curl_text);
    (void)curl_easy_setopt(easy, CURLOPT_PRIVATE, call);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_curl_bytes);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, call);
}

void kube_call_make_easy(struct kube_call *call, double now_ms)
{
    call->easy = curl_easy_init();
    fleet_assert(call->easy != NULL);
    set_request(call);
    set_identity(call->easy, call->http->config);
    set_limits(call, now_ms);
}
