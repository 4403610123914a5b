"""A ticket is good once and for its contents. Anything else is refused."""

from __future__ import annotations

import base64
import dataclasses
import fcntl
import gc
import json
import os
import pickle
import random
import string
from collections.abc import Iterator
from multiprocessing.context import set_spawning_popen
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.clock import Clock
from splitarrow.errors import (
    ConfigError,
    DeniedError,
    ExhaustedError,
    InvalidRequestError,
    UnavailableError,
    UsageError,
)
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.request import (
    COMPRESSIONS,
    FORMATS,
    MAX_FILTER_CHARS,
    MAX_VERSION_CHARS,
    Request,
)
from splitarrow.protocol.uri import Streams
from splitarrow.server.auth.tickets import TICKET_BYTES, ReplayCache, TicketClaims, TicketSigner

KEY = bytes(range(32))
OTHER = bytes(range(100, 140))
BOTH, METADATA, BODY = Streams.BOTH, Streams.METADATA, Streams.BODY
BASE64URL = (string.ascii_letters + string.digits + "-_").encode()


@pytest.fixture
def signer(clock: Clock) -> Iterator[TicketSigner]:
    new_signer = TicketSigner([KEY], 300, clock)
    yield new_signer
    new_signer.close()


def denied(signer: TicketSigner, ticket: bytes, stream: Streams = BOTH) -> str:
    """Return the error message for a ticket that must be refused."""
    with pytest.raises(DeniedError) as caught:
        signer.redeem(ticket, stream)
    assert caught.value.code == "UNAUTHENTICATED"
    text = str(caught.value)
    assert "\n" not in text
    if len(ticket) >= 8:
        assert ticket.decode("latin-1") not in text
        assert repr(ticket)[2:-1] not in text
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.code) == (text, "UNAUTHENTICATED")
    return text


def known_values(name: str) -> st.SearchStrategy[Any]:
    """Return valid values of a field of `Request`, by its type unless the field is known here."""
    texts = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=20)
    ranges = st.tuples(st.integers(0, 2**31), st.integers(2**31, 2**63 - 1))
    named: dict[str, st.SearchStrategy[Any]] = {
        "dataset": texts.filter(lambda text: "\0" not in text),
        "columns": st.lists(texts, min_size=1, max_size=5).map(tuple),
        "compression": st.sampled_from(COMPRESSIONS),
        "format": st.sampled_from(FORMATS),
        "batches": ranges,
        "current": st.booleans(),
        "rows": ranges,
        "batch_rows": st.integers(1, 2**63 - 1),
        "filter": st.binary(max_size=50).map(lambda data: base64.urlsafe_b64encode(data).decode()),
    }
    field_type = next(field.type for field in dataclasses.fields(Request) if field.name == name)
    default = st.integers(0, 2**31) if "int" in str(field_type) else texts
    return named.get(name, default)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    names = [field.name for field in dataclasses.fields(Request) if field.name != "dataset"]
    chosen = {name: draw(known_values(name)) for name in names if draw(st.booleans())}
    try:
        return Request(draw(known_values("dataset")), **chosen)
    except InvalidRequestError:  # the fields exclude each other
        return Request(draw(known_values("dataset")))


@given(request=requests(), principal=st.sampled_from(["training", "Zoë", "x" * 256]))
def test_redeeming_returns_what_was_signed(request: Request, principal: str) -> None:
    signer = TicketSigner([KEY], 300, Clock())
    ticket = signer.sign(request, principal)
    assert ticket.isascii()
    assert len(ticket) <= TICKET_BYTES <= DEFAULT_LIMITS.ticket_bytes
    sealed = signer.redeem(ticket, BOTH)
    assert (sealed.request, sealed.principal) == (request, principal)
    assert len(sealed.nonce) == 16
    signer.close()


def test_every_field_of_a_request_is_signed(signer: TicketSigner) -> None:
    """New fields are signed too. None may have the name of one of the ticket's own."""
    samples: dict[str, Any] = {"columns": ("b", "a"), "compression": "zstd", "format": "vortex"}
    samples |= {"batches": (3, 7), "rows": (3, 7), "current": True}
    types = {field.name: str(field.type) for field in dataclasses.fields(Request)}
    assert types.keys().isdisjoint({"p", "e", "n"})
    del types["dataset"]
    for name, field_type in types.items():
        value = samples.get(name, 7 if "int" in field_type else "AAAA")
        request = Request("data", **{name: value})
        assert signer.redeem(signer.sign(request, "x"), BOTH).request == request


