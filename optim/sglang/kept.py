"""What a worker answers, and what an ablation of SGLang keeps of it in its store, kind by kind: as shapes."""

from typing import Annotated, Any, TypedDict

from msgspec import Meta

from optim.sglang.proof import Proof

Ns = Annotated[float, Meta(ge=1e3, lt=1e12)]
Accepted = Annotated[float, Meta(ge=1e-3, lt=1e3)]
Milliseconds = Annotated[float, Meta(ge=0)]
Tokens = Annotated[list[int], Meta(min_length=1)]
Counts = Annotated[list[Annotated[int, Meta(ge=0, lt=1 << 62)]], Meta(min_length=1)]


class Facts(TypedDict):
    """What a worker runs on."""

    hardware: list[str] | None
    driver: str | None
    cuda: str | None
    torch: str | None
    triton: str | None
    python: str | None
    clocks: dict[str, float | None]
    versions: dict[str, str | None]
    server: dict[str, Any]


class Begun(Facts):
    """What the first server ran on, and when."""

    date: str
    code: str


class Request(TypedDict):
    """A request that was served. ends_ns: of each piece that came, since the request; sizes: its tokens."""

    tokens: Tokens
    ttft_ms: Milliseconds
    ends_ns: Counts
    sizes: Counts
    accept_length: Accepted


class Recording(TypedDict):
    """A recording that was left."""

    file: str


class Visit(TypedDict):
    """A request that was timed. ns: a token; accept_length: tokens a step."""

    ns: Ns
    accept_length: Accepted
    ttft_ms: Milliseconds


class Distance(TypedDict):
    """How far logits are from those without passes (optim.sglang.distances); no figures where they are not finite."""

    finite: bool
    positions: Annotated[int, Meta(ge=1)]
    top1_agreement: Annotated[float, Meta(ge=0, le=1)] | None
    kl_mean: Annotated[float, Meta(ge=0, lt=1e18)] | None
    kl_max: Annotated[float, Meta(ge=0, lt=1e18)] | None


SHAPES: dict[str, Any] = {
    "begun": Begun,
    "proof": Annotated[list[Proof], Meta(min_length=1)],
    "text": Annotated[list[Tokens], Meta(min_length=2, max_length=2)],  # greedy, and after a sampled request
    "distance": Distance,
    "logits": str,  # SHA-256 of the file of those without passes
    "unjudged": str,  # why there is no distance; empty where there is one
    "visit": Visit,
    "trace": str,
}
