"""Mask secrets before properties or addresses are shown, logged or put into an error."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "***"
_SENSITIVE = r"token|secret|password|credential|key"
_SECRET_KEY = re.compile(_SENSITIVE, re.IGNORECASE)
# A password that is not percent-encoded may contain '@' or ':'; the last '@' before the path ends it.
_USER_INFO = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^\s/:@]*):[^\s/]*@", re.IGNORECASE)
_QUERY = re.compile(rf"(?P<name>[?&;][^=&;?\s]*(?:{_SENSITIVE})[^=&;?\s]*=)[^&;\s]+", re.IGNORECASE)


def mask_text(text: str) -> str:
    """Mask passwords inside addresses."""
    return _QUERY.sub(rf"\g<name>{MASK}", _USER_INFO.sub(rf"\g<scheme>\g<user>:{MASK}@", text))


def mask_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of secret properties."""
    return {key: MASK if _SECRET_KEY.search(key) else mask_text(value) for key, value in properties.items()}
