"""What LangSmith is to a tracer: an HTTP server that takes runs and changes of runs."""

from __future__ import annotations

import email
import email.policy
import json
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LIMITS = {
    "scale_up_qsize_trigger": 1000,
    "scale_up_nthreads_limit": 1,
    "scale_down_nempty_trigger": 4,
    "size_limit": 100,
    "size_limit_bytes": 2**24,
}


class Collector:
    """Keeps the runs that are sent to it, as LangSmith would show them."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = defaultdict(dict)
        self._lock = threading.Lock()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                config = {"use_multipart_endpoint": True, **LIMITS}
                self._answer({"version": "0.12.0", "batch_ingest_config": config, "instance_flags": {}})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path.endswith("/runs/multipart"):
                    collector._take(self.headers["content-type"], body)
                self._answer({})

            def _answer(self, content: Any) -> None:
                body = json.dumps(content).encode()
                self.send_response(200 if self.command == "GET" else 202)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Collector:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, content_type: str, body: bytes) -> None:
        head = f"content-type: {content_type}\r\n\r\n".encode()
        message = email.message_from_bytes(head + body, policy=email.policy.HTTP)
        for part in message.iter_parts():
            _, run_id, *field = str(part.get_param("name", header="content-disposition")).split(".")
            payload: Any = part.get_payload(decode=True)
            with self._lock:
                if not field:
                    self.runs[run_id] |= {k: v for k, v in json.loads(payload).items() if v is not None}
                elif field[0] in ("inputs", "outputs", "extra", "events", "serialized"):
                    self.runs[run_id][field[0]] = json.loads(payload)

    def ended(self, run_id: str) -> dict[str, Any] | None:
        """Returns a run if it has ended."""
        with self._lock:
            run = self.runs.get(run_id, {})
            return dict(run) if run.get("end_time") else None
