"""A ticket is good once, for what it says, and nothing else opens."""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
import random
import string
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitarrow.errors import (
    ConfigError,
    DeniedError,
    ExhaustedError,
    InvalidRequestError,
    UnavailableError,
    UsageError,
)
from splitarrow.protocol.limits import DEFAULT_LIMITS
from splitarrow.protocol.request import COMPRESSIONS, FORMATS, Request
from splitarrow.server.auth.replay import ReplayMemory
from splitarrow.server.auth.tickets import TICKET_BYTES, SealedRequest, TicketOffice

from .conftest import Clock

KEY = bytes(range(32))
OTHER = bytes(range(100, 140))
USES = ("both", "metadata", "body")
BASE64URL = (string.ascii_letters + string.digits + "-_").encode()


@pytest.fixture
def office(clock: Clock) -> Iterator[TicketOffice]:
    made = TicketOffice([KEY], 300, clock)
    yield made
    made.close()


def denied(office: TicketOffice, ticket: bytes, use: str = "both") -> str:
    """Return what the refusal of a ticket says."""
    with pytest.raises(DeniedError) as caught:
        office.open(ticket, use)
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
    """Return good values of a field of a request; a field that is new gets its type's."""
    texts = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=20)
    named: dict[str, st.SearchStrategy[Any]] = {
        "dataset": texts.filter(lambda text: "\0" not in text),
        "columns": st.lists(texts, min_size=1, max_size=5).map(tuple),
        "compression": st.sampled_from(COMPRESSIONS),
        "format": st.sampled_from(FORMATS),
        "batch_rows": st.integers(1, 2**63 - 1),
        "filter": st.binary(max_size=50).map(lambda data: base64.urlsafe_b64encode(data).decode()),
    }
    kind = next(field.type for field in dataclasses.fields(Request) if field.name == name)
    default = st.integers(0, 2**31) if "int" in str(kind) else texts
    return named.get(name, default)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    names = [field.name for field in dataclasses.fields(Request) if field.name != "dataset"]
    chosen = {name: draw(known_values(name)) for name in names if draw(st.booleans())}
    try:
        return Request(draw(known_values("dataset")), **chosen)
    except InvalidRequestError:  # two fields that do not go together
        return Request(draw(known_values("dataset")))


@given(request=requests(), principal=st.sampled_from(["training", "Zoë", "x" * 256]))
def test_what_is_sealed_is_opened(request: Request, principal: str) -> None:
    office = TicketOffice([KEY], 300, Clock())
    ticket = office.seal(request, principal)
    assert ticket.isascii()
    assert len(ticket) <= TICKET_BYTES <= DEFAULT_LIMITS.ticket_bytes
    sealed = office.open(ticket, "both")
    assert (sealed.request, sealed.principal) == (request, principal)
    assert len(sealed.nonce) == 16
    office.close()


def test_every_field_of_a_request_is_sealed(office: TicketOffice) -> None:
    """Those that come later too; none may be called as the ticket's own."""
    samples: dict[str, Any] = {"columns": ("b", "a"), "compression": "zstd", "format": "vortex"}
    types = {field.name: str(field.type) for field in dataclasses.fields(Request)}
    assert types.keys().isdisjoint({"p", "e", "n"})
    del types["dataset"]
    for name, kind in types.items():
        value = samples.get(name, 7 if "int" in kind else "AAAA")
        request = Request("data", **{name: value})
        assert office.open(office.seal(request, "x"), "both").request == request


def test_the_json_is_canonical(office: TicketOffice, clock: Clock) -> None:
    ticket = office.seal(Request("flüge", columns=("b", "a"), limit=3), "training")
    prefix, payload, signature = ticket.split(b".")
    assert (prefix, len(signature)) == (b"sa1", 43)
    text = base64.urlsafe_b64decode(payload + b"==").decode()
    nonce = json.loads(text)["n"]
    assert text == (
        '{"columns":["b","a"],"dataset":"fl\\u00fcge","e":1900000301,'
        f'"limit":3,"n":"{nonce}","p":"training"}}'
    )
    assert clock.now + 300 <= 1900000301


