"""Local object stores for tests: moto's S3 server, and the XML interface of Google Cloud before it.

Requests pass through a gateway that can fail them.
"""

import http.client
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

SECRET = "secret-never-to-be-printed"
ENVIRONMENT = {
    "s3": {
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": "{}",
    },
    "gs": {"STORAGE_EMULATOR_HOST": "{}"},
}


class Gateway(ThreadingHTTPServer):
    """Passes requests to moto, records them, and fails those that `fault` names."""

    daemon_threads = True
    fault: Callable[[str, str, int], str] | None = None
    """Called with method, path and number of the request; returns '' to pass it on, a status such
    as '503', 'cut' to close the connection, 'late' to close it after the request was carried out,
    or 'short' to close it after half of the content."""

    def __init__(self, moto: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.moto = moto
        self.requests: list[tuple[str, str]] = []
        self.generations: dict[str, list[str]] = {}
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def environment(self, scheme: str) -> dict[str, str]:
        """Environment variables by which clients find this server."""
        return {name: text.format(self.url) for name, text in ENVIRONMENT[scheme].items()}

    def handle_error(self, request, client_address) -> None:
        """Clients that are killed are a part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it delays a content that follows its headers by 40 ms

    def _pass(self) -> None:
        server: Gateway = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with server.lock:
            number = len(server.requests)
            server.requests.append((self.command, self.path))
        fault = server.fault(self.command, self.path, number) if server.fault else ""
        if fault == "cut":
            self.close_connection = True
            return
        if fault.isdigit():
            self._answer(int(fault), [], b"<Error><Code>Injected</Code></Error>")
            return
        status, headers, content = self._forward(body)
        if fault == "late":
            self.close_connection = True
            return
        self._answer(status, headers, content, half=fault == "short")

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """Send a request to moto; preconditions on generations become ones on ETags."""
        server: Gateway = self.server
        headers = {k.lower(): v for k, v in self.headers.items() if k.lower() != "host"}
        name, mark, query = self.path.partition("?")
        path = urllib.parse.quote(urllib.parse.unquote(name)) + mark + query
        known = server.generations.setdefault(urllib.parse.unquote(name), [])
        wanted = headers.pop("x-goog-if-generation-match", None)
        if wanted == "0":
            headers["if-none-match"] = "*"
        elif wanted:
            headers["if-match"] = known[int(wanted) - 1] if int(wanted) <= len(known) else '"none"'
        # moto recognises a service by the signature, which it does not verify.
        scope = "Credential=tests/20260101/us-east-1/s3/aws4_request"
        if not headers.get("authorization", "").startswith("AWS4"):
            headers["authorization"] = f"AWS4-HMAC-SHA256 {scope}, SignedHeaders=host, Signature=0"
        if source := headers.pop("x-goog-copy-source", None):
            headers["x-amz-copy-source"] = source
        connection = http.client.HTTPConnection("127.0.0.1", server.moto, timeout=60)
        connection.request(self.command, path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        found = answer.getheaders()
        connection.close()
        tag = answer.headers.get("ETag")
        if tag and not source:
            with server.lock:
                if self.command == "PUT" or tag not in known:
                    # A write of equal content is a new generation and has the same ETag.
                    known.append(tag)
                found.append(("x-goog-generation", str(len(known))))
        return answer.status, found, content

    def _answer(
        self, status: int, headers: list[tuple[str, str]], content: bytes, *, half: bool = False
    ) -> None:
        self.send_response(status)
        length = str(len(content))
        for name, value in headers:
            if name.lower() == "content-length":
                length = value if self.command == "HEAD" else length
            elif not re.fullmatch("(?i)transfer-encoding|connection|date|server", name):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[: len(content) // 2] if half else content)
        self.close_connection |= half

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def started():
    """Run moto's server in a process of its own; yield its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1"]
    server = subprocess.Popen(
        [*command, "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                connection.request("PUT", "/bucket")
                assert connection.getresponse().status == 200
                connection.close()
                break
            except ConnectionRefusedError:
                assert server.poll() is None
                time.sleep(0.1)
        yield port
    finally:
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def moto():
    pytest.importorskip("obstore")
    pytest.importorskip("moto.server")
    with started() as port:
        yield port


# The complete test suite repeats all tests with the second interface.
@pytest.fixture(params=["s3", pytest.param("gs", marks=pytest.mark.slow)])
def served(request, moto, monkeypatch):
    """A gateway and a URL below it that no other test uses."""
    gateway = Gateway(moto)
    for name, value in gateway.environment(request.param).items():
        monkeypatch.setenv(name, value)
    yield gateway, f"{request.param}://bucket/{request.module.__name__}/{request.node.name}"
    gateway.shutdown()
    gateway.server_close()
