"""Pods through HTTP: an ASGI app to be mounted or run (`pod serve`). Needs the extra `service`."""

from pod.service.access import Holder, Role, Tokens
from pod.service.app import Service, create_app
from pod.service.webhooks import Webhook

__all__ = ["Holder", "Role", "Service", "Tokens", "Webhook", "create_app"]
