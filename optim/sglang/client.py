"""A SGLang server over HTTP. Whatever goes wrong ends in one sentence: a server that is not there, is no SGLang, is
too old, refuses, or breaks off."""

import http.client
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired, TypedDict
from urllib import error, request
from urllib.parse import urlsplit

import msgspec

from ling_prof import server_info
from ling_prof.errors import UserError
from ling_prof.units import one_line

OLDEST, KNOWN = (0, 5, 6), (0, 5, 19)  # /server_info exists from OLDEST on; written against KNOWN
KEY = "SGLANG_API_KEY"
LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")
ANSWER_S, TOKEN_S = 30, 600  # longest silence: of a control request; of a stream, whose prefill may compile
BEYOND = 256  # tokens that a last commit may make beyond those asked
START = "start one with: python -m sglang.launch_server --model-path MODEL"


Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class Piece(TypedDict):
    """What of a piece's meta_info is used, all of it tokens but the verify steps."""

    completion_tokens: NotRequired[Count]
    cached_tokens: NotRequired[Count | None]
    spec_verify_ct: NotRequired[Count | None]


@dataclass(frozen=True)
class Reply:
    """One streamed request. times_s: when each piece with new tokens came, seconds after the request was sent; counts:
    tokens until then; ids: the tokens, empty where the server sends none; meta: what the last piece said of itself."""

    times_s: list[float]
    counts: list[int]
    ids: list[int] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    """A server that answers; info: what /server_info says."""

    url: str
    info: dict[str, Any]

    @property
    def version(self) -> str:
        return str(self.info["version"])

    @property
    def is_local(self) -> bool:
        return is_local(self.url)

    def health(self) -> None:
        """Raises UserError unless the server says that it serves."""
        with _opened(self.url, "/health", None, ANSWER_S):
            pass

    def post(self, path: str, body: Any, timeout: float = ANSWER_S) -> str:
        """What the server answers. Raises UserError where it refuses, with its own words."""
        with _opened(self.url, path, body, timeout) as answer:
            return answer.read().decode(errors="replace")

    def flush_cache(self) -> str:
        """Empties the prefix cache -> why it could not; empty when it did. Waits a moment for requests to end."""
        for _ in range(10):
            try:
                with _opened(self.url, "/flush_cache", {}, ANSWER_S):
                    return ""
            except Refused as refusal:
                if refusal.status != 400:
                    return refusal.words
                time.sleep(0.3)
        raise UserError(f"{self.url} is busy with other requests; bench needs the server for itself.")

    def counters(self) -> dict[str, float]:
        """Prometheus counters of the server, summed over their labels; none unless it runs with --enable-metrics."""
        try:
            with _opened(self.url, "/metrics", None, ANSWER_S) as answer:
                lines = answer.read().decode(errors="replace").splitlines()
        except Refused:
            return {}
        found: dict[str, float] = {}
        for line in lines:
            if counted := re.match(r"(sglang[:_]\w+_total)(?:\{.*\})?\s+(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?!\S)", line):
                found[counted[1]] = found.get(counted[1], 0.0) + float(counted[2])
        return found

    def generate(
        self, prompt: list[int], tokens: int, temperature: float = 0.0, seen: Callable[[int], None] = lambda _: None
    ) -> Reply:
        """Streams `tokens` new tokens after a prompt of token ids; `seen` is told how many pieces have come.

        Raises UserError where the server refuses or ends early.
        """
        sampling = {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling, "stream": True}
        sent, lines = time.perf_counter(), []
        with _opened(self.url, "/generate", body, TOKEN_S) as answer:
            for line in answer:
                if line.startswith(b"data:"):
                    lines.append((time.perf_counter() - sent, line))  # parsed later: parsing takes time
                    seen(len(lines))
        return _reply(self.url, lines, tokens)


class Unfit(UserError):
    """A server that answers, but not as SGLang does: waiting makes it no better."""


class Refused(UserError):
    """An HTTP error; status, and the server's words."""

    def __init__(self, url: str, path: str, status: int, words: str):
        self.status, self.words = status, words
        if status in (401, 403):
            super().__init__(f"{url} wants a key for {path}; set {KEY} in the environment.")
        else:
            super().__init__(f"{url} refuses {path} (HTTP {status}: {words}).")


def connect(url: str) -> Server:
    """The server at a URL. Raises UserError where none answers, it is no SGLang or too old."""
    url = checked(url)
    info = _info(url, "/server_info")
    if info is None and (old := _info(url, "/get_server_info")) is not None:
        said = f"{url} runs SGLang {old['version']}, which has no /server_info"
        raise UserError(f"{said}; update it to {_name(OLDEST)} or later.")
    if info is None:
        raise UserError(f"{url} answers, but is no SGLang server (it has no /server_info); give the URL of one.")
    try:
        server_info.check(info, url)
    except UserError as fault:
        raise Unfit(str(fault)) from None
    return Server(url, info)


