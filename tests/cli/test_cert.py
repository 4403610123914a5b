"""``splitarrow cert check``: dates, names, keys and chains, of files and of servers."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import splitarrow
from helpers.cli import Run
from helpers.pki import Pki

EXPIRED = r"expired on \d{4}-\d\d-\d\d \d\d:\d\d UTC"
Check = Callable[..., tuple[int, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    pki = Pki(tmp_path_factory.mktemp("pki"))
    soon = datetime.now(UTC) + timedelta(days=10, hours=1)
    pki.write("soon", pki.authority.issue_cert("127.0.0.1", not_after=soon))
    return pki


@pytest.fixture
def check(run: Run) -> Check:
    """Check a target; return the exit status and the reports."""

    def check(*arguments: object) -> tuple[int, list[dict[str, Any]]]:
        done: subprocess.CompletedProcess[str] = run("cert", "check", *arguments, "--json")
        assert done.stderr == ""
        return done.returncode, json.loads(done.stdout)

    return check


def test_a_good_file(check: Check, run: Run, pki: Pki) -> None:
    names = ("--name", "localhost", "--name", "127.0.0.1")
    ca = ("--tls-ca", pki.path("ca"))
    status, (report,) = check(pki.path("server"), *ca, *names)
    assert (status, report["problems"], report["good"]) == (0, [], True)
    assert report["key"].endswith("matches the private key")
    assert set(report["names"]) == {"localhost", "127.0.0.1"}
    assert check(pki.path("server-cert"), "--key", pki.path("server-key"))[0] == 0
    assert check(pki.path("ca"), "--tls-ca", pki.path("ca"))[0] == 0
    done = run("cert", "check", pki.path("server"))
    assert done.stdout.startswith(f"{pki.path('server')}  good\n")


def test_an_expired_certificate_of_its_own_has_one_reason(
    check: Check, run: Run, tmp_path: Path
) -> None:
    """No certificate authority has issued it, so it is also not trusted."""
    write_expired(tmp_path / "own.pem")
    server = splitarrow.serve(
        {"t": pa.table({"n": [1]})},
        listen="tcp+tls://127.0.0.1:0",
        control="grpc+tls://127.0.0.1:0",
        tls_cert=tmp_path / "own.pem",
    )
    with server:
        control, data = str(server.control_uri), server.listen[0].partition("?")[0]
        for uri in (control, data):
            status, (report,) = check(uri)
            assert status == 1
            assert len(report["problems"]) == 1
            assert re.fullmatch(f"it {EXPIRED}", report["problems"][0])
        said = f"the certificate of the server {EXPIRED}; renew it, and check the clocks\n"
        for arguments in (["ls", control], ["fetch", f"{control}/t"], ["fetch", f"{data}/t"]):
            for options in ([], ["--tls-ca", tmp_path / "own.pem"]):
                done = run(*arguments, *options)
                assert done.returncode == 1
                assert re.search(
                    f"cannot connect to {re.escape(done.args[1][:12])}.*: {said}$", done.stderr
                )


def write_expired(path: Path) -> None:
    """Write a certificate that is its own issuer and has expired, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    yesterday = datetime.now(UTC) - timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(yesterday - timedelta(days=9))
        .not_valid_after(yesterday)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(certificate.public_bytes(pem) + secret)


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("expired", (), "it expired on "),
        ("soon", (), "it expires in 10 days, on "),
        ("server", ("--name", "elsewhere.example"), "it is not for 'elsewhere.example'"),
        ("server-cert", ("--key", "client-key"), "does not belong to it"),
        ("server-cert", ("--key", "client-cert"), "contains no valid private key in PEM"),
        ("server", ("--tls-ca", "foreign-ca"), "no trusted authority is its issuer, "),
    ],
)
def test_a_problem(
    check: Check, pki: Pki, name: str, arguments: tuple[str, ...], problem: str
) -> None:
    given = [pki.path(each) if pki.path(each).exists() else each for each in arguments]
    status, (report,) = check(pki.path(name), *given)
    assert (status, report["good"]) == (1, False)
    assert any(problem in each for each in report["problems"]), report["problems"]


