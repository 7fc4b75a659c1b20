"""`dpfed watch` and `dpfed serve`, as an operator types them."""

import datetime
import ipaddress
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.live.conftest import finish

SITES = ("north", "south")


def test_a_run_in_the_terminal(dpfed, make, plan):
    run = make(done=3, sites=SITES)
    code, out, _ = dpfed("watch", run.path)
    assert code == 0 and "3 of 6 (50%)" in out and "of 8.00 planned" in out and re.search(r"south +3 +0", out)
    code, out, _ = dpfed("watch", run.path, "--json")
    (facts,) = json.loads(out)
    assert code == 0 and {one["name"]: one["value"] for one in facts["figures"]}["epsilon_spent"] == plan.epsilon(3)


def test_watching_ends_with_the_run(dpfed, make, monkeypatch):
    run = make(done=6)
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        finish(run, {"epsilon": 8.0, "delta": 1e-3}, "# Privacy card of tiny\n\n**It is private.**\n")

    monkeypatch.setattr("dpfed.console.terminal.console._force_terminal", True)
    monkeypatch.setattr("dpfed.cli.live.time.sleep", sleep)
    assert dpfed("watch", run.path)[0] == 0 and len(looks) == 1


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("watch", "/nowhere"), "there is no folder"),
        (("serve", "/nowhere"), "there is no folder"),
        (("serve", ".", "--host", "0.0.0.0"), "--insecure"),
        (("serve", ".", "--insecure"), "changes nothing"),
        (("serve", ".", "--port", "70000"), "--port"),
        (("serve", ".", "--key", "x"), "both"),
        (("serve", ".", "--token-file", "/nowhere"), "cannot read"),
        (("serve", ".", "--pictures", "/nowhere"), "/nowhere"),
    ],
)
def test_what_is_refused(dpfed, words, sentence):
    code, _, err = dpfed(*words)
    assert code == 2 and sentence in err and "Traceback" not in err


@pytest.fixture
def certificate(tmp_path):
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + datetime.timedelta(days=1)).add_extension(
        names, False
    )
    (tmp_path / "a.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (tmp_path / "b.pem").write_bytes(text)
    (tmp_path / "b.pem").chmod(0o600)
    return tmp_path / "a.pem", tmp_path / "b.pem"


def test_the_page_over_tls_until_ctrl_c(make, certificate, tmp_path):
    pytest.importorskip("uvicorn")
    run = make(done=3)
    words = ["serve", str(run.path), "--port", "0", "--certificate", str(certificate[0]), "--key", str(certificate[1])]
    process = subprocess.Popen([sys.executable, "-m", "dpfed", *words], stdout=subprocess.PIPE, text=True, env=os.environ)
    address = process.stdout.readline().strip()
    assert re.fullmatch(r"https://127\.0\.0\.1:\d+/\?token=[\w-]{32}", address)
    place, _, token = address.partition("?token=")
    context = ssl.create_default_context(cafile=certificate[0])
    request = urllib.request.Request(f"{place}metrics", headers={"Authorization": f"Bearer {token}"})
    assert b'dpfed_steps_done{run="one"} 3.0' in urllib.request.urlopen(request, context=context).read()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(place, context=context)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == 0 and token not in process.stdout.read()
