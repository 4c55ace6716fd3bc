"""A metrics API of Kubernetes with one external metric, `nodes`, whose value is what a file says.

metrics_api.py CERTIFICATE KEY VALUE: serves HTTPS on a free port of 127.0.0.1 and prints the port.
"""

import datetime
import http.server
import json
import ssl
import sys

GROUP = "external.metrics.k8s.io/v1beta1"


def list_resources():
    resource = {"name": "nodes", "singularName": "", "namespaced": True, "verbs": ["get"]}
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": GROUP,
        "resources": [resource | {"kind": "ExternalMetricValueList"}],
    }


def read_metric(path):
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    with open(path, encoding="utf-8") as file:
        value = {"metricName": "nodes", "timestamp": now, "value": file.read().strip()}
    return {
        "kind": "ExternalMetricValueList",
        "apiVersion": GROUP,
        "metadata": {},
        "items": [value | {"metricLabels": {}}],
    }


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.split("?")[0].rstrip("/")
        if path == f"/apis/{GROUP}":
            self.answer(200, list_resources())
        elif path.startswith(f"/apis/{GROUP}/namespaces/") and path.endswith("/nodes"):
            self.answer(200, read_metric(sys.argv[3]))
        else:
            self.answer(404, {"kind": "Status", "apiVersion": "v1", "code": 404})

    def answer(self, code, content):
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1], sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