def checked(url: str) -> str:
    """'http://host:port'. Raises UserError for what is no such URL, or holds a password."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        good = False
    if not good or not re.fullmatch(r"[!-~]+", url) or parts.username or parts.query or parts.fragment:
        raise UserError(f"--url takes the address of a server, such as http://127.0.0.1:30000, not {url!r}.")
    return url.rstrip("/")


def is_local(url: str) -> bool:
    """Whether the server is surely on this machine."""
    return urlsplit(url).hostname in LOOPBACK


def doubt(server: Server) -> str:
    """What a reader must know of the version; empty for the one this is written against."""
    if numbers(server.version) == KNOWN:
        return ""
    return f"SGLang {server.version}: this is written against {_name(KNOWN)}"


def numbers(version: str) -> tuple[int, ...]:
    """'0.5.19.post1' -> (0, 5, 19)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def _name(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _info(url: str, path: str) -> dict[str, Any] | None:
    """What a server says of itself; None where it has no such page, or one of something else."""
    try:
        with _opened(url, path, None, ANSWER_S) as answer:
            said = json.loads(answer.read())
    except Refused as refusal:
        if refusal.status in (404, 405):
            return None
        if refusal.status == 503:
            raise UserError(f"{url} is still starting; try again when it serves.") from None
        raise
    except (ValueError, RecursionError):
        return None
    known = isinstance(said, dict) and isinstance(said.get("version"), str) and "model_path" in said
    known = known and len(said["version"]) < 100
    return said if known else None


@contextmanager
def _opened(url: str, path: str, body: Any, timeout: float) -> Iterator[http.client.HTTPResponse]:
    """The answer to a GET or, with a body, a POST. Raises Refused for an HTTP error, UserError for a broken one."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(KEY):
        if not re.fullmatch(r"[!-~]+", key):
            raise UserError(
                f"{KEY} holds more than letters, digits and signs of ASCII, which no key does; set it anew."
            )
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    proxies = request.ProxyHandler({} if is_local(url) else None)
    try:
        with request.build_opener(proxies).open(request.Request(url + path, data, headers), timeout=timeout) as answer:
            yield answer
    except error.HTTPError as refusal:
        raise Refused(url, path, refusal.code, _words(refusal)) from None
    except error.URLError as broken:
        raise UserError(f"no server answers at {url} ({_why(broken.reason)}); {START}.") from None
    except TimeoutError:
        raise UserError(f"{url} says nothing to {path} for {timeout:g} s; its log may tell why.") from None
    except (http.client.HTTPException, ConnectionError) as broken:
        raise UserError(f"{url} broke off while answering {path} ({_why(broken)}); its log may tell why.") from None


def _why(reason: Any) -> str:
    return one_line(getattr(reason, "strerror", None) or str(reason) or type(reason).__name__)


def _words(refusal: error.HTTPError) -> str:
    """The message in an error's body, or its beginning."""
    text = ""
    try:
        text = refusal.read(10_000).decode(errors="replace").strip()
        said = json.loads(text)
        while isinstance(said, dict):
            said = next(said[key] for key in ("error", "message", "detail") if key in said)
        text = said
    except (ValueError, RecursionError, StopIteration, OSError, http.client.HTTPException):
        pass
    return one_line(str(text))[:300].rstrip(".") or refusal.reason


def _reply(url: str, lines: list[tuple[float, bytes]], tokens: int) -> Reply:
    times, counts, ids, meta = list[float](), list[int](), list[int](), dict[str, Any]()
    for at, line in lines:
        data = line[len(b"data:") :].strip()
        if data == b"[DONE]":
            break
        piece = _piece(url, data)
        meta = piece["meta_info"]
        count = meta.get("completion_tokens", 0)
        if count > (counts[-1] if counts else 0):
            times.append(at)
            counts.append(count)
            ids = _ids(ids, piece.get("output_ids"), count)
    got = counts[-1] if counts else 0
    if got < tokens:
        finish = meta.get("finish_reason")
        said = (finish.get("message") if isinstance(finish, dict) else finish) or "its log may tell why"
        reason = one_line(str(said))[:300].rstrip(".")
        raise UserError(f"{url} ended a request after {got} of {tokens} tokens ({reason}).")
    if got > tokens + BEYOND:
        raise UserError(f"{url} says that {tokens} tokens which were asked for became {got}; its log may tell why.")
    return Reply(times, counts, ids, meta)


def _piece(url: str, data: bytes) -> dict[str, Any]:
    try:
        piece = json.loads(data)
        meta = piece.get("meta_info") if isinstance(piece, dict) else None
        if isinstance(meta, dict):
            msgspec.convert(meta, Piece)
            return piece
        said = piece["error"]["message"]
    except msgspec.ValidationError as fault:
        raise UserError(f"{url} streams what SGLang does not: its meta_info has {_lower(fault)}.") from None
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UserError(f"{url} streams what SGLang does not: {one_line(repr(data[:60]))}.") from None
    raise UserError(f"{url} refuses the request ({one_line(str(said))[:300].rstrip('.')}).")


def _lower(fault: msgspec.ValidationError) -> str:
    """'spec_verify_ct: expected `int`, got `str`'."""
    what, _, where = str(fault).partition(" - at `$.")
    return f"{where.rstrip('`')}: {what[:1].lower()}{what[1:]}"


def _ids(before: list[int], piece: Any, count: int) -> list[int]:
    """The tokens so far: pieces hold all of them or, with --incremental-streaming-output, the new ones."""
    if not isinstance(piece, list):
        return before
    return piece if len(piece) == count else before + piece