def test_the_payload_is_canonical_json(signer: TicketSigner, clock: Clock) -> None:
    ticket = signer.sign(Request("flüge", columns=("b", "a"), limit=3), "training")
    prefix, payload, signature = ticket.split(b".")
    assert (prefix, len(signature)) == (b"sa1", 43)
    text = base64.urlsafe_b64decode(payload + b"==").decode()
    nonce = json.loads(text)["n"]
    assert text == (
        '{"columns":["b","a"],"dataset":"fl\\u00fcge","e":1900000301,'
        f'"limit":3,"n":"{nonce}","p":"training"}}'
    )
    assert clock.now + 300 <= 1900000301


def test_every_ticket_is_unique(signer: TicketSigner) -> None:
    assert len({signer.sign(Request("data"), "x") for _ in range(200)}) == 200


GOOD = TicketSigner([KEY], 300, Clock()).sign(Request("data", columns=("a", "b")), "training")


def test_every_altered_bit_is_refused(signer: TicketSigner) -> None:
    for index in range(len(GOOD)):
        for bit in range(8):
            altered = bytearray(GOOD)
            altered[index] ^= 1 << bit
            denied(signer, bytes(altered))
    assert signer.redeem(GOOD, BOTH).request.dataset == "data"


def test_every_other_base64_of_the_same_signature_is_refused(signer: TicketSigner) -> None:
    """The last character has two unused bits, so a lenient decoder would accept four of them."""
    for last in BASE64URL:
        if last != GOOD[-1]:
            denied(signer, GOOD[:-1] + bytes([last]))
    for ending in (b"=", b"==", b"\n", b" ", b"A", b"."):
        denied(signer, GOOD + ending)


def test_every_truncation_is_refused(signer: TicketSigner) -> None:
    for length in range(len(GOOD)):
        denied(signer, GOOD[:length])
        denied(signer, GOOD[length + 1 :])


@given(data=st.data())
def test_an_edited_ticket_is_refused(data: st.DataObject) -> None:
    signer = TicketSigner([KEY], 300, Clock())
    begin = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(begin, len(GOOD)))
    alphabet = st.sampled_from([bytes([byte]) for byte in BASE64URL])
    put = data.draw(st.one_of(st.binary(max_size=20), st.lists(alphabet).map(b"".join)))
    edited = GOOD[:begin] + put + GOOD[end:]
    if edited != GOOD:
        denied(signer, edited)
    signer.close()


@given(ticket=st.one_of(st.binary(max_size=200), st.text().map(lambda text: text.encode())))
def test_arbitrary_bytes_are_refused(ticket: bytes) -> None:
    signer = TicketSigner([KEY], 300, Clock())
    denied(signer, ticket)
    denied(signer, b"sa1." + ticket)
    denied(signer, b"sa1." + base64.urlsafe_b64encode(ticket).rstrip(b"=") + b"." + b"A" * 43)
    signer.close()


def test_parts_of_different_tickets_are_refused(signer: TicketSigner) -> None:
    first, second = (signer.sign(Request(name), "x").split(b".") for name in ("data", "other"))
    denied(signer, b".".join((first[0], second[1], first[2])))
    denied(signer, b".".join((first[0], first[2], first[1])))
    denied(signer, b".".join((first[1], first[0], first[2])))
    assert signer.redeem(b".".join(first), BOTH).request.dataset == "data"


def test_a_ticket_signed_with_another_key_is_refused(signer: TicketSigner, clock: Clock) -> None:
    foreign = TicketSigner([OTHER], 300, clock)
    assert "was not signed by this server" in denied(signer, foreign.sign(Request("data"), "x"))
    assert "was not signed by this server" in denied(foreign, signer.sign(Request("data"), "x"))


def test_keys_can_be_rotated(clock: Clock) -> None:
    old, new = TicketSigner([OTHER], 300, clock), TicketSigner([KEY, OTHER], 300, clock)
    assert new.redeem(old.sign(Request("data"), "x"), BOTH).principal == "x"
    ticket = new.sign(Request("data"), "x")
    assert TicketSigner([KEY], 300, clock).redeem(ticket, BOTH).principal == "x"
    denied(old, ticket)


def test_without_keys_each_signer_has_its_own(clock: Clock) -> None:
    one, two = TicketSigner(clock=clock), TicketSigner(clock=clock)
    ticket = one.sign(Request("data"), "x")
    denied(two, ticket)
    assert one.redeem(ticket, BOTH).principal == "x"


