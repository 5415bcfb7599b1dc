"""The certificates of the machine are read once for all connections of a process, and again where they are others."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import httpx2
import pytest

from worker.models.base import ModelSettings
from worker.models.registry import create_model
from worker.testing.provider_server import Answer, ProviderServer
from worker.tls import tls

BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
needs_bundle = pytest.mark.skipif(not BUNDLE.exists(), reason="the machine has no bundle of certificates here")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that they are read, in this process."""
    real, found = httpx2.create_ssl_context, list[int]()

    def counted() -> object:
        found.append(1)
        return real()

    monkeypatch.setattr("worker.tls._made", None)
    monkeypatch.setattr(httpx2, "create_ssl_context", counted)
    return found


@pytest.mark.anyio
@pytest.mark.parametrize("wire", ["openai-chat", "openai", "anthropic"])
async def test_models_of_a_process_read_the_certificates_once(wire: str, made: list[int], asker: type) -> None:
    """Whoever made the client, it is one of the SDK and asks as before."""
    with ProviderServer([Answer("a"), Answer("b")], wire=wire) as server:
        for text in ("a", "b"):
            model = create_model(f"{wire}:m", ModelSettings(base_url=server.url))
            reply = await asker(model)()
            assert reply.items[0].text == text
            await model.aclose()
    assert made == [1]


def test_threads_that_need_them_at_once_read_them_once(made: list[int]) -> None:
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(tls())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1] and len(found) == 8 and len({id(each) for each in found}) == 1


@needs_bundle
def test_they_are_read_again_where_others_are_named_or_the_file_has_changed(
    made: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = tls()
    own = tmp_path / "own.pem"
    shutil.copy(BUNDLE, own)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    named = tls()
    assert named is not first and tls() is named
    pem = own.read_text()
    own.write_text(pem[: pem.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----\n")])
    os.utime(own, ns=(1, 1))
    fewer = tls()
    assert fewer is not named and len(fewer.get_ca_certs()) == 1 < len(named.get_ca_certs())
    monkeypatch.delenv("SSL_CERT_FILE")
    assert tls() not in (named, fewer) and len(made) == 4
