"""The Hugging Face hub where there is no network."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

PROXIES = ("https_proxy", "http_proxy", "all_proxy")


@contextmanager
def hub_or_cache() -> Iterator[None]:
    """Let the hub's libraries read their caches alone where the hub's name leads nowhere.

    They ask again for a minute otherwise. A proxy resolves names itself: nothing is known then.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    proxied = any(os.environ.get(name) or os.environ.get(name.upper()) for name in PROXIES)
    if not (before or proxied or _known(urlsplit(constants.ENDPOINT).hostname)):
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _known(host: str | None) -> bool:
    try:
        socket.getaddrinfo(host, 443)
    except OSError:
        return False
    return True