def test_an_expired_ticket_is_refused(signer: TicketSigner, clock: Clock) -> None:
    tickets = [signer.sign(Request("data"), "x") for _ in range(2)]
    clock.now += 300
    assert signer.redeem(tickets[0], BOTH).request == Request("data")
    clock.now = 1900000301
    assert denied(signer, tickets[1]).startswith("the ticket expired 0 s ago")
    clock.now += 0.25
    assert denied(signer, tickets[1]).startswith("the ticket expired 0 s ago")
    clock.now += 59
    assert denied(signer, tickets[1]).startswith("the ticket expired 59 s ago")


@pytest.mark.parametrize(
    ("streams", "good"),
    [
        ((BOTH, BOTH), (True, False)),
        ((BOTH, METADATA), (True, False)),
        ((BOTH, BODY), (True, False)),
        ((METADATA, METADATA), (True, False)),
        ((METADATA, BODY, BODY), (True, True, False)),
        ((BODY, METADATA, BOTH), (True, True, False)),
        ((BODY, BOTH, METADATA, METADATA), (True, False, True, False)),
    ],
)
def test_a_ticket_is_good_once_for_each_stream(
    signer: TicketSigner, streams: tuple[Streams, ...], good: tuple[bool, ...]
) -> None:
    ticket = signer.sign(Request("data"), "x")
    for stream, is_good in zip(streams, good, strict=True):
        if is_good:
            assert signer.redeem(ticket, stream).request == Request("data")
        else:
            assert "was already used" in denied(signer, ticket, stream)


def test_the_error_names_the_version_of_a_ticket(signer: TicketSigner) -> None:
    for version in (2, 17, 9999):
        assert f"the ticket has version {version}; this server reads version 1" in denied(
            signer, b"sa%d" % version + GOOD[3:]
        )
    assert "requires a signed ticket" in denied(signer, b"sax.")
    assert "requires a signed ticket" in denied(signer, b"data")
    assert "requires a signed ticket" in denied(signer, b'{"dataset": "data"}')
    assert "requires a signed ticket" in denied(signer, b"\xff\xfe")
    assert "damaged" in denied(signer, b"sa1.")


def test_a_ticket_over_the_size_limit_is_refused(signer: TicketSigner) -> None:
    assert f"the limit is {TICKET_BYTES}" in denied(signer, b"sa1." + b"A" * TICKET_BYTES)
    denied(signer, b"sa1." + b"A" * (TICKET_BYTES - 48) + b"." + b"A" * 43)


def test_a_ticket_may_have_64_kib(signer: TicketSigner) -> None:
    assert TICKET_BYTES == 64 << 10
    empty = len(signer.sign(Request("d"), "x"))
    most = (TICKET_BYTES - empty) * 3 // 4
    ticket = next(
        ticket
        for size in range(most - 4, most + 4)
        if len(ticket := signer.sign(Request("d" * size), "x")) == TICKET_BYTES
    )
    assert signer.redeem(ticket, BOTH).principal == "x"
    with pytest.raises(InvalidRequestError, match=r"has 655[0-9]+ bytes; the limit is 65536"):
        signer.sign(Request("d" * (most + 4)), "x")


def test_a_lifetime_may_be_short(clock: Clock) -> None:
    signer = TicketSigner([KEY], 0.5, clock)
    ticket = signer.sign(Request("data"), "x")
    assert signer.redeem(ticket, BOTH).expires == 1900000001
    signer.close()


def test_a_request_too_large_for_a_ticket_is_not_signed(signer: TicketSigner) -> None:
    columns = tuple(f"column {number}" for number in range(10_000))
    with pytest.raises(InvalidRequestError, match="request fewer columns"):
        signer.sign(Request("data", columns=columns), "x")


def test_the_largest_filter_fits_into_a_signed_ticket(signer: TicketSigner) -> None:
    request = Request("d" * 64, filter="A" * MAX_FILTER_CHARS, version="v" * MAX_VERSION_CHARS)
    ticket = signer.sign(request, "p" * 64)
    assert len(ticket) <= DEFAULT_LIMITS.ticket_bytes
    assert signer.redeem(ticket, Streams.BOTH).request == request


def signed(payload: bytes, key: bytes = KEY) -> bytes:
    """Return a ticket with a valid signature and any payload."""
    from splitarrow.server.auth.tickets import _compute_mac, _encode_base64

    text = b"sa1." + _encode_base64(payload)
    return text + b"." + _compute_mac(key, text)


