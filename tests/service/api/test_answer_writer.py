"""An answer's head and the beginning of its body: together where the answer has a length."""

from types import SimpleNamespace

import pytest

from service.api.answer_writer import AnswerWriter

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"


class Transport:
    """Records each write, and the close after them."""

    def __init__(self):
        self.written = []

    def write(self, data):
        self.written.append(bytes(data))

    def writelines(self, parts):
        self.written.append(b"".join(parts))

    def close(self):
        self.written.append("closed")


@pytest.fixture
def transport():
    return Transport()


def answer(transport, length, method="POST"):
    cycle = SimpleNamespace(
        response_started=True, expected_content_length=length, scope={"method": method}
    )
    return AnswerWriter(cycle, transport)


def test_head_and_body_are_one_write(transport):
    writer = answer(transport, 4)
    writer.write(HEAD)
    assert transport.written == []
    writer.write(b"bo")
    writer.write(b"dy")
    assert transport.written == [HEAD + b"bo", b"dy"]


@pytest.mark.parametrize(("length", "method"), [(0, "POST"), (4, "HEAD")])
def test_a_head_that_nothing_has_to_follow_goes_at_once(transport, length, method):
    answer(transport, length, method).write(HEAD)
    assert transport.written == [HEAD]


def test_a_head_is_sent_though_its_body_never_comes(transport):
    writer = answer(transport, 4)
    writer.write(HEAD)
    writer.close()
    assert transport.written == [HEAD, "closed"]


def test_what_comes_before_the_answer_goes_at_once(transport):
    go_on = b"HTTP/1.1 100 Continue\r\n\r\n"
    writer = answer(transport, 4)
    writer._cycle.response_started = False
    writer.write(go_on)
    writer._cycle.response_started = True
    writer.write(HEAD)
    writer.write(b"body")
    assert transport.written == [go_on, HEAD + b"body"]
