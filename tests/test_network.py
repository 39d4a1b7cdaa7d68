"""The hub's libraries ask their caches alone where the hub's name leads nowhere."""

import socket

import pytest

from otdd_flash.samples.network import PROXIES, hub_or_cache

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def resolve(monkeypatch, known):
    def lookup(host, port, *rest):
        assert host and port == 443
        if not known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", lookup)


def test_without_a_network_only_the_cache_is_asked(monkeypatch):
    resolve(monkeypatch, known=False)
    with hub_or_cache():
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    with pytest.raises(OSError, match="of the caller"), hub_or_cache():
        raise OSError("of the caller")
    assert not constants.HF_HUB_OFFLINE


def test_a_hub_that_is_known_or_behind_a_proxy_is_asked(monkeypatch):
    resolve(monkeypatch, known=True)
    with hub_or_cache():
        assert not constants.HF_HUB_OFFLINE
    resolve(monkeypatch, known=False)
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    with hub_or_cache():
        assert not constants.HF_HUB_OFFLINE


def test_offline_as_the_user_wants_it_stays(monkeypatch):
    resolve(monkeypatch, known=True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with hub_or_cache():
        assert constants.HF_HUB_OFFLINE
    assert constants.HF_HUB_OFFLINE
