"""Addresses of stores of several servers."""

import pytest

from service.store.address import kind_of, parse, shown, with_password


def test_a_cluster():
    found = parse("redis+cluster://me:p%40ss@a,b:7001,[::1]:7002")
    assert found.places == [("a", 6379), ("b", 7001), ("::1", 7002)]
    assert found.options == {"username": "me", "password": "p@ss"}


def test_a_cluster_with_tls():
    found = parse("rediss+cluster://a:7000?ssl_ca_certs=/ca.pem")
    assert found.options == {"ssl": True, "ssl_ca_certs": "/ca.pem"}


def test_sentinels():
    url = "redis+sentinel://:store@a,b:1/main/2?sentinel_password=theirs"
    found = parse(url)
    assert found.places == [("a", 26379), ("b", 1)]
    assert (found.name, found.options) == ("main", {"password": "store", "db": 2})
    assert found.sentinel_options == {"password": "theirs"}


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis+cluster://", "HOST"),
        ("redis+cluster://a,,b", "HOST"),
        ("redis+cluster://a:port", "HOST"),
        ("redis+cluster://a/1", "no database"),
        ("redis+sentinel://a:1", "name of the master"),
    ],
)
def test_what_is_wrong_is_said(url, says):
    with pytest.raises(ValueError, match=says):
        parse(url)


def test_kinds():
    urls = ("redis://a", "rediss://a", "unix:///s", "redis+cluster://a", "rediss+sentinel://a/m")
    assert [kind_of(url) for url in urls] == ["", "", "", "cluster", "sentinel"]


def test_a_password_is_put_in_and_never_shown():
    assert with_password("redis://h:1/0", "a:b@c/d") == "redis://:a%3Ab%40c%2Fd@h:1/0"
    assert with_password("redis+cluster://me@a,b", "x") == "redis+cluster://me:x@a,b"
    assert shown("redis+cluster://me:x@a:1,b:2?z=1") == "a:1,b:2"
    assert shown("unix:///run/s") == "/run/s"
    assert with_password("unix:///run/s", "x") == "unix://:x@/run/s"
    with pytest.raises(ValueError, match="password"):
        with_password("redis://:old@h", "new")
