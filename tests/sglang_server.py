"""A stand-in for a SGLang server: the endpoints that the client uses, with the shapes of SGLang 0.5.19's own sources.

As a program (`python -m sglang.launch_server` in a test's stub of the package) it takes SGLang's arguments.
"""

import json
import os
import socket
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

INFO = {
    "model_path": "/models/ling-3.0-tiny",
    "tokenizer_path": "/models/ling-3.0-tiny",
    "load_format": "dummy",
    "dtype": "bfloat16",
    "quantization": None,
    "tp_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "enable_dp_attention": False,
    "nnodes": 1,
    "attention_backend": "triton",
    "disable_overlap_schedule": False,
    "speculative_algorithm": None,
    "stream_interval": 1,
    "host": "127.0.0.1",
    "port": 30000,
    "api_key": "secret",
    "random_seed": 12345,
    "status": "ready",
    "max_total_num_tokens": 100_000,
    "startup_time": {"total": 50.0},
    "internal_states": [{"last_gen_throughput": 400.0, "world_size": 1}],
    "version": "0.5.19",
    "kv_events": None,
}
SPECULATIVE = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_num_draft_tokens": 4}


@dataclass
class Behaviour:
    """What the server does. step_s: a forward pass; commits: tokens each makes, in turn; trace: what a profile leaves.

    fault: where it goes wrong; asked: (path, body) of every request; profile_s: until files are there.
    """

    info: dict[str, Any] = field(default_factory=dict)
    step_s: float = 0.001
    commits: tuple[int, ...] = (1,)
    tells_verified: bool = True
    counters: bool = False
    incremental: bool = False
    fault: str = ""
    trace: Path | None = None
    ranks: tuple[str, ...] = ("TP-0",)
    profile_s: float = 0.0
    asked: list[tuple[str, Any]] = field(default_factory=list)
    verified: int = 0
    generated: int = 0
    requests: int = 0

    def bodies(self, path: str) -> list[Any]:
        return [body for asked, body in self.asked if asked == path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: Behaviour

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def _answer(self, body: Any) -> None:
        path, does = self.path, self.behaviour
        does.asked.append((path, body))
        if does.fault == f"401 {path}":
            self._send(401, {"error": "Unauthorized"})
        elif does.fault == f"404 {path}":
            self._send(404, {"detail": "Not Found"})
        elif does.fault == f"text {path}":
            self._send(200, "hello")
        elif does.fault == f"500 {path}":
            self._send(500, "Internal Server Error")
        elif does.fault == f"503 {path}":
            self._send(503, "")
        elif does.fault == f"silent {path}":
            time.sleep(2)
        elif does.fault == f"hang up {path}":
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            getattr(self, PATHS.get(path, "unknown"))(body)

    def unknown(self, _: Any) -> None:
        self._send(404, {"detail": "Not Found"})

    def server_info(self, _: Any) -> None:
        if self.behaviour.fault == "old":
            self.unknown(None)
        else:
            self._send(200, {**INFO, **self.behaviour.info})

    def get_server_info(self, _: Any) -> None:
        self._send(200, {**INFO, "version": "0.4.6"}) if self.behaviour.fault == "old" else self.unknown(None)

    def health(self, _: Any) -> None:
        self._send(200, "")

    def flush_cache(self, _: Any) -> None:
        busy = self.behaviour.fault == "busy"
        self._send(400 if busy else 200, "Flush cache failed.\n" if busy else "Cache flushed.\n")

    def metrics(self, _: Any) -> None:
        does = self.behaviour
        if not does.counters:
            self.unknown(None)
            return
        labels = '{model_name="ling",is_streaming="True"}'
        self._send(
            200,
            "# HELP sglang:spec_verify_calls_total Number of speculative decoding verification calls.\n"
            f'sglang:spec_verify_calls_total{{model_name="ling"}} {does.verified:.1f}\n'
            f"sglang:generation_tokens_total{labels} {does.generated:.1f}\n",
        )

    def start_profile(self, body: Any) -> None:
        threading.Thread(target=self._profile, args=(self.behaviour, body)).start()
        self._send(200, "Start profiling.\n")

    def stop_profile(self, _: Any) -> None:
        self._send(500, "Internal Server Error")

    @staticmethod
    def _profile(does: Behaviour, body: Any) -> None:
        if does.trace is None:
            return
        folder = Path(body["output_dir"])
        folder.mkdir(parents=True, exist_ok=True)
        data = does.trace.read_bytes()
        for rank in does.ranks:
            path = folder / f"{body['profile_id']}-{rank}.trace.json.gz"
            for written in (0, len(data) // 2):
                path.write_bytes(data[:written])
                time.sleep(does.profile_s / 2)
            if does.fault != "cut" or rank == does.ranks[0]:
                path.write_bytes(data)

    def generate(self, body: Any) -> None:
        does, asked = self.behaviour, body["sampling_params"]["max_new_tokens"]
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if does.fault == "too long":
            self._event(
                {"error": {"message": "The input (9 tokens) is longer than the model's context length (8 tokens)."}}
            )
        elif does.fault == "nonsense":
            self._event({"choices": []})
        else:
            self._tokens(asked)
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _tokens(self, asked: int) -> None:
        does, ids, steps, told = self.behaviour, [7], 0, 0
        while True:
            time.sleep(does.step_s)
            if does.fault == "dies" and len(ids) > 3:
                os._exit(9)
            if does.fault == "breaks off" and len(ids) > 3:
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            done = len(ids) >= asked
            piece, told = ids[told if does.incremental else 0 :], len(ids)
            self._event({"text": "x", "output_ids": piece, "meta_info": self._meta(len(ids), steps, done)})
            if done:
                break
            commit = min(does.commits[steps % len(does.commits)], asked - len(ids))
            ids += [len(ids) + i + does.requests * (does.fault == "unlike") for i in range(commit)]
            steps += 1
        does.verified += steps
        does.generated += len(ids)
        does.requests += 1

    def _meta(self, tokens: int, steps: int, done: bool) -> dict[str, Any]:
        does = self.behaviour
        meta = {"id": "r", "prompt_tokens": 8, "cached_tokens": 0, "completion_tokens": tokens, "finish_reason": None}
        if done:
            meta |= {"finish_reason": {"type": "length", "length": tokens}, "e2e_latency": 1.0}
        if done and does.info.get("speculative_algorithm") and does.tells_verified:
            meta |= {"spec_verify_ct": steps, "spec_accept_length": tokens / steps}
        return meta

    def _event(self, data: Any) -> None:
        self._chunk(b"data: " + json.dumps(data).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _send(self, status: int, said: Any) -> None:
        data = said.encode() if isinstance(said, str) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


PATHS = {
    "/server_info": "server_info",
    "/get_server_info": "get_server_info",
    "/health": "health",
    "/flush_cache": "flush_cache",
    "/metrics": "metrics",
    "/start_profile": "start_profile",
    "/stop_profile": "stop_profile",
    "/generate": "generate",
}


class Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Clients that leave are what some tests are about."""


def made(behaviour: Behaviour, port: int = 0) -> Quiet:
    return Quiet(("127.0.0.1", port), type("Bound", (Handler,), {"behaviour": behaviour}))


@contextmanager
def serving(behaviour: Behaviour):
    """Its URL, while the block runs."""
    server = made(behaviour)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def main(graphs: str, graphs_off: str) -> None:
    """Serves as `sglang.launch_server` would, and leaves one of two recordings when profiled."""
    if "--fail" in sys.argv:
        print("loading\n[2026-01-01 00:00:00] RuntimeError: out of memory\nthe end", flush=True)
        sys.exit(3)
    off = "--disable-cuda-graph" in sys.argv
    fault = "dies" if "--die-later" in sys.argv else ""
    said = Behaviour(info={"model_path": sys.argv[sys.argv.index("--model-path") + 1]}, fault=fault)
    said.trace = Path(graphs_off if off else graphs)
    made(said, int(sys.argv[sys.argv.index("--port") + 1])).serve_forever()
