"""Models, prompts and states of all kinds: what a node accepts, and that it can be steered with each."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatResult
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables import ConfigurableField, Runnable, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph, add_messages
from langgraph.runtime import Runtime
from pydantic import BaseModel
from typing_extensions import TypedDict

from fakes import ENDLESS, SILENCE, FakeChatModel, SyncChatModel, WholeChatModel
from midstream import ConfigurationError, MidstreamState, ModelNode, Preemption
from midstream.state import PreemptionState, merge
from support.steering import ASKED, agent, is_sealed, ledger_of, look_up, said, steer, thread


def through_a_template(model: BaseChatModel) -> Runnable[Any, Any]:
    template = ChatPromptTemplate.from_messages([("system", "You are kind."), MessagesPlaceholder("all")])
    return RunnableLambda(lambda messages: {"all": messages}) | template | model


def chosen_by_state(model: BaseChatModel) -> Callable[[Any, Runtime[Any]], Runnable[Any, Any]]:
    def choose(state: MidstreamState, runtime: Runtime[Any]) -> Runnable[Any, Any]:
        assert state["messages"]
        assert runtime.execution_info is not None
        return model

    return choose


def chosen_by_state_later(model: BaseChatModel) -> Any:
    async def choose(state: MidstreamState, runtime: Runtime[Any]) -> Runnable[Any, Any]:
        return model

    return choose


def broken() -> FakeChatModel:
    return FakeChatModel(answers=[[ConnectionError("no route")]] * 4)


WRAPPINGS = {
    "bare": lambda model: model,
    "bound": lambda model: model.bind(stop=["\n"]),
    "with tools": lambda model: model.bind_tools([look_up]),
    "configured": lambda model: model.with_config(tags=["t"]),
    "with retries": lambda model: model.bind(stop=["\n"]).with_retry(stop_after_attempt=2),
    "with fallbacks": lambda model: model.with_fallbacks([broken()]),
    "as a fallback": lambda model: broken().with_fallbacks([model]),
    "bound with fallbacks": lambda model: broken().bind_tools([look_up]).with_fallbacks([model.bind()]),
    "with fallbacks, bound": lambda model: broken().with_fallbacks([model]).bind_tools([look_up]),
    "after a template": through_a_template,
    "configurable field": lambda model: model.configurable_fields(metadata=ConfigurableField("about")),
    "alternative": lambda model: broken().configurable_alternatives(
        ConfigurableField("llm"), default_key="broken", chosen=model
    ),
    "bound alternative": lambda model: (
        broken()
        .configurable_alternatives(ConfigurableField("llm"), default_key="broken", chosen=model)
        .with_config(configurable={"llm": "chosen"})
        .with_retry(stop_after_attempt=2)
    ),
    "chosen by the state": chosen_by_state,
}


@pytest.mark.parametrize("wrap", WRAPPINGS.values(), ids=WRAPPINGS.keys())
async def test_a_model_is_sealed_behind_whatever_wraps_it(wrap: Callable[[FakeChatModel], Any]) -> None:
    saver, config = InMemorySaver(), thread(llm="chosen", about={"team": "a"})
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])

    state = await agent(wrap(model), saver=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Be brief."), ("ai", "A cat.")]
    assert is_sealed(state["messages"][1])


@pytest.mark.parametrize("wrap", WRAPPINGS.values(), ids=WRAPPINGS.keys())
def test_a_model_is_sealed_behind_whatever_wraps_it_without_an_event_loop(
    wrap: Callable[[FakeChatModel], Any],
) -> None:
    saver, config = InMemorySaver(), thread(llm="chosen", about={"team": "a"})
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.append(steer("Be brief.")), ENDLESS], ["A cat."]])

    state = agent(wrap(model), saver=saver).invoke(ASKED, config)

    assert [message.type for message in state["messages"]] == ["human", "ai", "human", "ai"]
    assert is_sealed(state["messages"][1])


async def test_a_model_is_chosen_by_an_async_callable() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])

    state = await agent(chosen_by_state_later(model), saver=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Be brief."), ("ai", "A cat.")]


def test_an_async_choice_of_the_model_asks_for_an_async_run() -> None:
    graph = agent(chosen_by_state_later(FakeChatModel()), saver=InMemorySaver())

    with warnings.catch_warnings(record=True) as warned:
        with pytest.raises(ConfigurationError, match="ainvoke"):
            graph.invoke(ASKED, thread())
        gc.collect()

    assert [str(each.message) for each in warned] == []


async def test_a_model_that_streams_by_threads_alone_is_sealed_in_an_async_graph() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = SyncChatModel(answers=[["Once", lambda: ledger.append(steer("Be brief.")), ENDLESS], ["A cat."]])

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert [message.type for message in state["messages"]] == ["human", "ai", "human", "ai"]
    assert is_sealed(state["messages"][1])
    assert [name for name, _ in model.calls[0].closed] == ["inner", "outer"]


async def test_a_model_that_cannot_stream_works_unsealed() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = WholeChatModel(
        answers=[["Once", lambda: ledger.append(steer("Be brief.")), " upon a time."], ["A cat."]]
    )

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [
        ("ai", "Once upon a time."),
        ("human", "Be brief."),
        ("ai", "A cat."),
    ]
    assert not is_sealed(state["messages"][1])
    (record,) = state["preemption"]["handled"].values()
    assert record["outcome"] == "turn_end"


@pytest.mark.parametrize(
    "switch", [{"disable_streaming": True}, {"disable_streaming": "tool_calling"}], ids=str
)
async def test_streaming_that_is_switched_off_on_the_model_stays_off(switch: dict[str, Any]) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["Once", lambda: ledger.append(steer("Be brief.")), " upon a time."], ["A cat."]], **switch
    )

    state = await agent(model, saver=saver, tools=[look_up]).ainvoke(ASKED, config)

    assert said(state["messages"])[1:3] == [("ai", "Once upon a time."), ("human", "Be brief.")]


async def test_a_model_in_its_v1_output_is_sealed() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(
        answers=[["Once", " upon", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]],
        output_version="v1",
    )

    state = await agent(model, saver=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once upon"), ("human", "Be brief."), ("ai", "A cat.")]
    assert state["messages"][1].content == [{"type": "text", "text": "Once upon", "index": 0}]


def test_what_is_no_model_is_refused_at_construction() -> None:
    with pytest.raises(ConfigurationError, match="must be a chat model"):
        ModelNode("openai:gpt-5")  # type: ignore[arg-type]


def test_tools_for_a_model_that_takes_none_are_refused_at_construction() -> None:
    with pytest.raises(ConfigurationError, match="cannot be given tools"):
        ModelNode(through_a_template(FakeChatModel()), tools=[look_up])


async def test_a_model_that_ends_in_a_parser_is_refused_with_a_reason() -> None:
    graph = agent(FakeChatModel() | RunnableLambda(lambda message: str(message.text)), saver=InMemorySaver())

    with pytest.raises(ConfigurationError, match="must answer with an AIMessage, not str"):
        await graph.ainvoke(ASKED, thread())


# Prompts


PROMPTS: dict[str, Any] = {
    "text": "Be kind.",
    "message": SystemMessage("Be kind."),
    "callable to text": lambda state: "Be kind.",
    "callable to message": lambda state: SystemMessage("Be kind."),
    "callable to messages": lambda state: [SystemMessage("Be kind.")],
}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS.keys())
async def test_the_prompt_is_whole_on_every_call_and_never_in_the_state(prompt: Any) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])

    state = await agent(model, saver=saver, prompt=prompt).ainvoke(ASKED, config)

    assert [said(call.messages) for call in model.calls] == [
        [("system", "Be kind."), ("human", "Tell me a story.")],
        [("system", "Be kind."), ("human", "Tell me a story."), ("ai", "Once"), ("human", "Be brief.")],
    ]
    assert [message.type for message in state["messages"]] == ["human", "ai", "human", "ai"]


async def test_tools_are_bound_on_every_call() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])

    await agent(chosen_by_state(model), saver=saver, tools=[look_up]).ainvoke(ASKED, config)

    assert [[each["function"]["name"] for each in call.options["tools"]] for call in model.calls] == [
        ["look_up"],
        ["look_up"],
    ]


# States


class PydanticState(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]
    preemption: Annotated[PreemptionState, merge] = {}


@dataclass
class DataclassState:
    messages: Annotated[list[AnyMessage], add_messages]
    preemption: Annotated[PreemptionState, merge] = field(default_factory=PreemptionState)


class NamedState(MidstreamState):
    chat: Annotated[list[AnyMessage], add_messages]


@pytest.mark.parametrize("schema", [PydanticState, DataclassState])
async def test_states_of_other_kinds_are_steered_alike(schema: type[Any]) -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])
    builder = StateGraph(schema)
    builder.add_node("model", ModelNode(model))
    builder.add_edge(START, "model")
    builder.add_edge("model", END)

    state = await builder.compile(checkpointer=saver).ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once"), ("human", "Be brief."), ("ai", "A cat.")]
    assert state["preemption"]["stats"]["seals"] == 1


async def test_messages_may_live_in_a_channel_of_another_name() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), SILENCE], ["A cat."]])
    builder = StateGraph(NamedState)
    builder.add_node("model", ModelNode(model, messages_key="chat"))
    builder.add_edge(START, "model")
    builder.add_edge("model", END)

    asked: Any = {"chat": [HumanMessage("Hi.")]}
    state = await builder.compile(checkpointer=saver).ainvoke(asked, config)

    assert said(state["chat"])[1:] == [("ai", "Once"), ("human", "Be brief."), ("ai", "A cat.")]
    assert state["messages"] == []


class StateWithoutChannel(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages]


@dataclass
class DataclassWithoutChannel:
    messages: Annotated[list[AnyMessage], add_messages]


class DictWithoutChannel(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


@pytest.mark.parametrize("schema", [DictWithoutChannel, StateWithoutChannel, DataclassWithoutChannel])
async def test_a_state_without_the_channel_is_refused_with_a_reason(schema: type[Any]) -> None:
    builder = StateGraph(schema)
    builder.add_node("model", ModelNode(FakeChatModel()))
    builder.add_edge(START, "model")

    with pytest.raises(ConfigurationError, match="a subclass of midstream"):
        await builder.compile(checkpointer=InMemorySaver()).ainvoke(ASKED, thread())


async def test_a_graph_that_saves_nothing_runs_as_if_midstream_were_not_there() -> None:
    builder = StateGraph(MidstreamState)
    builder.add_node("model", ModelNode(FakeChatModel(answers=[["Once."]])))
    builder.add_edge(START, "model")

    state = await builder.compile().ainvoke(ASKED)

    assert said(state["messages"])[1:] == [("ai", "Once.")]


async def test_a_node_whose_preemption_is_off_leaves_requests_alone() -> None:
    saver, config = InMemorySaver(), thread()
    ledger = ledger_of(saver, config)
    model = FakeChatModel(answers=[["Once", lambda: ledger.aappend(steer("Be brief.")), " upon."]])
    graph = agent(model, saver=saver, preemption=Preemption(enabled=False))

    state = await graph.ainvoke(ASKED, config)

    assert said(state["messages"])[1:] == [("ai", "Once upon.")]
    assert len(await ledger.arequests()) == 1


class Telling(WholeChatModel):
    """A model of the older kind, which cannot stream and tells its tokens to the callbacks itself."""

    def _generate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if run_manager is not None:
            run_manager.on_llm_new_token("A cat.")
        return super()._generate(messages, stop, run_manager, **kwargs)


class AsyncTelling(Telling):
    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if run_manager is not None:
            await run_manager.on_llm_new_token("A cat.")
        return WholeChatModel._generate(self, messages, stop, run_manager, **kwargs)


class Bare(WholeChatModel):
    """A model whose `_generate` knows of no callbacks, which core takes where it is not awaited."""

    def _generate(self, messages: list[BaseMessage], stop: Any = None, **kwargs: Any) -> ChatResult:  # type: ignore[override]
        return super()._generate(messages, stop, None, **kwargs)


class TokenHandler(BaseCallbackHandler):
    def __init__(self) -> None:
        self.tokens: list[Any] = []

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.tokens.append(token)


@pytest.mark.parametrize("kind", [Telling, AsyncTelling])
async def test_a_model_that_tells_its_tokens_itself_is_given_the_callbacks(kind: type[Telling]) -> None:
    handler = TokenHandler()
    graph = agent(kind(answers=[["A cat."]]), saver=InMemorySaver())

    await graph.ainvoke(ASKED, {**thread(), "callbacks": [handler]})

    assert handler.tokens == ["A cat."]


def test_a_model_that_tells_its_tokens_itself_is_given_the_callbacks_without_an_event_loop() -> None:
    handler = TokenHandler()

    agent(Telling(answers=[["A cat."]]), saver=InMemorySaver()).invoke(
        ASKED, {**thread(), "callbacks": [handler]}
    )

    assert handler.tokens == ["A cat."]


def test_a_model_whose_generate_knows_no_callbacks_works() -> None:
    state = agent(Bare(answers=[["A cat."]]), saver=InMemorySaver()).invoke(ASKED, thread())

    assert said(state["messages"])[1:] == [("ai", "A cat.")]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"preemption": {"max_seals": 8}}, r"midstream\.Preemption"),
        ({"prompt": 5}, "prompt must be"),
        ({"tools": "look_up"}, "tools must be a list"),
        ({"tools": None}, "tools must be a list"),
    ],
)
def test_an_option_of_the_wrong_kind_is_refused_at_construction(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        ModelNode(FakeChatModel(), **options)
