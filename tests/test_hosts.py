"""Hosts: one parse, one normal form; whatever is ambiguous is refused with the reason."""

from __future__ import annotations

import ipaddress
import socket
import string

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sovereign_agent.errors import Refusal
from sovereign_agent.isolation import Host, IsolationPolicy, parse_host


@pytest.mark.parametrize(
    ("asked", "normal"),
    [
        ("api.example.com", "api.example.com"),
        ("API.Example.COM.", "api.example.com"),
        ("Api.example.com.:443", "api.example.com:443"),
        ("localhost", "localhost"),
        ("my_service:8080", "my_service:8080"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("bu\u0308cher.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        ("xn--fa-hia.de", "xn--fa-hia.de"),
        ("例え.テスト", "xn--r8jz45g.xn--zckzah"),
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1.:80", "127.0.0.1:80"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("[0:0::1]:443", "[::1]:443"),
        ("2001:DB8:0:0:0:0:0:1", "2001:db8::1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("[::FFFF:7f00:1]:80", "127.0.0.1:80"),
        ("host.example:1", "host.example:1"),
        ("host.example:65535", "host.example:65535"),
        ("1.example", "1.example"),
        ("\u212aube.example", "kube.example"),
    ],
)
def test_every_spelling_of_a_host_has_one_normal_form(asked: str, normal: str) -> None:
    assert str(parse_host(asked)) == normal
    policy = IsolationPolicy(network_hosts={normal})
    assert policy.authorize_network(asked) == normal
    assert IsolationPolicy(network_hosts={asked}) == policy


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("", "blank"),
        (" \t", "blank"),
        ("\u3000", "blank"),
        ("https://example.com", "URL"),
        ("example.com/path", "URL"),
        ("//example.com", "URL"),
        ("example.com\\x", "URL"),
        ("example.com?q", "URL"),
        ("example.com#f", "URL"),
        ("user@example.com", "user information"),
        ("https://user:word@example.com", "user information"),
        ("example%2ecom", "percent"),
        ("fe80::1%eth0", "percent"),
        (".", "empty"),
        ("..", "empty"),
        (".example.com", "empty"),
        ("a..b", "empty"),
        ("example.com..", "empty"),
        ("a" * 64 + ".example", "63"),
        (".".join(["a" * 63] * 4), "253"),
        (".".join(["ü" * 45] * 5), "253"),
        ("a" * 100_000, "253"),
        ("-a.example", "letters"),
        ("a-.example", "letters"),
        ("exa mple.com", "letters"),
        (" example.com", "letters"),
        ("example.com\n", "letters"),
        ("example.com\0", "letters"),
        ("example.com:", "port"),
        ("example.com:0", "port"),
        ("example.com:65536", "port"),
        ("example.com:0443", "port"),
        ("example.com:+443", "port"),
        ("example.com:٤٤٣", "port"),
        ("example.com:https", "port"),
        ("127.1", "number"),
        ("0177.0.0.1", "number"),
        ("0x7f.0.0.1", "number"),
        ("127.0.0.0x1", "number"),
        ("0x7f000001", "number"),
        ("2130706433", "number"),
        ("1.2.3.4.5", "number"),
        ("256.0.0.1", "number"),
        ("host.1", "number"),
        ("[127.0.0.1]", "IPv6"),
        ("[::1", "brackets"),
        ("[::1]443", "brackets"),
        ("[::1]:", "port"),
        ("[example.com]", "IPv6"),
        ("::1]", "IPv6"),
        (":::", "IPv6"),
        ("*.example.com", "wildcard"),
        ("*", "wildcard"),
        ("a.*.example", "letters"),
        ("faß.de", "xn--"),
        ("FAẞ.de", "xn--"),
        ("βόλος.example", "xn--"),
        ("ΒΌΛΟΣ.example", "xn--"),
        ("\u0646\u0627\u0645\u0647\u200c\u0627\u06cc.example", "xn--"),
        ("a\u200db.example", "xn--"),
        ("so\u00adft.example", "xn--"),
        ("a\u034fb.example", "xn--"),
        ("♥\ufe0f.example", "xn--"),
        ("字\ufe00.example", "xn--"),
        ("♥.example", "xn--"),
        ("\uff45xample.com", "xn--"),
        ("127。0。0。1", "xn--"),
        ("\uff11\uff12\uff17.0.0.1", "xn--"),
        ("ﬁsh.example", "xn--"),
        ("a\u0640.example", "xn--"),
        ("\u0300a.example", "xn--"),
        ("ab--ü.example", "xn--"),
        ("-ü.example", "xn--"),
        ("ü-.example", "xn--"),
        ("\u1100.example", "xn--"),
        ("\u0627a.example", "xn--"),
        ("\ud800.example", "xn--"),
    ],
)
def test_what_is_ambiguous_or_no_host_is_refused_with_the_reason(asked: str, reason: str) -> None:
    """On both sides: as a question it is a Refusal, as an entry of a policy a ValueError."""
    policy = IsolationPolicy(network_hosts={"example.com", "127.0.0.1", "::1", "*.de", "*.example", "fass.de"})
    with pytest.raises(Refusal, match=reason) as refusal:
        policy.authorize_network(asked)
    assert refusal.value.category == "network"
    assert "\n" not in str(refusal.value)
    if asked != "*.example.com":
        with pytest.raises(ValueError, match=rf"network_hosts.*({reason})"):
            IsolationPolicy(network_hosts={asked})


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (" ", "it is blank"),
        ("me@example.com", "it carries user information"),
        ("example.com/", "it is a URL or a path, not a host"),
        ("a%b", "it carries a percent sign; neither an escape nor an IPv6 zone is a host"),
        ("[::1", "its brackets do not hold one address"),
        ("[::1]x", "its brackets do not hold one address"),
        ("::x", "it is no IPv6 address"),
        ("a:0", "its port is no number from 1 to 65535"),
        ("*.a", "a wildcard is no host, and stands in a policy only as *.name"),
        ("a." * 128, "it is longer than 253 characters"),
        (".a", "a part between its dots is empty or longer than 63 characters"),
        ("a b", "it holds something other than letters, digits, inner hyphens and underscores"),
        ("ß", "IDNA 2003 and IDNA 2008 do not agree on it; list and ask for its xn-- form"),
        ("1", "it ends in a number without being four decimal octets; short and octal forms are ambiguous"),
        ("ü." * 100 + "a", "its xn-- form is longer than 253 characters"),
    ],
)
def test_each_reason_tells_what_is_wrong(asked: str, reason: str) -> None:
    """Word for word: the reader mends a policy by it."""
    with pytest.raises(ValueError) as error:
        parse_host(asked)
    assert str(error.value) == reason