def test_no_two_tickets_are_alike(office: TicketOffice) -> None:
    assert len({office.seal(Request("data"), "x") for _ in range(200)}) == 200


GOOD = TicketOffice([KEY], 300, Clock()).seal(Request("data", columns=("a", "b")), "training")


def test_every_altered_bit_is_refused(office: TicketOffice) -> None:
    for index in range(len(GOOD)):
        for bit in range(8):
            altered = bytearray(GOOD)
            altered[index] ^= 1 << bit
            denied(office, bytes(altered))
    assert office.open(GOOD, "both").request.dataset == "data"


def test_every_other_base64_of_the_signature_is_refused(office: TicketOffice) -> None:
    """Its last character has bits that say nothing: a lenient decoder would take four."""
    for last in BASE64URL:
        if last != GOOD[-1]:
            denied(office, GOOD[:-1] + bytes([last]))
    for ending in (b"=", b"==", b"\n", b" ", b"A", b"."):
        denied(office, GOOD + ending)


def test_every_truncation_is_refused(office: TicketOffice) -> None:
    for length in range(len(GOOD)):
        denied(office, GOOD[:length])
        denied(office, GOOD[length + 1 :])


@given(data=st.data())
def test_edits_are_refused(data: st.DataObject) -> None:
    office = TicketOffice([KEY], 300, Clock())
    begin = data.draw(st.integers(0, len(GOOD)))
    end = data.draw(st.integers(begin, len(GOOD)))
    alphabet = st.sampled_from([bytes([byte]) for byte in BASE64URL])
    put = data.draw(st.one_of(st.binary(max_size=20), st.lists(alphabet).map(b"".join)))
    edited = GOOD[:begin] + put + GOOD[end:]
    if edited != GOOD:
        denied(office, edited)
    office.close()


@given(ticket=st.one_of(st.binary(max_size=200), st.text().map(lambda text: text.encode())))
def test_anything_else_is_refused(ticket: bytes) -> None:
    office = TicketOffice([KEY], 300, Clock())
    denied(office, ticket)
    denied(office, b"sa1." + ticket)
    denied(office, b"sa1." + base64.urlsafe_b64encode(ticket).rstrip(b"=") + b"." + b"A" * 43)
    office.close()


def test_swapped_parts_are_refused(office: TicketOffice) -> None:
    first, second = (office.seal(Request(name), "x").split(b".") for name in ("data", "other"))
    denied(office, b".".join((first[0], second[1], first[2])))
    denied(office, b".".join((first[0], first[2], first[1])))
    denied(office, b".".join((first[1], first[0], first[2])))
    assert office.open(b".".join(first), "both").request.dataset == "data"


def test_a_foreign_key_is_refused(office: TicketOffice, clock: Clock) -> None:
    foreign = TicketOffice([OTHER], 300, clock)
    assert "was not made by this server" in denied(office, foreign.seal(Request("data"), "x"))
    assert "was not made by this server" in denied(foreign, office.seal(Request("data"), "x"))


def test_keys_rotate(clock: Clock) -> None:
    old, new = TicketOffice([OTHER], 300, clock), TicketOffice([KEY, OTHER], 300, clock)
    assert new.open(old.seal(Request("data"), "x"), "both").principal == "x"
    ticket = new.seal(Request("data"), "x")
    assert TicketOffice([KEY], 300, clock).open(ticket, "both").principal == "x"
    denied(old, ticket)


def test_without_keys_an_office_has_its_own(clock: Clock) -> None:
    one, two = TicketOffice(clock=clock), TicketOffice(clock=clock)
    ticket = one.seal(Request("data"), "x")
    denied(two, ticket)
    assert one.open(ticket, "both").principal == "x"


