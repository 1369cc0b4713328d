"""Who may ask: hosts, origins, tokens, sizes and rates."""

from __future__ import annotations

import pytest

from pellucid.errors import InputError
from pellucid.web.security import Address, Bucket, Limits
from tests.web.serving import BASE, PORT, TestClient, client

TOKEN = "a-secret-of-enough-letters"


@pytest.mark.parametrize(
    "host", ["evil.example", f"evil.example:{PORT}", "127.0.0.1:1", "127.0.0.1", "", "[::2]:8000", "x:y"]
)
def test_a_foreign_host_is_refused(host: str) -> None:
    with client() as web:
        assert web.get("/api/start", headers={"Host": host}).status_code == 421
        assert web.get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("host", [f"localhost:{PORT}", f"127.0.0.1:{PORT}", f"[::1]:{PORT}", f"LOCALHOST:{PORT}"])
def test_its_own_names_are_answered(host: str) -> None:
    with client() as web:
        assert web.get("/api/start", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"https://127.0.0.1:{PORT}"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"},
    ],
)
def test_other_sites_may_not_ask(headers: dict[str, str]) -> None:
    with client() as web:
        answer = web.post("/api/model", json={"model": "words"}, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "origin")


def test_its_own_page_may_ask_and_a_link_may_open_it() -> None:
    with client() as web:
        own = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}
        assert web.post("/api/model", json={"model": "worked-example"}, headers=own).status_code == 200
        assert web.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}).status_code == 200
        assert web.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}).status_code == 403


def test_answers_are_sealed() -> None:
    with client() as web:
        for path in ("/", "/api/start", "/static/app.js", "/nothing"):
            headers = web.get(path).headers
            assert "default-src 'none'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in headers
        assert web.get("/api/start").headers["cache-control"] == "no-store"
        assert web.get("/docs").status_code == 404


def test_a_large_body_is_refused_whatever_it_says_of_itself() -> None:
    limits = Limits(body=1000)
    with client(limits) as web:
        assert web.post("/api/trace", json={"model": "words", "text": "a" * 2000}).status_code == 413
        assert web.post("/api/model", content=b"{}", headers={"Content-Length": "9" * 30}).status_code == 413

        def drops():
            yield b'{"model":"'
            yield b"a" * 2000

        assert web.post("/api/model", content=drops(), headers={"Content-Type": "application/json"}).status_code >= 400


def test_too_many_requests_in_a_second() -> None:
    with client(Limits(per_second=0.001, burst=3)) as web:
        codes = [web.get("/api/start").status_code for _ in range(5)]
        assert codes == [200, 200, 200, 429, 429]


def test_the_bucket_fills_again() -> None:
    now = [0.0]
    bucket = Bucket(2.0, 2, clock=lambda: now[0])
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    now[0] = 0.5
    assert [bucket.take(), bucket.take()] == [True, False]


def test_another_address_needs_a_token() -> None:
    with pytest.raises(InputError, match="--token"):
        Address("0.0.0.0", PORT)
    with pytest.raises(InputError, match="16 or more"):
        Address("0.0.0.0", PORT, "short")
    assert Address("0.0.0.0", PORT, TOKEN).names(f"192.168.1.5:{PORT}")
    assert not Address("0.0.0.0", PORT, TOKEN).names(f"evil.example:{PORT}")


def test_a_token_opens_the_door_and_leaves_a_cookie() -> None:
    with client(address=Address("0.0.0.0", PORT, TOKEN)) as web:
        assert web.get("/").status_code == 401
        assert web.get("/?token=wrong").status_code == 401
        assert web.get("/api/start", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        entered = web.get(f"/?token={TOKEN}", follow_redirects=False)
        assert (entered.status_code, entered.headers["location"]) == (303, "/")
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert web.get("/api/start").status_code == 200


def test_a_websocket_is_closed() -> None:
    from starlette.websockets import WebSocketDisconnect

    with client() as web, pytest.raises(WebSocketDisconnect), web.websocket_connect("/api/start"):
        pass


def test_the_client_of_these_tests_is_not_let_in_by_name() -> None:
    with TestClient(client().app) as web:
        assert web.get("/").status_code == 421
