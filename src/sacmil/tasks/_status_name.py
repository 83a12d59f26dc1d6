"""What 1 means in a column of the status, by the column's name."""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_NOT_CENSORED = re.compile(r"(?:un|non|not)censor[a-z]*|\b(?:un|non|not) censor[a-z]*")
_ENDPOINT = re.compile(r"\b[a-z]+ ?free (?:survival|interval)\b")
"""Such as disease-free survival, the name of an endpoint; it negates no event."""
_NEGATION = re.compile(
    r"\b(?:no|non|not|never|without|absent|absence|alive|living|uneventful|ned|remission|cured)\b"
    r"|\bsurviv(?:e|ed|es|ing|or|ors)\b|free\b"
    r"|\b(?:non|un)(?:event|death|dead|relaps|recur|progress|metasta)"
)
_UNCLEAR = re.compile(r"\b(?:survival|interval|lost|withdrawn|dropout)\b")
_CLEAR = re.compile(r"\b(?:events?|status|indicator|death|dead|died|deceased)\b|censor")


def list_words(name: str) -> list[str]:
    """Return the words of a column's name, in lower case.

    >>> list_words("OSDays"), list_words("not_Censored")
    (['os', 'days'], ['not', 'censored'])
    """
    return [word.lower() for word in _WORD.findall(name)]


def is_censoring(column: str) -> bool:
    """Whether 1 in a status column means censored, by its name.

    >>> is_censoring("censorship"), is_censoring("OS_STATUS"), is_censoring("noncensored")
    (True, False, False)
    """
    return "censor" in _NOT_CENSORED.sub("", " ".join(list_words(column)))


def explain_unclear_name(column: str) -> str:
    """Return what a 1 in a status column may mean instead of an event; empty if its name is clear.

    >>> explain_unclear_name("event_free")
    '1 or yes for patients without the event, by its name'
    >>> explain_unclear_name("disease_free_survival_event"), explain_unclear_name("not_censored")
    ('', '')
    """
    words = " ".join(list_words(column))
    text = _ENDPOINT.sub("survival", _NOT_CENSORED.sub("event", words))
    is_negated = bool(_NEGATION.search(text))
    if is_negated and "censor" not in text:
        return "1 or yes for patients without the event, by its name"
    if is_negated or (_UNCLEAR.search(text) and not _CLEAR.search(text)):
        return "coded, and by its name 1 may be the event or its absence"
    return ""
