"""Receives metrics by OTLP with OpenTelemetry's own messages and gRPC's own server, and prints them as JSON.

    receive_otlp.py CERTIFICATE KEY

Listens on free loopback ports for http, https, grpc and grpcs. The first line of output has the ports; each further one is a push with its protocol,
its headers, its resource, its metrics with their points, and the number of unknown fields. `GET /fail` on the http port makes
all four protocols refuse later pushes, `GET /accept` makes them accept pushes again.
"""

import gzip
import json
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import (
    MetricsServiceServicer,
    add_MetricsServiceServicer_to_server,
)

fails = threading.Event()
printing = threading.Lock()


def show(what: object) -> None:
    """Prints one line and flushes it."""
    with printing:
        print(json.dumps(what), flush=True)


def unknown(message: Message) -> int:
    """Returns the number of unknown fields in a message and its submessages."""
    count = len(UnknownFieldSet(message))
    for field, value in message.ListFields():
        if field.message_type is not None:
            inner = [value] if isinstance(value, Message) else list(value)
            count += sum(unknown(one) for one in inner)
    return count


def attributes(pairs) -> dict:
    """Returns attributes as a table; asserts that each is text and unique."""
    table = {}
    for pair in pairs:
        assert pair.value.WhichOneof("value") == "string_value", pair
        assert pair.key not in table, pair
        table[pair.key] = pair.value.string_value
    return table


def metric(one) -> dict:
    """Returns a metric with its points."""
    kind = one.WhichOneof("data")
    data = getattr(one, kind)
    points = [
        {
            "attributes": attributes(point.attributes),
            "start": point.start_time_unix_nano,
            "time": point.time_unix_nano,
            "value": getattr(point, point.WhichOneof("value")),
        }
        for point in data.data_points
    ]
    is_sum = kind == "sum"
    return {
        "name": one.name,
        "unit": one.unit,
        "kind": kind,
        "is_monotonic": is_sum and data.is_monotonic,
        "is_cumulative": is_sum and data.aggregation_temporality == 2,
        "points": points,
    }


def receive(by: str, headers: dict, request: ExportMetricsServiceRequest) -> None:
    """Prints a push."""
    [reporter] = request.resource_metrics
    metrics = [metric(one) for scope in reporter.scope_metrics for one in scope.metrics]
    resource = attributes(reporter.resource.attributes)
    show({"by": by, "headers": headers, "resource": resource, "unknown": unknown(request), "metrics": metrics})


class OverHttp(BaseHTTPRequestHandler):
    """OTLP over HTTP, and the requests that make it fail."""

    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/fail":
            fails.set()
        elif self.path == "/accept":
            fails.clear()
        self.answer(200, b"")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/metrics" or self.headers["Content-Type"] != "application/x-protobuf":
            return self.answer(404, b"")
        if fails.is_set():
            return self.answer(503, b"not now")
        if self.headers["Content-Encoding"] == "gzip":
            body = gzip.decompress(body)
        headers = {name.lower(): value for name, value in self.headers.items()}
        receive(self.server.way, headers, ExportMetricsServiceRequest.FromString(body))
        self.answer(200, ExportMetricsServiceResponse().SerializeToString())

    def log_message(self, *_) -> None:
        pass


class OverGrpc(MetricsServiceServicer):
    """OTLP over gRPC."""

    def __init__(self, way: str) -> None:
        self.way = way

    def Export(self, request, context):
        if fails.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        receive(self.way, dict(context.invocation_metadata()), request)
        return ExportMetricsServiceResponse()


def over_http(way: str, context: ssl.SSLContext | None) -> int:
    """Starts the HTTP server and returns its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), OverHttp)
    server.way, server.daemon_threads = way, True
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_port


def over_grpc(way: str, credentials) -> int:
    """Starts the gRPC server and returns its port."""
    server = grpc.server(ThreadPoolExecutor(2))
    add_MetricsServiceServicer_to_server(OverGrpc(way), server)
    place = "127.0.0.1:0"
    port = server.add_secure_port(place, credentials) if credentials else server.add_insecure_port(place)
    server.start()
    servers.append(server)
    return port


servers: list = []
certificate, key = sys.argv[1:]
tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
tls.load_cert_chain(certificate, key)
signed = grpc.ssl_server_credentials([(Path(key).read_bytes(), Path(certificate).read_bytes())])
show(
    {
        "http": over_http("http", None),
        "https": over_http("https", tls),
        "grpc": over_grpc("grpc", None),
        "grpcs": over_grpc("grpcs", signed),
    }
)
threading.Event().wait()