def test_the_days_that_are_left(check: Check, pki: Pki) -> None:
    status, (report,) = check(pki.path("soon"), "--days", 10)
    assert (status, report["days"]) == (0, 10)
    status, reports = check(pki.path("server"), pki.path("soon"), "--days", 11)
    assert (status, [each["good"] for each in reports]) == (1, [True, False])


def test_the_order_of_a_chain(check: Check, pki: Pki, tmp_path: Path) -> None:
    intermediate = pki.authority.create_child_ca()
    leaf = intermediate.issue_cert("node7")
    certificates = [pem.bytes() for pem in leaf.cert_chain_pems]
    chain = tmp_path / "chain.pem"
    chain.write_bytes(b"".join(certificates))
    status, (report,) = check(chain, "--tls-ca", pki.path("ca"))
    assert (status, report["chain"], report["problems"]) == (0, 2, [])
    chain.write_bytes(certificates[0] + trustme.CA().cert_pem.bytes())
    status, (report,) = check(chain)
    assert status == 1
    assert "certificate 2 of the chain did not issue certificate 1" in report["problems"][0]


def test_what_is_not_a_certificate(run: Run, pki: Pki) -> None:
    for target, words in (
        (pki.path("server-key"), "contains no valid certificate in PEM"),
        ("absent.pem", "absent.pem: No such file or directory"),
        ("grpc+tls://127.0.0.1:1", "Connection refused"),
    ):
        done = run("cert", "check", target)
        assert (done.returncode, done.stdout) == (1, "")
        assert words in done.stderr
    for target, words in (
        ("grpc://127.0.0.1", "grpc:// has no certificate; expected one of grpc+tls://"),
        ("tcp+tls://127.0.0.1:99999", "the port is not a number below 65536"),
        ("https:///", "names no host"),
    ):
        done = run("cert", "check", target)
        assert (done.returncode, done.stdout) == (2, "")
        assert words in done.stderr


@pytest.fixture(scope="module")
def server(pki: Pki) -> Iterator[splitarrow.Server]:
    with splitarrow.serve(
        {"a": pa.table({"x": [1]})},
        listen=["tcp+tls://127.0.0.1:0", "tcp://127.0.0.1:0"],
        control="grpc+tls://127.0.0.1:0",
        tls_cert=pki.path("soon"),
    ) as server:
        yield server


def test_the_certificate_of_a_server(check: Check, pki: Pki, server: splitarrow.Server) -> None:
    control, data = server.control_uri, server.uri("a", "tcp+tls").partition("?")[0]
    for uri in (control, data):
        status, (report,) = check(uri, "--tls-ca", pki.path("ca"), "--days", 5)
        assert (status, report["problems"], report["days"]) == (0, [], 10)
    status, (report,) = check(control, "--tls-ca", pki.path("ca"))
    assert status == 1
    assert report["problems"][0].startswith("it expires in 10 days")
    for arguments, problem in (
        (("--tls-ca", pki.path("foreign-ca")), "unable to get local issuer certificate"),
        (("--tls-ca", pki.path("ca"), "--tls-server-name", "other"), "Hostname mismatch"),
    ):
        status, (report,) = check(data, "--days", 5, *arguments)
        assert status == 1
        assert report["problems"][0].startswith("clients do not trust it: ")
        assert problem in report["problems"][0]


def test_a_server_without_tls(run: Run, server: splitarrow.Server) -> None:
    uri = server.uri("a", "tcp").partition("?")[0].replace("tcp:", "tcp+tls:")
    done = run("cert", "check", uri, "--connect-timeout", 20)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"cannot connect to {uri}: " in done.stderr
