"""The `midstream` command, as a script and as a person use it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import uuid
from typing import Any

import httpx
import pytest
import respx
from langgraph_sdk import get_sync_client

from midstream_client.cli import main
from support.dev_server import DevServer
from support.hosted import calls, said


class Command:
    """Runs `midstream` in this process."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.url = url
        self._capsys = capsys

    def json(self, *arguments: str) -> Any:
        assert main([*arguments, "--url", self.url, "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)

    def text(self, *arguments: str) -> str:
        assert main([*arguments, "--url", self.url]) == 0
        return self._capsys.readouterr().out

    def error(self, *arguments: str, code: int = 1) -> str:
        """Returns the one line that a person is told, which a script is told as JSON."""
        assert main([*arguments, "--url", self.url]) == code
        printed = self._capsys.readouterr()
        assert printed.out == ""
        assert main([*arguments, "--url", self.url, "--json"]) == code
        said = json.loads(self._capsys.readouterr().err)
        assert printed.err == f"midstream: {said['message']}\n"
        assert said["error"].isidentifier()
        return str(said["message"])


@pytest.fixture
def midstream(hosted_url: str, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(hosted_url, capsys)


@pytest.fixture
def new_thread(hosted_url: str) -> str:
    with get_sync_client(url=hosted_url, api_key=None) as client:
        return str(client.threads.create()["thread_id"])


def test_a_script_steers_lists_withdraws_and_halts(midstream: Command, new_thread: str) -> None:
    steered = midstream.json("steer", new_thread, "use metres", "--node", "model")
    assert (steered["thread_status"], steered["thread_id"]) == ("idle", new_thread)
    (pending,) = midstream.json("requests", new_thread)
    assert (pending["id"], pending["node"]) == (steered["id"], "model")
    assert midstream.json("withdraw", new_thread, steered["id"])["id"] == steered["id"]

    assert midstream.json("halt", new_thread, "enough", "--wait", "5")["outcome"] == "pending"
    sent = midstream.json("send", new_thread, "Hello", "--assistant", "brief", "--id", str(uuid.uuid4()))
    assert sent["how"] == "started"


def test_a_script_answers_what_a_thread_waits_for(
    midstream: Command, new_thread: str, hosted_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with get_sync_client(url=hosted_url, api_key=None) as client:
        asked = calls(("ask_user", {"question": "which?"}), ("send_email", {"to": "ann", "body": "hi"}))
        client.runs.wait(new_thread, "brief", input=said(asked))

    question, email = sorted(
        midstream.json("interrupts", new_thread), key=lambda each: each["kind"] != "question"
    )
    assert (question["value"], email["actions"][0]["name"]) == ({"question": "which?"}, "send_email")
    for columns in ("80", "30"):
        monkeypatch.setenv("COLUMNS", columns)
        table = midstream.text("interrupts", new_thread)
        # What is asked may be broken, and an id is what `resume` takes.
        assert "send_email(to='ann',body='hi')" in re.sub(r"\s", "", table)
        assert {question["id"], email["id"]} <= set(table.split())
    waits = "it waits for the answer to what is asked"
    assert f"interrupted: {waits}" in midstream.text("steer", new_thread, "use metres")
    assert f"interrupted: {waits}" in midstream.text("halt", new_thread, "enough")
    for request in midstream.json("requests", new_thread):
        assert request["id"] in midstream.text("requests", new_thread).split()
        midstream.json("withdraw", new_thread, request["id"])
    assert new_thread in [each["thread_id"] for each in midstream.json("threads", "--status", "interrupted")]
    assert new_thread in midstream.text("threads", "--limit", "100")

    resume = ["resume", new_thread, "--assistant", "brief"]
    assert "'maybe'" in midstream.error(*resume, f'{email["id"]}=["maybe"]')
    assert "is not JSON" in midstream.error(*resume, f"{email['id']}=maybe", code=2)
    assert "INTERRUPT=JSON" in midstream.error(*resume, "maybe", code=2)
    assert "`midstream interrupts THREAD`" in midstream.error(*resume, "nobody=1")
    resumed = midstream.json(
        *resume, f'{email["id"]}={{"call_1": {{"type": "approve"}}}}', f'{question["id"]}={{"choice": "red"}}'
    )
    assert (resumed["status"], resumed["open"]) == ("success", [])
    assert midstream.text("interrupts", new_thread) == "the thread waits for nobody\n"
    assert midstream.text("requests", new_thread) == "nothing is pending\n"


def test_a_person_reads_what_becomes_of_a_request(midstream: Command, new_thread: str) -> None:
    assert "it waits for the next run" in midstream.text("steer", new_thread, "use metres")
    assert "use metres" in midstream.text("requests", new_thread)
    assert "started" in midstream.text("send", new_thread, "Hello", "--assistant", "brief")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("steer NOWHERE x", "404: Thread with ID .* not found. `midstream threads` lists the threads"),
        (
            "interrupts nowhere",
            "422: Invalid thread ID: must be a UUID. `midstream threads` lists the threads",
        ),
        ("withdraw THREAD NOWHERE", "knows no request .*: check the thread"),
        ("withdraw THREAD nope", "the request's id must be a UUID: `midstream requests THREAD` lists those"),
        ("steer THREAD x --run nope", "--run must be a UUID$"),
        ("steer THREAD x --node=", "--node must have at least 1 character"),
        ("halt THREAD BLANK", "the reason must not be empty or white space only"),
        ("send THREAD BLANK --assistant brief", "the text must not be empty or white space only"),
        ("send THREAD x --assistant nobody", "422: Invalid assistant: 'nobody'. Must be .*: agent, brief"),
        ("chat --assistant brief", "needs a terminal; in scripts use"),
    ],
)
def test_what_cannot_be_done_is_one_line_that_says_what_to_do(
    midstream: Command, new_thread: str, arguments: str, said: str
) -> None:
    words = {"THREAD": new_thread, "NOWHERE": str(uuid.uuid4()), "BLANK": " "}
    assert re.search(said, midstream.error(*(words.get(word, word) for word in arguments.split())))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("steer t x --wait soon", "--wait: must be a number of seconds, such as 30, not 'soon'"),
        ("steer t x --wait -1", "--wait: must be a number of seconds"),
        ("steer t \udcff", "text: must be UTF-8"),
        ("threads --limit 0", "--limit: must be from 1 to 1000, not '0'"),
        ("resume t --assistant a", "required: INTERRUPT=JSON. `midstream resume --help` says what it takes"),
        ("shout t", "invalid choice: 'shout' .* `midstream --help` says what it takes"),
    ],
)
def test_a_command_line_that_is_none_is_told_from_what_cannot_be_done(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(said, Command("http://server.test", capsys).error(*arguments.split(), code=2))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (httpx.ConnectError("refused"), "no answer from {url}: refused. Start the server there, or"),
        (httpx.Response(200, text="<html>"), "{url} does not answer in JSON: give the address"),
        (httpx.Response(403, json={"detail": "no"}), "403: no. Give a key that may do this with --api-key"),
        (httpx.Response(404, text="Not Found"), "404: .*{url} knows no such thing"),
        (httpx.Response(409, json={"detail": "busy"}), "409: busy. `midstream steer THREAD TEXT` reaches"),
        (httpx.Response(500, json={"detail": "no"}), "500: no. The server's own log says why"),
    ],
)
def test_what_a_server_says_is_one_line_too(
    answer: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://server.test"
    with respx.mock() as router:
        router.route().mock(side_effect=[answer, answer])
        assert re.search(said.format(url=url), Command(url, capsys).error("threads"))
    for address in ("server.test:80", "http://[::1", ""):
        assert "is no address of a server" in Command(address, capsys).error("threads")


def test_a_server_without_midstream_is_told_apart(
    server_without_midstream: DevServer, capsys: pytest.CaptureFixture[str]
) -> None:
    midstream = Command(server_without_midstream.url, capsys)
    with get_sync_client(url=midstream.url, api_key=None) as client:
        thread_id = client.threads.create()["thread_id"]
        assert "midstream.server:app" in midstream.error("steer", thread_id, "x")
        assert client.threads.get_history(thread_id) == []


@pytest.mark.parametrize(("given", "sent"), [([], "from-env"), (["--api-key", "given"], "given")])
def test_the_key_is_the_one_that_is_given_or_the_environments(
    given: list[str], sent: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LANGGRAPH_API_KEY", "from-env")
    with respx.mock() as router:
        route = router.post("http://server.test/threads/search").mock(
            return_value=httpx.Response(200, json=[])
        )
        assert Command("http://server.test", capsys).text("threads", *given) == "no threads\n"
    assert route.calls.last.request.headers["x-api-key"] == sent


def test_the_chat_says_what_it_needs() -> None:
    code = (
        "import sys; sys.modules['prompt_toolkit'] = None; from midstream_client.cli import main; "
        "sys.exit(main(['chat', '--assistant', 'agent']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=os.environ, check=False
    )
    assert done.returncode == 1
    assert "pip install 'langgraph-midstream[cli]'" in done.stderr
