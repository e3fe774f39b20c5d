"""The agent as people write it without midstream: a node that calls the model."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import SystemMessage
from langgraph.graph import END, START, MessagesState, StateGraph

from chat_models import chosen_model

PROMPT = SystemMessage("You are a helpful assistant. Do what the last message asks.")

model = chosen_model()


async def call_model(state: MessagesState) -> dict[str, Any]:
    return {"messages": [await model.ainvoke([PROMPT, *state["messages"]])]}


builder = StateGraph(MessagesState)
builder.add_node("model", call_model)
builder.add_edge(START, "model")
builder.add_edge("model", END)
graph = builder.compile(name="plain")
