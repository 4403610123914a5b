"""The requests that the HTTP listener answers: metrics, health checks, JSON and the status page."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import accumulate
from typing import Any
from urllib.parse import parse_qs

import anyio
from anyio import to_thread
from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ...errors import (
    DeniedError,
    InvalidRequestError,
    LimitError,
    SplitArrowError,
    UnavailableError,
)
from ..addresses import HostNames
from ..auth.issuer import METADATA_PATH, describe_issuer
from ..auth.principal import ANYONE, Permission, Principal
from ..caller import Caller
from ..chunks import ReadAhead
from ..logs import get_logger
from ..metrics import OTHER, Histogram, Metric, MetricType, Sample, merge_samples
from ..refusals import describe_status
from ..report import StreamReport
from .data import VERSION_HEADER, DataResponse, Readers
from .datasets import Target, describe, describe_api
from .formats import ARROW_STREAM, FORMATS, choose_format
from .page import History, Page
from .parameters import DataQuery, parse_json, parse_query
from .preview import read_preview
from .service import Service
from .sessions import run_session
from .upload import receive_upload

_OPEN_METRICS = "application/openmetrics-text"


def render_metrics(
    samples: Iterable[Sample], accept: str, shows: Callable[[str], bool]
) -> tuple[bytes, str]:
    """Return metrics as text, and its content type, which a request accepts.

    The names of datasets that are not shown become `OTHER`.
    """
    # prometheus_client parses versions of the header, and repeats them in the content type.
    types = [media_range.partition(";")[0].strip() for media_range in accept.split(",")]
    encode, content_type = choose_encoder(_OPEN_METRICS if _OPEN_METRICS in types else "")

    def hide(name: str) -> str:
        return name if shows(name) else OTHER

    hidden = merge_samples([[sample.relabel("dataset", hide) for sample in samples]])
    return encode(_Families(hidden)), content_type


class _Families(Collector):
    def __init__(self, samples: Iterable[Sample]) -> None:
        self._samples: dict[Metric, list[Sample]] = {}
        for sample in samples:
            if sample.metric.export is not None:
                self._samples.setdefault(sample.metric, []).append(sample)

    def collect(self) -> Iterator[Family]:
        for metric, samples in self._samples.items():
            yield _build_family(metric, samples)


def _build_family(metric: Metric, samples: Iterable[Sample]) -> Family:
    assert metric.exported_name is not None
    if metric.type is MetricType.HISTOGRAM:
        family = HistogramMetricFamily(metric.exported_name, metric.help, labels=metric.labels)
        for sample in samples:
            assert isinstance(sample.value, Histogram)
            family.add_metric(sample.labels, _list_buckets(sample.value), sample.value.sum)
        return family
    kind = CounterMetricFamily if metric.type is MetricType.COUNTER else GaugeMetricFamily
    simple = kind(metric.exported_name, metric.help, labels=metric.labels)
    for sample in samples:
        assert not isinstance(sample.value, Histogram)
        simple.add_metric(sample.labels, sample.value)
    return simple


def _list_buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return the upper bounds of the buckets, and the number of values up to each of them."""
    bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))


HAS_CERTIFICATE = "has_certificate"
"""The key in the state of a request: whether the client has a certificate that was verified."""
SUBJECT = "subject"
"""The key in the state of a request: the name of the dataset that it is for."""
_STATUS = {
    "INVALID_ARGUMENT": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ALREADY_EXISTS": 409,
    "FAILED_PRECONDITION": 409,
    "RESOURCE_EXHAUSTED": 429,
    "ABORTED": 503,
    "UNAVAILABLE": 503,
    "UNIMPLEMENTED": 405,
}
"""The statuses of HTTP for those of gRPC; 500 for the others."""
_CONDITIONS = frozenset(["if-match", "if-none-match"])
"""The headers with conditions of an upload."""
_EXPOSED = ("accept-ranges", "content-range", "etag", VERSION_HEADER)
"""The headers that pages of other sites may read, besides the usual ones."""
_MAX_JSON_BYTES = 256 << 10
_MAX_FORM_BYTES = 4096
_MAX_FORM_FIELDS = 8
_MAX_THREADS = 8
"""The requests that are answered at a time. The others wait."""
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_CHALLENGE = 'Basic realm="splitarrow", charset="UTF-8"'
"""Lets a browser ask for the token: as the password, with any principal's name or none."""

