#!/usr/bin/env python3
"""S3 for tests: one process over a folder whose subfolders are buckets.

Usage: s3.py FOLDER. It prints its port. FOLDER/../faults, if it is there, has lines
"METHOD WORDS COUNT STATUS": the first COUNT requests of METHOD whose key has WORDS in it get STATUS
(0: the connection is cut in the middle of the body). The method RANGE is a GET of a part, whose key
has "@FIRST BYTE" behind it. FOLDER/../log gets "METHOD KEY RANGE STATUS"
for each request. Only requests signed with the key "fleetuser" are accepted, and bodies must have
the digest that was signed.
"""
import hashlib
import http.server
import os
import sys
import threading
import urllib.parse
from xml.sax.saxutils import escape

ROOT = sys.argv[1]
HOME = os.path.dirname(os.path.abspath(ROOT))
used = {}
lock = threading.Lock()


def fault_of(method, key):
    """The status of the first line that fits and is not used up; None: no fault."""
    try:
        with open(os.path.join(HOME, "faults"), encoding="utf-8") as file:
            lines = file.read().split("\n")
    except OSError:
        return None
    for line in lines:
        words = line.split()
        if len(words) != 4 or words[0] != method or words[1] not in key:
            continue
        with lock:
            if used.get(line, 0) < int(words[2]):
                used[line] = used.get(line, 0) + 1
                return int(words[3])
    return None


def tag_of(path):
    with open(path, "rb") as file:
        return '"%s"' % hashlib.md5(file.read()).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=(), length=None):
        with lock, open(os.path.join(HOME, "log"), "a", encoding="utf-8") as file:
            file.write("%s %s %s %d\n" % (self.command, self.key, self.headers.get("Range", "-"), status))
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status, code, message):
        text = "<Error><Code>%s</Code><Message>%s</Message></Error>" % (code, message)
        self.answer(status, text.encode())

    def cut(self):
        self.close_connection = True
        self.connection.close()

    def read_body(self, bytes_max):
        left, body = min(int(self.headers.get("Content-Length", 0)), bytes_max), b""
        while len(body) < left:
            chunk = self.rfile.read1(left - len(body))
            if not chunk:
                return None
            body += chunk
        return body

    def handle_any(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        self.key = urllib.parse.unquote(url.path).lstrip("/")
        path = os.path.join(ROOT, self.key)
        status = fault_of(self.command, self.key)
        if status is None and "Range" in self.headers:
            first = self.headers["Range"].removeprefix("bytes=").split("-")[0]
            status = fault_of("RANGE", "%s@%s" % (self.key, first))
        half = int(self.headers.get("Content-Length", 0)) // 2
        if status == 0 and self.command == "PUT":
            self.read_body(half)
            return self.cut()
        body = self.read_body(1 << 40)
        if "Credential=fleetuser/" not in self.headers.get("Authorization", ""):
            return self.fail(403, "InvalidAccessKeyId", "The key is not known")
        if status:
            return self.fail(status, "MadeUp", "a fault of the test")
        return getattr(self, "on_" + self.command.lower())(path, query, body, status == 0)

    do_GET = do_HEAD = do_PUT = do_DELETE = handle_any

    def on_head(self, path, _query, _body, _is_cut):
        if not os.path.isfile(path):
            return self.answer(404)
        return self.answer(200, headers=[("ETag", tag_of(path))], length=os.path.getsize(path))

    def on_get(self, path, query, _body, is_cut):
        if "list-type" in query:
            return self.list(path, query)
        if not os.path.isfile(path):
            return self.fail(404, "NoSuchKey", "The key does not exist")
        tag = tag_of(path)
        with open(path, "rb") as file:
            data = file.read()
        if self.headers.get("If-Match", tag) != tag:
            return self.fail(412, "PreconditionFailed", "It is another object")
        status = 200
        if "Range" in self.headers:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            data, status = data[int(first) : int(last) + 1], 206
        if is_cut:
            self.answer(status, data[: len(data) // 2], [("ETag", tag)], len(data))
            return self.cut()
        return self.answer(status, data, [("ETag", tag)])

    def list(self, bucket, query):
        if not os.path.isdir(bucket):
            return self.fail(404, "NoSuchBucket", "The bucket does not exist")
        prefix, keys, prefixes = query.get("prefix", ""), [], set()
        for folder, _, names in os.walk(bucket):
            for name in names:
                key = os.path.relpath(os.path.join(folder, name), bucket)
                if not key.startswith(prefix) or name.startswith(".writing"):
                    continue
                rest = key[len(prefix) :]
                if query.get("delimiter") and "/" in rest:
                    prefixes.add(prefix + rest.split("/")[0] + "/")
                else:
                    keys.append(key)
        text = "".join("<Contents><Key>%s</Key></Contents>" % escape(urllib.parse.quote(k))
                       for k in sorted(keys)[: int(query.get("max-keys", 1000))])
        text += "".join("<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>" % escape(urllib.parse.quote(p))
                        for p in sorted(prefixes))
        return self.answer(200, ("<ListBucketResult>%s</ListBucketResult>" % text).encode())

    def on_put(self, path, _query, body, _is_cut):
        if body is None:
            return self.cut()
        if hashlib.sha256(body).hexdigest() != self.headers.get("x-amz-content-sha256"):
            return self.fail(400, "XAmzContentSHA256Mismatch", "The digest differs")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        draft = os.path.join(os.path.dirname(path), ".writing-%d" % threading.get_ident())
        with open(draft, "wb") as file:
            file.write(body)
        os.rename(draft, path)
        return self.answer(200, headers=[("ETag", tag_of(path))])

    def on_delete(self, path, _query, _body, _is_cut):
        if os.path.isfile(path):
            os.remove(path)
            folder = os.path.dirname(path)
            while folder.count("/") > ROOT.count("/") + 1 and not os.listdir(folder):
                os.rmdir(folder)
                folder = os.path.dirname(folder)
        return self.answer(204)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
sys.stdout.write("%d\n" % server.server_address[1])
sys.stdout.flush()
server.serve_forever()
