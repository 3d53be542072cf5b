"""LangChain binds tools to a model behind the OpenAI-compatible API of `callboard serve`.

Usage: langchain_tools.py URL KEY. Ends with 0 and a line `ok: …` for each promise, or with the failed one.
"""

import sys

from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

url, key = sys.argv[1:3]


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"It rains in {city}."


model = ChatOpenAI(model="default", base_url=f"{url}/openai/v1", api_key=key, max_retries=0, timeout=30).bind_tools([weather])


def loop(answer):
    messages = [HumanMessage("Do I need an umbrella in Oslo?")]
    for _ in range(4):
        said = answer(messages)
        messages.append(said)
        if not said.tool_calls:
            return messages
        messages.extend(weather.invoke(call) for call in said.tool_calls)
    raise AssertionError(messages)


def streamed(messages):
    said = None
    for chunk in model.stream(messages):
        said = chunk if said is None else said + chunk
    return said


messages = loop(model.invoke)
assert [message.type for message in messages] == ["human", "ai", "tool", "ai"], messages
assert "It rains in Oslo." in messages[-1].content and messages[-1].usage_metadata["total_tokens"] > 0, messages
print("ok: bind_tools calls a tool and answers with its result", flush=True)

messages = loop(streamed)
assert [message.type for message in messages] == ["human", "AIMessageChunk", "tool", "AIMessageChunk"], messages
assert "It rains in Oslo." in messages[-1].content, messages
print("ok: bind_tools streams", flush=True)
