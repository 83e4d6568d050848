"""Clients of the service: for people and programs, and for optimizers.

    ams = connect()                                  # ARCTIC_URL and ARCTIC_TOKEN, or the service on this machine
    ams.table("demo.shop.orders").optimize(wait=True)

Knows HTTP and the errors of PyArctic, and neither tables nor Arrow: answers are what the service sends, as dictionaries.
HTTPX is imported in this room only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyarctic._lazy import lazy_exports

if TYPE_CHECKING:
    from pyarctic.client.client import Client, RemoteTable, connect
    from pyarctic.client.optimizer_client import OptimizerClient
    from pyarctic.client.transport import Address, ServiceError

__all__ = ["Address", "Client", "OptimizerClient", "RemoteTable", "ServiceError", "connect"]

__getattr__ = lazy_exports(
    __name__,
    {
        "client": ("Client", "RemoteTable", "connect"),
        "optimizer_client": ("OptimizerClient",),
        "transport": ("Address", "ServiceError"),
    },
)
