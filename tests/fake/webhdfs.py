#!/usr/bin/env python3
"""WebHDFS for tests: a name node that redirects to a data node, both in this process, over a folder.

Usage: webhdfs.py FOLDER. It prints its port. A connection that ends inside a CREATE leaves the part
that has arrived at its path, as a data node does. Its answers to what is wrong are those of Hadoop
3.4. User "nobody" may do nothing. For user "early" the name node is in safe mode for two requests of
each operation; for user "forgetful" the first answer to each MKDIRS, RENAME and DELETE is lost.
"""
import collections
import http.server
import json
import os
import shutil
import sys
import urllib.parse

ROOT = sys.argv[1]
STACK = "\n\tat org.apache.hadoop.hdfs.server.namenode.INodeFile.valueOf(INodeFile.java:91)"
seen = collections.Counter()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    forgets = False

    def answer(self, status, body=b"", headers=()):
        if self.forgets:
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if body:
            self.wfile.write(body)

    def json(self, value, status=200):
        self.answer(status, json.dumps(value).encode())

    def fail(self, status, exception, message):
        self.json({"RemoteException": {"exception": exception, "message": message}}, status)

    def status_of(self, path, name):
        kind = "DIRECTORY" if os.path.isdir(path) else "FILE"
        changed = int(os.path.getmtime(path) * 1000)
        return {"pathSuffix": name, "type": kind, "length": os.path.getsize(path), "modificationTime": changed}

    def handle_any(self):
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        side, _, name = url.path.lstrip("/").partition("/v1/")
        name = urllib.parse.unquote(name)
        path = os.path.join(ROOT, name)
        op = query.get("op", "")
        user = query.get("user.name", "dr.who")
        above = os.path.dirname(path)
        while above.startswith(ROOT) and not os.path.exists(above):
            above = os.path.dirname(above)
        seen[user, op] += 1
        if side not in ("webhdfs", "data"):
            self.answer(404, b"<html><h2>HTTP ERROR 404 Not Found</h2></html>")
        elif " " in user:
            self.fail(400, "IllegalArgumentException", 'Invalid value for webhdfs parameter "user.name": ' + user)
        elif user == "nobody":
            self.fail(403, "AccessControlException", "Permission denied: user=nobody")
        elif user == "early" and seen[user, op] <= 2:
            self.fail(403, "SafeModeException", "Name node is in safe mode.")
        elif op in ("CREATE", "MKDIRS") and ":" in name:
            self.fail(400, "InvalidPathException", "Invalid path name /" + name)
        elif op in ("CREATE", "MKDIRS") and os.path.isfile(above):
            self.fail(403, "ParentNotDirectoryException", "/%s (is not a directory)%s" % (name, STACK))
        elif side == "webhdfs" and op in ("OPEN", "CREATE"):
            if op == "OPEN" and not os.path.isfile(path):
                self.fail(404, "FileNotFoundException", "File does not exist: /" + name)
                return
            size = os.path.getsize(path) if op == "OPEN" else 0
            if size and int(query.get("offset", 0)) >= size:
                self.fail(403, "IOException", "Offset=%s out of the range [0, %d)" % (query["offset"], size))
                return
            where = "http://%s/data/v1/%s?%s" % (self.headers["Host"], urllib.parse.quote(name), url.query)
            self.answer(307, headers=[("Location", where)])
        else:
            self.forgets = user == "forgetful" and op in ("MKDIRS", "RENAME", "DELETE") and seen[user, op] == 1
            getattr(self, "do_" + op.lower(), self.unknown)(name, path, query)

    do_GET = do_PUT = do_DELETE = do_POST = handle_any

    def unknown(self, _name, _path, _query):
        self.fail(400, "IllegalArgumentException", "Invalid value for webhdfs parameter \"op\"")

    def do_getfilestatus(self, name, path, _query):
        if not os.path.exists(path):
            self.fail(404, "FileNotFoundException", "File does not exist: /" + name)
        else:
            self.json({"FileStatus": self.status_of(path, "")})

    def do_liststatus(self, _name, path, _query):
        names = sorted(os.listdir(path))
        self.json({"FileStatuses": {"FileStatus": [self.status_of(os.path.join(path, n), n) for n in names]}})

    def do_mkdirs(self, _name, path, _query):
        os.makedirs(path, exist_ok=True)
        self.json({"boolean": True})

    def do_delete(self, _name, path, _query):
        found = os.path.exists(path)
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif found:
            os.remove(path)
        self.json({"boolean": found})

    def do_rename(self, _name, path, query):
        to = os.path.join(ROOT, query["destination"].lstrip("/"))
        good = os.path.exists(path) and not os.path.exists(to) and os.path.isdir(os.path.dirname(to))
        if good:
            os.rename(path, to)
        self.json({"boolean": good})

    def do_open(self, _name, path, query):
        with open(path, "rb") as file:
            file.seek(int(query.get("offset", 0)))
            self.answer(200, file.read(int(query.get("length", -1))))

    def do_create(self, _name, path, _query):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        left = int(self.headers.get("Content-Length", 0))
        with open(path, "wb") as file:
            while left:
                chunk = self.rfile.read1(min(left, 65536))
                if not chunk:
                    self.close_connection = True
                    return
                file.write(chunk)
                left -= len(chunk)
        self.answer(201)


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
sys.stdout.write("%d\n" % server.server_address[1])
sys.stdout.flush()
server.serve_forever()