def test_an_expired_ticket_is_refused(office: TicketOffice, clock: Clock) -> None:
    tickets = [office.seal(Request("data"), "x") for _ in range(2)]
    clock.now += 300
    assert office.open(tickets[0], "both").request == Request("data")
    clock.now += 1
    assert denied(office, tickets[1]).startswith("this ticket expired 0 s ago")
    clock.now += 59
    assert denied(office, tickets[1]).startswith("this ticket expired 59 s ago")


@pytest.mark.parametrize(
    ("uses", "good"),
    [
        (("both", "both"), (True, False)),
        (("both", "metadata"), (True, False)),
        (("both", "body"), (True, False)),
        (("metadata", "metadata"), (True, False)),
        (("metadata", "body", "body"), (True, True, False)),
        (("body", "metadata", "both"), (True, True, False)),
        (("body", "both", "metadata", "metadata"), (True, False, True, False)),
    ],
)
def test_a_ticket_is_good_once(
    office: TicketOffice, uses: tuple[str, ...], good: tuple[bool, ...]
) -> None:
    ticket = office.seal(Request("data"), "x")
    for use, is_good in zip(uses, good, strict=True):
        if is_good:
            assert office.open(ticket, use).request == Request("data")
        else:
            assert "was used already" in denied(office, ticket, use)


def test_a_use_that_is_none_is_a_mistake(office: TicketOffice) -> None:
    with pytest.raises(UsageError, match="one of both, metadata, body"):
        office.open(GOOD, "all")
    assert office.open(GOOD, "both")


def test_a_ticket_of_another_version_says_so(office: TicketOffice) -> None:
    for version in (2, 17, 9999):
        assert f"a ticket of version {version}; this server reads version 1" in denied(
            office, b"sa%d" % version + GOOD[3:]
        )
    assert "signed tickets only" in denied(office, b"sax.")
    assert "signed tickets only" in denied(office, b"data")
    assert "signed tickets only" in denied(office, b'{"dataset": "data"}')
    assert "signed tickets only" in denied(office, b"\xff\xfe")
    assert "damaged" in denied(office, b"sa1.")


def test_a_huge_ticket_is_refused_before_it_is_looked_at(office: TicketOffice) -> None:
    assert f"the largest has {TICKET_BYTES}" in denied(office, b"sa1." + b"A" * TICKET_BYTES)
    denied(office, b"sa1." + b"A" * (TICKET_BYTES - 48) + b"." + b"A" * 43)


def test_a_request_that_is_too_large_is_not_sealed(office: TicketOffice) -> None:
    columns = tuple(f"column {number}" for number in range(10_000))
    with pytest.raises(InvalidRequestError, match="ask for fewer columns"):
        office.seal(Request("data", columns=columns), "x")


def signed(payload: bytes, key: bytes = KEY) -> bytes:
    """Return a ticket with a good signature, whatever it says."""
    from splitarrow.server.auth.tickets import _b64, _mac

    text = b"sa1." + _b64(payload)
    return text + b"." + _mac(key, text)


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
        b'{"dataset":"data","e":2000000000,"n":"%s","p":7}' % (b"0" * 32),
        b'{"dataset":"data","e":2000000000,"n":"%s","p":"x\\n"}' % (b"0" * 32),
        b'{"dataset":7,"e":2000000000,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"e":2000000000,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"\\ud800","e":2000000000,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"data","later":1,"e":2000000000,"n":"%s","p":"x"}' % (b"0" * 32),
        b'{"dataset":"data","limit":%s,"e":2000000000,"n":"%s","p":"x"}' % (b"9" * 4400, b"0" * 32),
    ],
)
def test_a_signed_ticket_that_says_nothing_known_is_refused(
    office: TicketOffice, payload: bytes
) -> None:
    """Another program with the same key may make such ones: a later version of this, say."""
    assert "does not know" in denied(office, signed(payload))


