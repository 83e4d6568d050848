"""Hide secrets before properties or addresses are shown, logged or put into an error."""

from __future__ import annotations

import re
from collections.abc import Mapping

MASK = "***"
_WORDS = r"token|secret|password|credential|key"
_SECRET_KEY = re.compile(_WORDS, re.IGNORECASE)
# The password may itself hold '@' or ':' when it was not percent-encoded; the last '@' before the path ends it.
_USER_INFO = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*://)(?P<user>[^\s/:@]*):[^\s/]*@", re.IGNORECASE)
_QUERY = re.compile(rf"(?P<name>[?&;][^=&;?\s]*(?:{_WORDS})[^=&;?\s]*=)[^&;\s]+", re.IGNORECASE)


def masked_text(text: str) -> str:
    """The text with passwords inside addresses replaced."""
    return _QUERY.sub(rf"\g<name>{MASK}", _USER_INFO.sub(rf"\g<scheme>\g<user>:{MASK}@", text))


def masked(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties with secret values replaced, fit for eyes and logs."""
    return {key: MASK if _SECRET_KEY.search(key) else masked_text(value) for key, value in properties.items()}
