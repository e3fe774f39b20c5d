"""Every gate in one batch of tool calls: a question, two approvals and a tool that the browser runs.

It runs on the scripted model, whichever one is chosen for the other graphs: small models call tools when they
like. Say anything, and it calls all four tools; or send a script of your own (see `chat_models/scripted.py`).
Then answer what the thread's interrupts ask for, one by one or together; the page is asked for last, when all
else is decided:

    ask_user_question   {"choice": "tomorrow"}
    send_email          {"type": "approve"}, or "edit", "reject", "respond" with what belongs to them
    delete_file         {"type": "approve"} or {"type": "reject", "message": "..."}; not asked below /tmp
    read_page           {"content": "the page's text"}, from the host
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import tools_condition
from langgraph.types import interrupt
from pydantic import BaseModel

from chat_models.scripted import ScriptedChatModel, Turn
from midstream import MidstreamState, ModelNode, PreemptionTransformer, ToolNode


class Choice(BaseModel):
    """What a person answers to `ask_user_question`."""

    choice: str


@tool
def ask_user_question(question: str, options: list[str]) -> str:
    """Ask the user to choose."""
    asked = {"type": "question", "question": question, "options": options}
    return interrupt(asked, response_schema=Choice).choice


@tool
def send_email(to: str, subject: str) -> str:
    """Send an email."""
    return f"Sent {subject!r} to {to}."


@tool
def delete_file(path: str) -> str:
    """Delete a file."""
    return f"Deleted {path}."


READ_PAGE = {
    "name": "read_page",
    "description": "Read the page that the user is looking at.",
    "parameters": {"type": "object", "properties": {"selector": {"type": "string"}}, "required": []},
}

CALLS = [
    {"name": "ask_user_question", "args": {"question": "When?", "options": ["today", "tomorrow"]}},
    {"name": "send_email", "args": {"to": "ann@example.com", "subject": "The report"}},
    {"name": "delete_file", "args": {"path": "/home/ann/report.txt"}},
    {"name": "read_page", "args": {"selector": "main"}},
]


class Demonstrator(ScriptedChatModel):
    """Follows the script of the last human message; without one, calls every tool and then sums up."""

    interval_ms: float = 5.0

    def answer(self, messages: Sequence[BaseMessage]) -> Turn:
        script = {"turns": [{"say": "Let me do that.", "tool_calls": CALLS}, {"say": "All done."}]}
        return super().answer([_scripted(message, script) for message in messages])


def _scripted(message: BaseMessage, script: dict[str, Any]) -> BaseMessage:
    if not isinstance(message, HumanMessage) or message.text.lstrip().startswith("{"):
        return message
    return message.model_copy(update={"content": json.dumps(script)})


tools = [ask_user_question, send_email, delete_file]

builder = StateGraph(MidstreamState)
builder.add_node("model", ModelNode(Demonstrator(), tools=[*tools, READ_PAGE]))
builder.add_node(
    "tools",
    ToolNode(
        tools,
        interrupting_tools=["ask_user_question"],
        interrupt_on={
            "send_email": True,
            "delete_file": {
                "allowed_decisions": ["approve", "reject"],
                "description": "This cannot be undone.",
                "when": lambda request: not request.tool_call["args"]["path"].startswith("/tmp/"),
            },
        },
        interrupt_mode="per_call",
        host_tools=[READ_PAGE],
    ),
)
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")

graph = builder.compile(name="approvals", transformers=[PreemptionTransformer])