_HOST = re.compile(r"[A-Za-z0-9.:\[\]-]{1,262}")

_Answer = Callable[[Service, Principal, Request], Awaitable[Response]]


@dataclass
class Application:
    """Answers requests about a daemon.

    Until `service` is set, the daemon is loading: only health checks get an answer then. They need
    neither the name of this server nor a certificate. A server that requires tokens need not check
    names.
    """

    names: HostNames
    checks_names: bool
    requires_certificate: bool
    origins: Sequence[str] = ()
    """The origins of the sites that may read this server from a browser."""
    service: Service | None = None
    """The daemon, once it is ready."""

    def __post_init__(self) -> None:
        self.history = History()
        """The rates of the datasets, for the page."""
        self._page = Page()
        self._secret = secrets.token_bytes(32)
        self._limiter = anyio.CapacityLimiter(_MAX_THREADS)
        self._readers = Readers(ReadAhead())
        self._log = get_logger("http")

    def build(self) -> Starlette:
        """Return the application for an ASGI server."""
        guard = self._guard
        application = Starlette(
            routes=[
                Route("/healthz", self._public(self._health)),
                Route("/readyz", self._public(self._readiness)),
                Route("/style.css", self._public(self._style)),
                Route("/icon.svg", self._public(self._icon)),
                Route(METADATA_PATH, self._issuer_metadata),
                Route("/metrics", guard(self._metrics)),
                Route("/v1/datasets", guard(self._datasets)),
                Route("/v1/openapi.json", guard(self._openapi)),
                Route("/v1/datasets/{path:path}", guard(self._get_dataset)),
                Route("/v1/datasets/{path:path}", guard(self._post_dataset), methods=["POST"]),
                Route("/v1/datasets/{path:path}", guard(self._put_dataset), methods=["PUT"]),
                Route("/v1/streams", guard(self._streams)),
                Route("/", guard(self._status_page)),
                Route("/datasets/{name:path}", guard(self._dataset_page)),
                Route("/streams/{process}/{number}/cancel", guard(self._cancel_page)),
                Route("/streams/{process}/{number}/cancel", guard(self._cancel), methods=["POST"]),
            ],
            middleware=[Middleware(_FramingCheck), *self._allow_origins()],
            exception_handlers={
                HTTPException: self._refuse,
                SplitArrowError: self._refuse_request,
                Exception: self._fail,
            },
        )
        application.router.redirect_slashes = False  # to an address with the client's host name
        return application

    def _allow_origins(self) -> list[Middleware]:
        """Return what lets pages of other sites read responses (CORS)."""
        if not self.origins:
            return []
        return [
            Middleware(
                CORSMiddleware,
                allow_origins=list(self.origins),
                allow_methods=["GET", "HEAD", "POST", "PUT"],
                allow_headers=["authorization", "content-type", *sorted(_CONDITIONS), "range"],
                expose_headers=[*_EXPOSED],
                max_age=600,
            )
        ]

    async def sample(self) -> None:
        """Record the rates of the datasets now."""
        if self.service is not None:
            await self._run(self.history.record, self.service.reporter.reports)

    async def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await to_thread.run_sync(function, *arguments, limiter=self._limiter)

    # --- around every request ------------------------------------------------------------------

    def _public(self, answer: Callable[[], Awaitable[Response]]) -> Any:
        async def respond(request: Request) -> Response:
            del request
            return _with_headers(await answer())

        return respond

    def _guard(self, answer: _Answer) -> Any:
        async def respond(request: Request) -> Response:
            self._check_name(request)
            if self.requires_certificate and not getattr(request.state, HAS_CERTIFICATE):
                raise HTTPException(403, "this server requires a client certificate")
            if self.service is None:
                raise HTTPException(503, "the daemon is loading its datasets")
            principal = await self._authenticate(self.service, request)
            return _with_headers(await answer(self.service, principal, request))

        return respond

    def _check_name(self, request: Request) -> None:
        if self.checks_names and not self.names.accept(request.headers.get("host", "")):
            raise HTTPException(
                421, "the header Host names another server; add the name to http_hosts"
            )

    async def _authenticate(self, service: Service, request: Request) -> Principal:
        pairs = [(name.decode("latin-1"), value) for name, value in request.headers.raw]
        try:
            return await service.context.access.authenticate(pairs)
        except DeniedError as error:
            service.context.refusals.record(error.code, "http", None, "http")
            challenge = {"www-authenticate": _CHALLENGE}
            raise HTTPException(401, error.message, headers=challenge) from None

    async def _refuse(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = PlainTextResponse(f"{error.detail}\n", error.status_code, error.headers)
        address = _find_address(request)
        if error.status_code == 401 and address and self._describe_issuer() is not None:
            challenge = f'Bearer resource_metadata="{address}{METADATA_PATH}"'
            response.headers.append("www-authenticate", challenge)  # browsers expect one in a line
        return _with_headers(response)

    async def _refuse_request(self, request: Request, error: Exception) -> Response:
        """Return the response for an error of a request for data, and count it."""
        assert isinstance(error, SplitArrowError)
        assert self.service is not None
        context = self.service.context
        subject: str | None = getattr(request.state, SUBJECT, None)
        location = None if subject is None else context.catalog.location(subject)
        code, text = describe_status(error, subject, location)
        text = text.partition("; request a new ticket")[0]  # there are none
        context.refusals.record(code, "http", subject, "http")
        status = 413 if isinstance(error, LimitError) else _STATUS.get(code, 500)
        if status == 409 and request.method == "PUT" and _CONDITIONS & {*request.headers}:
            status = 412
        if status >= 500 and not isinstance(error, UnavailableError):
            self._log.error("request failed", path=request.url.path, exc_info=error)
        else:
            self._log.info("request refused", code=code, reason=str(error), dataset=subject)
        headers = {"retry-after": "1"} if status in (429, 503) else None
        return _with_headers(PlainTextResponse(f"{text}\n", status, headers))

    async def _fail(self, request: Request, error: Exception) -> Response:
        self._log.error("request failed", path=request.url.path, exc_info=error)
        text = "internal error; see the server's log\n"
        return _with_headers(PlainTextResponse(text, 500))

    # --- answers -------------------------------------------------------------------------------

    async def _health(self) -> Response:
        if self.service is not None and not await self._run(self.service.reporter.responds):
            return PlainTextResponse("the event loop does not respond\n", 503)
        return PlainTextResponse("ok\n")

    async def _readiness(self) -> Response:
        problem = "the daemon is loading its datasets"
        if self.service is not None:
            problem = await self._run(self.service.find_problem)
        if problem is not None:
            return PlainTextResponse(f"{problem}\n", 503)
        return PlainTextResponse("ok\n")

    def _describe_issuer(self) -> dict[str, Any] | None:
        return None if self.service is None else describe_issuer(self.service.context.settings)

    async def _issuer_metadata(self, request: Request) -> Response:
        """Describe where clients get a token, before they have one: RFC 9728."""
        self._check_name(request)
        issuer = self._describe_issuer()
        if issuer is None:
            raise HTTPException(404, "this server has no issuer of tokens")
        address = _find_address(request)
        if address is None:
            raise HTTPException(400, "the header Host is malformed")
        return _with_headers(JSONResponse({"resource": address, **issuer}))

    async def _style(self) -> Response:
        return Response(self._page.style, media_type="text/css")

    async def _icon(self) -> Response:
        return Response(self._page.icon, media_type="image/svg+xml")

    async def _metrics(self, service: Service, principal: Principal, request: Request) -> Response:
        def render() -> tuple[bytes, str]:
            accept = request.headers.get("accept", "")
            return render_metrics(
                service.samples(), accept, lambda name: principal.may(Permission.READ, name)
            )

        text, content_type = await self._run(render)
        return Response(text, media_type=None, headers={"content-type": content_type})

    async def _datasets(self, service: Service, principal: Principal, request: Request) -> Response:
        del request
        return JSONResponse({"datasets": await self._run(service.list_datasets, principal)})

    async def _openapi(self, service: Service, principal: Principal, request: Request) -> Response:
        del principal, request
        is_writable = service.context.settings.writable is not None
        return JSONResponse(describe_api(accepts_uploads=is_writable))

    def _find_caller(self, service: Service, principal: Principal, request: Request) -> Caller:
        client = request.client
        peer = "" if client is None else f"{client.host}:{client.port}"
        return Caller(service.context, principal, peer)

    async def _get_dataset(
        self, service: Service, principal: Principal, request: Request
    ) -> Response:
        target = Target.parse(request)
        caller = self._find_caller(service, principal, request)
        setattr(request.state, SUBJECT, target.dataset)
        if target.is_data:
            values = parse_query(request.url.query)
            return self._read(caller, target, values, request)
        if request.url.query:
            raise InvalidRequestError("a description has no parameters; a read has, at …/data")
        return JSONResponse(await self._run(describe, caller, target))

    async def _post_dataset(
        self, service: Service, principal: Principal, request: Request
    ) -> Response:
        target = Target.parse(request)
        caller = self._find_caller(service, principal, request)
        setattr(request.state, SUBJECT, target.dataset)
        if not target.is_data:
            raise HTTPException(405, "only data is read with POST", {"allow": "GET, HEAD"})
        if request.url.query:
            raise InvalidRequestError("a POST has its parameters in the body")
        _check_media_type(request, "application/json")
        values = parse_json(await _read_body(request, _MAX_JSON_BYTES))
        return self._read(caller, target, values, request)

    async def _put_dataset(
        self, service: Service, principal: Principal, request: Request
    ) -> Response:
        target = Target.parse(request)
        if not target.is_data or target.shard is not None:
            raise HTTPException(405, "uploads go to /v1/datasets/NAME/data", {"allow": "GET, HEAD"})
        if request.url.query:
            raise InvalidRequestError("an upload has no parameters")
        _check_media_type(request, ARROW_STREAM.media_type)
        setattr(request.state, SUBJECT, target.dataset)
        caller = self._find_caller(service, principal, request)
        return JSONResponse(await receive_upload(caller, target.dataset, request), 201)

    def _read(
        self, caller: Caller, target: Target, values: dict[str, Any], request: Request
    ) -> Response:
        site, mode = (request.headers.get(f"sec-fetch-{name}") for name in ("site", "mode"))
        if site == "cross-site" and mode != "navigate" and not self._allows_origin(request):
            raise HTTPException(403, "another site may not read this server; see http_origins")
        if target.shard is not None:
            if "shard" in values:
                raise InvalidRequestError("the path names the shard; leave shard out")
            values = {**values, "shard": target.shard}
        query = DataQuery.of(target.dataset, values)
        chosen = choose_format(query.format, request.headers.get("accept", ""))
        if chosen is None:
            types = ", ".join(each.media_type for each in FORMATS.values())
            raise HTTPException(406, f"the header Accept allows none of {types}")
        if request.scope["http_version"] == "1.0":
            raise HTTPException(
                426,
                "HTTP/1.0 cannot prove that a response is complete: use HTTP/1.1; in nginx, set "
                "proxy_http_version 1.1",
                {"upgrade": "HTTP/1.1"},
            )
        return DataResponse(caller, query, chosen, request.headers, self._readers)

    def _allows_origin(self, request: Request) -> bool:
        return bool({"*", request.headers.get("origin")} & {*self.origins})

    async def _streams(self, service: Service, principal: Principal, request: Request) -> Response:
        del request
        streams, _ = await self._run(service.list_streams, principal)
        sees_readers = principal.is_operator
        return JSONResponse({"streams": [_encode_stream(one, sees_readers) for one in streams]})

    async def _status_page(
        self, service: Service, principal: Principal, request: Request
    ) -> Response:
        refreshes = request.query_params.get("refresh") != "off"
        notice = request.query_params.get("notice", "")
        text = await self._run(
            lambda: self._page.render_status(service, principal, self.history, refreshes, notice)
        )
        return HTMLResponse(text)

    async def _dataset_page(
        self, service: Service, principal: Principal, request: Request
    ) -> Response:
        name: str = request.path_params["name"]
        setattr(request.state, SUBJECT, name)
        caller = self._find_caller(service, principal, request)
        about = await self._run(describe, caller, Target(name))
        preview, reason = None, "The dataset holds tensors, which have no rows."
        try:
            preview = await run_session(service.context, lambda: read_preview(caller, name))
        except SplitArrowError as error:
            _, reason = describe_status(error, name, service.context.catalog.location(name))
        address = f"{request.url.scheme}://{request.headers.get('host', '')}"
        needs_token = service.context.access.requires_token
        text = await self._run(
            lambda: self._page.render_dataset(
                about, preview, reason, address, needs_token=needs_token
            )
        )
        return HTMLResponse(text)

    async def _cancel_page(
        self, service: Service, principal: Principal, request: Request
    ) -> Response:
        process, number = _read_stream(request)
        streams, _ = await self._run(service.list_streams, principal)
        for stream in streams:
            is_chosen = (stream.process, stream.number) == (process, number)
            if is_chosen and stream.may_be_cancelled_by(principal):
                form_token = self._make_form_token(principal)
                return HTMLResponse(self._page.render_cancel(stream, form_token))
        return RedirectResponse("/?notice=ended", 303)

    async def _cancel(self, service: Service, principal: Principal, request: Request) -> Response:
        site = request.headers.get("sec-fetch-site", "same-origin")
        form = await _read_form(request)
        token = form.get("token", "")
        if site != "same-origin" or not hmac.compare_digest(
            token.encode(), self._make_form_token(principal).encode()
        ):
            raise HTTPException(403, "the request does not come from this page: load it again")
        process, number = _read_stream(request)
        owner = None if principal.is_operator else principal.name
        is_cancelled = await self._run(service.reporter.cancel, process, number, owner)
        if is_cancelled:
            self._log.info("stream cancelled", stream=number, principal=principal.name)
        return RedirectResponse(f"/?notice={'cancelled' if is_cancelled else 'ended'}", 303)

    def _make_form_token(self, principal: Principal) -> str:
        """Return what a form must contain: no other site can read or compute it."""
        key = b"\0" if principal is ANYONE else b"\1" + principal.name.encode()
        return hmac.new(self._secret, key, sha256).hexdigest()


class _FramingCheck:
    """Refuses requests with two lengths, which another server could take for two requests.

    See RFC 9112, section 6.3. The connection closes then.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
            text = "the request has both Content-Length and Transfer-Encoding; send only one\n"
            response = PlainTextResponse(text, 400, {"connection": "close"})
            await _with_headers(response)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


_STREAM_NUMBER = re.compile("[0-9]{1,18}")


def _read_stream(request: Request) -> tuple[str, int]:
    number: str = request.path_params["number"]
    if not _STREAM_NUMBER.fullmatch(number):
        raise HTTPException(404, "the number of a stream has 1 to 18 digits")
    return request.path_params["process"], int(number)


def _check_media_type(request: Request, expected: str) -> None:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != expected:
        raise HTTPException(415, f"the header Content-Type has to be {expected}")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise HTTPException(415, "the body must not have a Content-Encoding")


async def _read_body(request: Request, max_bytes: int) -> bytes:
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                raise HTTPException(413, f"the body is larger than {max_bytes} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "the body is incomplete") from None
    return body


async def _read_form(request: Request) -> dict[str, str]:
    body = await _read_body(request, _MAX_FORM_BYTES)
    try:
        fields = parse_qs(body.decode("latin-1"), max_num_fields=_MAX_FORM_FIELDS)
    except ValueError:
        raise HTTPException(400, f"the form has more than {_MAX_FORM_FIELDS} fields") from None
    return {name: values[0] for name, values in fields.items()}


def _encode_stream(stream: StreamReport, sees_reader: bool) -> dict[str, Any]:
    reader = {"peer": stream.peer, "principal": stream.principal} if sees_reader else {}
    return {
        "process": stream.process,
        "stream": stream.number,
        "dataset": stream.dataset,
        "transport": stream.transport,
        "rows": stream.rows,
        "bytes": stream.nbytes,
        "seconds": round(stream.seconds, 3),
        "waited_seconds": round(stream.waited_seconds, 3),
        "compression": stream.compression,
        **reader,
    }


def _find_address(request: Request) -> str | None:
    """Return the address that the client has dialled; None if its header Host is malformed."""
    host = request.headers.get("host", "")
    return f"{request.url.scheme}://{host}" if _HOST.fullmatch(host) else None


def _with_headers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response