def test_a_name_has_at_most_253_characters_without_its_final_dot() -> None:
    longest = "a." * 126 + "a"
    assert str(parse_host(longest)) == str(parse_host(f"{longest}.")) == longest
    for longer in (f"{longest}a", f"{longest}a.", f"{longest}aa"):
        with pytest.raises(ValueError, match="longer than 253"):
            parse_host(longer)


def test_a_password_in_a_url_is_not_repeated() -> None:
    for ask in (IsolationPolicy().authorize_network, lambda text: IsolationPolicy(network_hosts=[text])):
        with pytest.raises((Refusal, ValueError)) as error:
            ask("https://user:hunter22@example.com")
        assert "hunter22" not in str(error.value)


@pytest.mark.parametrize(
    ("entry", "allowed", "refused"),
    [
        ("example.com", ["example.com", "example.com:1", "EXAMPLE.com.:443"], ["a.example.com", "example.org"]),
        ("example.com:443", ["example.com:443"], ["example.com", "example.com:80", "example.com:4430"]),
        (
            "*.example.com",
            ["a.example.com", "a.b.example.com:22"],
            ["example.com", "aexample.com", "a.example.com.evil.org", "*.example.com", ".example.com"],
        ),
        ("*.example.com:443", ["a.example.com:443"], ["a.example.com", "a.example.com:80", "example.com:443"]),
        ("127.0.0.1", ["127.0.0.1", "::ffff:127.0.0.1", "[::ffff:7f00:1]:80"], ["localhost", "127.0.0.2", "::1"]),
        ("::1", ["::1", "[::1]:80", "0:0:0:0:0:0:0:1"], ["::2", "localhost", "0.0.0.1"]),
        ("localhost", ["localhost"], ["127.0.0.1", "::1"]),
        ("bücher.example", ["xn--bcher-kva.example"], ["bucher.example"]),
        ("*.bücher.example", ["a.BÜCHER.example"], ["bücher.example"]),
    ],
)
def test_an_entry_covers_exactly_what_it_says(entry: str, allowed: list[str], refused: list[str]) -> None:
    policy = IsolationPolicy(network_hosts=[entry])
    for asked in allowed:
        assert policy.authorize_network(asked) == str(parse_host(asked))
    for asked in refused:
        with pytest.raises(Refusal):
            policy.authorize_network(asked)


@pytest.mark.parametrize("entry", ["*.1.2.3.4", "*.1", "*.", "*", "*.*.example", "*example.com", "*.::1", "*.[::1]"])
def test_a_wildcard_covers_names_only(entry: str) -> None:
    with pytest.raises(ValueError, match="network_hosts"):
        IsolationPolicy(network_hosts=[entry])