@settings(max_examples=100)
@given(
    values=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=8,
    ),
    name=st.sampled_from([*(field.name for field in dataclasses.fields(Request)), "p", "e", "n"]),
)
def test_a_signed_ticket_with_odd_values_is_refused_or_good(values: Any, name: str) -> None:
    office = TicketOffice([KEY], 300, Clock())
    good = {"dataset": "data", "e": 2_000_000_000, "n": "0" * 32, "p": "x"}
    ticket = signed(json.dumps({**good, name: values}).encode())
    try:
        assert isinstance(office.open(ticket, "both"), SealedRequest)
    except DeniedError:
        pass
    office.close()


@pytest.mark.parametrize("principal", ["", "x" * 257, "a\nb", "a\0"])
def test_a_principal_without_a_decent_name_gets_no_ticket(
    office: TicketOffice, principal: str
) -> None:
    with pytest.raises(UsageError):
        office.seal(Request("data"), principal)


def test_settings_are_checked() -> None:
    with pytest.raises(UsageError, match="more than 0 seconds"):
        TicketOffice([KEY], 0)
    with pytest.raises(UsageError, match="more than 0 seconds"):
        TicketOffice([KEY], float("nan"))
    with pytest.raises(ConfigError, match="32 bytes or more, and this one has 31"):
        TicketOffice([KEY[:31]])
    with pytest.raises(ConfigError, match="not random"):
        TicketOffice([bytes(32)])
    with pytest.raises(ConfigError, match="a key at least"):
        TicketOffice([])
    with pytest.raises(UsageError, match="room"):
        ReplayMemory(0)


# The memory of used tickets.


def test_the_memory_is_bounded_and_forgets_nothing_early(clock: Clock) -> None:
    memory = ReplayMemory(64)
    office = TicketOffice([KEY], 300, clock, memory)
    used = [office.seal(Request("data"), "x") for _ in range(64)]
    for ticket in used:
        office.open(ticket, "both")
    late = office.seal(Request("data"), "x")
    with pytest.raises(ExhaustedError, match="too many tickets"):
        office.open(late, "both")
    for ticket in used:
        assert "was used already" in denied(office, ticket)
    clock.now += 301
    assert "expired" in denied(office, late)
    assert office.open(office.seal(Request("data"), "x"), "both")


def test_a_closed_office_takes_nothing(office: TicketOffice) -> None:
    ticket = office.seal(Request("data"), "x")
    office.close()
    with pytest.raises(UnavailableError):
        office.open(ticket, "both")


def test_a_full_memory_takes_the_other_half_of_a_pair(clock: Clock) -> None:
    office = TicketOffice([KEY], 300, clock, ReplayMemory(64))
    tickets = [office.seal(Request("data"), "x") for _ in range(64)]
    for ticket in tickets:
        office.open(ticket, "metadata")
    for ticket in tickets:
        office.open(ticket, "body")
        denied(office, ticket, "body")


@given(seed=st.integers(0, 10_000))
def test_the_memory_is_right(seed: int) -> None:
    """Against a dictionary that forgets nothing before its time."""
    draw = random.Random(seed)
    memory, model = ReplayMemory(1 << 14), dict[bytes, tuple[int, set[str]]]()
    nonces = [draw.randbytes(16) for _ in range(10)]
    now = 1000
    for _ in range(150):
        now += draw.choice([0, 0, 0, 1, 5])
        nonce, use = draw.choice(nonces), draw.choice(USES)
        until, used = model.get(nonce, (0, set()))
        halves = {"metadata", "body"} if use == "both" else {use}
        if until <= now:
            until, used = now + draw.randrange(1, 30), set()
        free = not halves & used
        assert memory.use(nonce, use, until, now) == free
        if free:
            model[nonce] = (until, used | halves)
    memory.close()
    memory.close()


def test_an_office_pickles_for_workers_only(office: TicketOffice) -> None:
    with pytest.raises(RuntimeError, match="only be shared"):
        pickle.dumps(office)
    assert repr(office) == "<TicketOffice, tickets good for 300 s>"
    sealed = office.open(office.seal(Request("data"), "x"), "both")
    assert sealed.nonce.hex() not in repr(sealed)
