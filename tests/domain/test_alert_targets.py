"""Mail and chat: which services, and that no secret of an address is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.domain import alert_targets as rules
from corral.domain.errors import Refusal


@pytest.mark.parametrize(
    ("text", "shown", "hosts"),
    [
        (
            "mailto://bot:s3cret@mail.example.com:587?to=ops@example.com",
            "mailto: ops@example.com",
            ["mail.example.com"],
        ),
        ("mailtos://bot:s3cret@example.com?smtp=10.0.0.9", "mailtos: bot@example.com", ["10.0.0.9"]),
        ("slack://s3cretA/s3cretB/s3cretC/%23ops", "slack://…", []),
        ("mmosts://chat.example.com:8443/s3cret", "mmosts://chat.example.com/…", ["chat.example.com"]),
        ("tgram://s3cret/123", "tgram://…", []),
        ("rockets://s3cretA%2Fs3cretB@chat.example.com", "rockets://chat.example.com/…", ["chat.example.com"]),
        ("mailtos://bot:s3cret%2C%3B%23@example.com?TO=ops@example.com", "mailtos: ops@example.com", ["example.com"]),
    ],
)
def test_an_address_is_shown_without_its_secrets(text: str, shown: str, hosts: list[str]) -> None:
    target = rules.target(text)
    assert (target.shown, list(target.hosts)) == (shown, hosts)
    assert "s3cret" not in target.shown


@pytest.mark.parametrize(
    "text",
    [
        *(
            "json://example.com",
            "exec://x",
            "dbus://",
            "syslog://",
            "http://example.com",
            "file:///etc/passwd",
            "mailto:x",
        ),
        *("slack://a/b/c?template=/etc/passwd", "mailto://a:b@c.d?pgpkey=/etc/x", "mailto://a:b@c.d?attach=/etc/x"),
        *("mmosts://a/b?verify=no", "mmosts://a/b?+X-Header=1", "mmost://a/b", "slack://a/b/c\n", "slack://a b"),
        *("slack://" + "a" * 2000, "mmosts://[::1/x", "mmosts://a:99999999/b", ""),
    ],
)
def test_other_services_and_parameters_are_refused_without_repeating_the_address(text: str) -> None:
    with pytest.raises(Refusal) as refusal:
        rules.target(text)
    assert refusal.value.code == "INVALID_URL"
    assert len(text) < 6 or text not in refusal.value.message


@pytest.mark.parametrize(
    "text",
    [
        # What the library takes for two services, or for two parameters.
        *("mmosts://a.b/tok,rsyslog://127.0.0.1:514/daemon", "mmosts://a.b/tok;rsyslog://127.0.0.1:514/daemon"),
        *("mmosts://a.b/tok?channel=a;verify=no", "slack://a/b/c?to=x,mmosts://a/b"),
        # What ends an address for others, and for the library does not.
        *(
            "mmosts://a.b/tok/#x?verify=no",
            "workflows://a.b/w/s/#?template=/etc/x&verify=no",
            "slack://a/b/c#?verify=no",
        ),
        # Two names before one host; a host after the path.
        *("mmosts://a@b.c@127.0.0.1/tok", "rockets://s3cretA/s3cretB@127.0.0.1/x", "mmosts://a.b\\@127.0.0.1/tok"),
        # Hidden, also where it is decoded twice.
        *("mailto://a:b@c.d?name=x%0ABcc:y@z", "mailto://a:b@c.d?name=x%250d%250aBcc:y@z", "mmosts://a.b/tok%00"),
        *("mmosts://a.b/tok?VERIFY=no", "mmosts://a.b/tok?%76erify=no", "mmosts://a.b/tok?a=b&?verify=no"),
    ],
)
def test_what_the_library_could_read_otherwise_is_refused(text: str) -> None:
    with pytest.raises(Refusal):
        rules.target(text)


@given(
    st.sampled_from(sorted(rules.SERVICES)), st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=80)
)
def test_no_address_breaks_the_rule_and_none_shows_its_password(service: str, rest: str) -> None:
    try:
        target = rules.target(f"{service}://u:Zq7Zq7@{rest}")
    except Refusal as refusal:
        assert refusal.code == "INVALID_URL"
    else:
        assert "Zq7Zq7" not in target.shown and len(target.shown) <= rules.SHOWN_MAX