@pytest.mark.parametrize(
    "payload",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 40_000,
        b'{"dataset":"data"}',
        b'{"dataset":"data","e":2000000000,"n":"0","p":"x"}',
        b'{"dataset":"data","e":2000000000.5,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"data","e":true,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"data","e":1e999,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"data","e":9223372036854775808,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"data","e":-1,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"data","e":-%s,"n":"%s","p":"x"}' % (b"9" * 400, b"0" * 32),
        b'{"dataset":"data","e":2000000000,"n":"%s","p":7}' % (b"0" * 32),
        b'{"dataset":"data","e":2000000000,"n":"%s","p":"x\\n"}' % (b"0" * 32),
        b'{"dataset":7,"e":2000000000,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"e":2000000000,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"\\ud800","e":2000000000,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"data","later":1,"e":2000000000,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"data","limit":%s,"e":2000000000,"n":"%s","p":"x"}' % (b"9" * 4400, b"0" * 32),
    ],
)
def test_a_signed_payload_with_unknown_contents_is_refused(
    signer: TicketSigner, payload: bytes
) -> None:
    """A later version with the same keys could sign such a payload."""
    assert "does not know the contents" in denied(signer, signed(payload))


@settings(max_examples=100)
@given(
    values=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    ),
    name=st.sampled_from([*(field.name for field in dataclasses.fields(Request)), "p", "e", "n"]),
)
def test_a_signed_payload_with_arbitrary_values_is_valid_or_denied(values: Any, name: str) -> None:
    signer = TicketSigner([KEY], 300, Clock())
    good = {"dataset": "data", "e": 2_000_000_000, "n": "0" * 32, "p": "x"}
    ticket = signed(json.dumps({**good, name: values}).encode())
    try:
        assert isinstance(signer.redeem(ticket, BOTH), TicketClaims)
    except DeniedError:
        pass
    signer.close()


@pytest.mark.parametrize("principal", ["", "x" * 257, "a\nb", "a\0"])
def test_a_principal_with_an_unprintable_name_gets_no_ticket(
    signer: TicketSigner, principal: str
) -> None:
    with pytest.raises(UsageError):
        signer.sign(Request("data"), principal)


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(UsageError, match="must be positive"):
        TicketSigner([KEY], 0)
    with pytest.raises(UsageError, match="must be positive"):
        TicketSigner([KEY], float("nan"))
    with pytest.raises(UsageError, match="must be positive"):
        TicketSigner([KEY], float("inf"))
    with pytest.raises(ConfigError, match="has 31 bytes; it needs at least 32"):
        TicketSigner([KEY[:31]])
    with pytest.raises(ConfigError, match="not random"):
        TicketSigner([bytes(32)])
    with pytest.raises(ConfigError, match="at least one key"):
        TicketSigner([])
    with pytest.raises(UsageError, match="at least 1"):
        ReplayCache(0)


# The replay cache.


def test_the_replay_cache_is_bounded_and_forgets_no_valid_ticket(clock: Clock) -> None:
    memory = ReplayCache(64)
    signer = TicketSigner([KEY], 300, clock, memory)
    used = [signer.sign(Request("data"), "x") for _ in range(64)]
    for ticket in used:
        signer.redeem(ticket, BOTH)
    late = signer.sign(Request("data"), "x")
    with pytest.raises(ExhaustedError, match="too many tickets"):
        signer.redeem(late, BOTH)
    for ticket in used:
        assert "was already used" in denied(signer, ticket)
    clock.now += 301
    assert "expired" in denied(signer, late)
    assert signer.redeem(signer.sign(Request("data"), "x"), BOTH)


def test_an_unsigned_ticket_has_no_nonce_and_no_expiry() -> None:
    claims = TicketClaims(Request("data"), "anyone")
    assert (claims.nonce, claims.expires, claims.signed) == (b"", 0, False)


def test_a_replay_cache_remembers_262144_tickets() -> None:
    cache = ReplayCache()
    assert repr(cache) == "<ReplayCache 262144 tickets>"
    cache.close()


def test_the_smallest_replay_cache_has_one_bucket() -> None:
    cache = ReplayCache(1)
    assert repr(cache) == "<ReplayCache 64 tickets>"
    assert cache.add(bytes(16), BOTH, 2, 1)
    assert not cache.add(bytes(16), BOTH, 2, 1)
    cache.close()
    assert repr(ReplayCache(65)) == "<ReplayCache 128 tickets>"


def test_a_use_is_recorded_until_its_expiry(clock: Clock) -> None:
    cache = ReplayCache(64)
    assert cache.add(b"n" * 16, BOTH, 100, 50)
    assert not cache.add(b"n" * 16, BOTH, 100, 99.5)
    assert cache.add(b"n" * 16, BOTH, 200, 100)
    cache.close()