def test_no_wildcard_covers_an_address() -> None:
    policy = IsolationPolicy(network_hosts=["*.com", "*.a"])
    for asked in ("1.2.3.4", "::1", "::a", "a"):
        with pytest.raises(Refusal, match="no entry"):
            policy.authorize_network(asked)


@pytest.mark.parametrize("host", [None, 1, b"example.com", ["example.com"]])
def test_what_is_no_text_is_a_type_error(host: object) -> None:
    with pytest.raises(TypeError, match="host"):
        IsolationPolicy().authorize_network(host)  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(TypeError, match="network_hosts"):
        IsolationPolicy(network_hosts=[host])  # type: ignore[list-item]  # the point of the test


LABELS = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=12)
LETTERS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
ADDRESSES = st.one_of(st.ip_addresses(v=4), st.ip_addresses(v=6)).map(str)
NAMES = st.lists(st.one_of(LABELS, LETTERS), min_size=1, max_size=4).map(".".join)
PORTS = st.one_of(st.just(""), st.integers(0, 70_000).map(":{}".format))


def parsed(text: str) -> Host | None:
    try:
        return parse_host(text)
    except ValueError:
        return None


@given(st.one_of(st.text(max_size=40), st.tuples(st.one_of(NAMES, ADDRESSES), PORTS).map("".join)))
@example("İ.example")
@example("ǅ.example")
@example("\u017f.example")
@example("xn--.example")
@example("xn--a-.example")
@example("0x")
def test_any_text_has_a_normal_form_that_is_its_own_or_is_refused(text: str) -> None:
    """The normal form is a fixed point, plain ASCII, and never widens what was asked."""
    host = parsed(text)
    if host is None:
        with pytest.raises(Refusal):
            IsolationPolicy().authorize_network(text)
        return
    normal = str(host)
    assert parse_host(normal) == host
    assert normal.isascii()
    assert normal == normal.lower()
    assert IsolationPolicy(network_hosts=[text]).authorize_network(normal) == normal


@given(st.lists(LABELS, min_size=1, max_size=4).map(".".join), st.data())
def test_case_and_final_dot_make_no_difference(name: str, data: st.DataObject) -> None:
    assume(parsed(name) is not None)
    spelled = "".join(data.draw(st.sampled_from([c.lower(), c.upper()])) for c in name) + data.draw(
        st.sampled_from(["", "."])
    )
    assert parse_host(spelled) == parse_host(name)


@given(st.ip_addresses(v=4), st.integers(1, 65535))
def test_forms_of_one_ipv4_address_are_equal_and_its_number_is_refused(
    address: ipaddress.IPv4Address, port: int
) -> None:
    mapped = ipaddress.IPv6Address(f"::ffff:{address}")
    forms = [f"{address}", f"{address}.", f"{mapped}", mapped.exploded, f"[::ffff:{address}]"]
    assert {parse_host(form) for form in forms} == {Host(str(address))}
    assert str(parse_host(f"[{mapped}]:{port}")) == f"{address}:{port}"
    assert parsed(str(int(address))) is None
    assert parsed(hex(int(address))) is None


@given(st.ip_addresses(v=6), st.integers(1, 65535))
def test_forms_of_one_ipv6_address_are_equal(address: ipaddress.IPv6Address, port: int) -> None:
    forms = [str(address), address.exploded, str(address).upper(), f"[{address}]"]
    assert len({parse_host(form) for form in forms}) == 1
    assert parse_host(f"[{address}]:{port}").port == port


@given(st.text("0123456789xXabcdefABCDEF.", min_size=1, max_size=18))
def test_what_the_c_library_reads_as_an_address_is_that_address_or_refused(text: str) -> None:
    """`inet_aton` accepts short, octal, hexadecimal and integer forms; none of them may pass as a name."""
    try:
        number = socket.inet_aton(text)
    except OSError:
        return
    host = parsed(text)
    assert host is None or host.name == socket.inet_ntoa(number)


@given(LETTERS.filter(lambda text: not text.isascii() and "." not in text))
def test_an_accepted_label_is_what_idna_2008_makes_of_it(label: str) -> None:
    """Judged by an independent implementation of IDNA 2008, where it is installed."""
    idna = pytest.importorskip("idna")
    host = parsed(label)
    if host is not None and host.name.startswith("xn--"):
        assert idna.alabel(idna.uts46_remap(label, std3_rules=True)).decode() == host.name
        assert label.encode("idna").decode().lower() == host.name, "IDNA 2003"