def test_an_expired_use_makes_room_for_another() -> None:
    cache = ReplayCache(64)
    for number in range(64):
        assert cache.add(number.to_bytes(16), BOTH, 100, 50)
    with pytest.raises(ExhaustedError):
        cache.add(b"n" * 16, BOTH, 200, 99.5)
    for name in (b"n", b"m"):
        assert cache.add(name * 16, BOTH, 200, 100)
        assert not cache.add(name * 16, BOTH, 200, 100)
    cache.close()


def test_a_closed_replay_cache_holds_no_memory() -> None:
    def count() -> int:
        return Path("/proc/self/maps").read_text().count("splitarrow-tickets")

    gc.collect()
    before = count()
    cache = ReplayCache(64)
    assert count() == before + 1
    cache.close()
    assert count() == before


class PassedDescriptor:
    """A descriptor on its way into a process that is being started."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def detach(self) -> int:
        return self.descriptor


def test_a_worker_process_shares_the_used_tickets() -> None:
    popen: Any = SimpleNamespace(DupFd=PassedDescriptor, duplicate_for_child=os.dup)
    cache = ReplayCache(128)
    set_spawning_popen(popen)
    try:
        data = pickle.dumps(cache)
    finally:
        set_spawning_popen(None)
    copy = pickle.loads(data)
    assert repr(copy) == repr(cache) == "<ReplayCache 128 tickets>"
    for number in range(64):
        assert (cache, copy)[number % 2].add(number.to_bytes(16, "little"), BOTH, 2, 1)
    for number in range(64):
        for each in (cache, copy):
            assert not each.add(number.to_bytes(16, "little"), BOTH, 2, 1)
    cache.close()
    copy.close()


def test_other_processes_are_locked_out_of_the_table_while_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[int] = []
    monkeypatch.setattr(fcntl, "lockf", lambda _, operation: events.append(operation))
    cache = ReplayCache(64)
    original = cache._add

    def add(*arguments: Any) -> bool:
        events.append(0)
        return original(*arguments)

    monkeypatch.setattr(cache, "_add", add)
    once = [fcntl.LOCK_EX | fcntl.LOCK_NB, 0, fcntl.LOCK_UN]
    assert cache.add(bytes(16), BOTH, 2, 1)
    assert events == once
    for number in range(1, 64):
        cache.add(bytes(8) + number.to_bytes(8), BOTH, 2, 1)
    del events[:]
    with pytest.raises(ExhaustedError):
        cache.add(b"\xff" * 16, BOTH, 2, 1)
    assert events == once
    cache.close()


def test_a_replay_cache_is_passed_on_to_new_processes_only() -> None:
    with pytest.raises(RuntimeError, match="inheritance"):
        pickle.dumps(ReplayCache(64))


def test_a_closed_signer_redeems_nothing(signer: TicketSigner) -> None:
    ticket = signer.sign(Request("data"), "x")
    signer.close()
    with pytest.raises(UnavailableError):
        signer.redeem(ticket, BOTH)


def test_a_full_replay_cache_accepts_the_other_stream_of_a_pair(clock: Clock) -> None:
    signer = TicketSigner([KEY], 300, clock, ReplayCache(64))
    tickets = [signer.sign(Request("data"), "x") for _ in range(64)]
    for ticket in tickets:
        signer.redeem(ticket, METADATA)
    for ticket in tickets:
        signer.redeem(ticket, BODY)
        denied(signer, ticket, BODY)


@given(seed=st.integers(0, 10_000))
def test_the_replay_cache_equals_a_dictionary(seed: int) -> None:
    """It accepts and refuses the same uses as a dictionary that grows without bounds."""
    draw = random.Random(seed)
    memory, model = ReplayCache(1 << 14), dict[bytes, tuple[int, set[Streams]]]()
    nonces = [draw.randbytes(16) for _ in range(10)]
    now = 1000
    for _ in range(150):
        now += draw.choice([0, 0, 0, 1, 5])
        nonce, stream = draw.choice(nonces), draw.choice(list(Streams))
        until, used = model.get(nonce, (0, set()))
        halves = {METADATA, BODY} if stream is BOTH else {stream}
        if until <= now:
            until, used = now + draw.randrange(1, 30), set()
        free = not halves & used
        assert memory.add(nonce, stream, until, now) == free
        if free:
            model[nonce] = (until, used | halves)
    memory.close()
    memory.close()


def test_a_signer_pickles_for_worker_processes_only(signer: TicketSigner) -> None:
    with pytest.raises(RuntimeError, match="only be shared"):
        pickle.dumps(signer)
    assert repr(signer) == "<TicketSigner, lifetime 300 s>"
    sealed = signer.redeem(signer.sign(Request("data"), "x"), BOTH)
    assert sealed.nonce.hex() not in repr(sealed)
