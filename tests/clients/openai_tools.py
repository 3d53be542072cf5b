"""The official OpenAI client brings a tool to the OpenAI-compatible API of `callboard serve`.

Usage: openai_tools.py URL KEY. Ends with 0 and a line `ok: …` for each promise, or with the failed one.
"""

import json
import sys

import openai

url, key = sys.argv[1:3]
client = openai.OpenAI(base_url=f"{url}/openai/v1", api_key=key, max_retries=0, timeout=30)
weather = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
question = {"role": "user", "content": "Do I need an umbrella in Oslo?"}


def promise(name):
    print(f"ok: {name}", flush=True)


def ask(messages, **more):
    return client.chat.completions.create(model="default", messages=messages, tools=[weather], **more)


def result(call):
    city = json.loads(call.function.arguments)["city"]
    return {"role": "tool", "tool_call_id": call.id, "content": f"It rains in {city}."}


first = ask([question]).choices[0]
assert first.finish_reason == "tool_calls" and len(first.message.tool_calls) == 1, first
call = first.message.tool_calls[0]
assert (call.type, call.function.name, json.loads(call.function.arguments)) == ("function", "weather", {"city": "Oslo"}), call
said = [question, first.message.model_dump(exclude_none=True), result(call)]
last = ask(said).choices[0]
assert last.finish_reason == "stop" and "It rains in Oslo." in last.message.content, last
promise("a tool is called, its result is sent back, and the answer follows")

calls, finish, usage = {}, None, None
for chunk in ask([question], stream=True, stream_options={"include_usage": True}):
    usage = chunk.usage or usage
    for choice in chunk.choices:
        finish = choice.finish_reason or finish
        for delta in choice.delta.tool_calls or []:
            known = calls.setdefault(delta.index, {"id": delta.id, "name": delta.function.name, "arguments": ""})
            known["arguments"] += delta.function.arguments or ""
assert finish == "tool_calls" and usage.total_tokens > 0, (finish, usage)
assert [(call["name"], json.loads(call["arguments"])) for call in calls.values()] == [("weather", {"city": "Oslo"})], calls
promise("calls come in a stream")

bound = {"X-Conversation-Id": "openai-tools"}
first = ask([question], extra_headers=bound).choices[0]
said = [question, first.message.model_dump(exclude_none=True), result(first.message.tool_calls[0])]
last = ask(said, extra_headers=bound).choices[0]
assert last.finish_reason == "stop" and "It rains in Oslo." in last.message.content, last
again = ask(said, extra_headers=bound).choices[0]
assert again.message.content == last.message.content, again
then = said + [{"role": "assistant", "content": last.message.content}, {"role": "user", "content": "Thanks."}]
assert ask(then, extra_headers=bound).choices[0].finish_reason == "tool_calls"
promise("in a conversation the result continues the round that waits for it, also when it is sent twice")

given_up = then + [{"role": "user", "content": "Forget it."}]
assert ask(given_up, extra_headers=bound).choices[0].message
promise("a call that its client gave up ends, and the next prompt is answered")

named = ask([question], tool_choice={"type": "function", "function": {"name": "weather"}}).choices[0]
assert named.message.tool_calls[0].function.name == "weather", named
silent = ask([question], tool_choice="none").choices[0]
assert silent.finish_reason == "stop" and not silent.message.tool_calls, silent
promise("the choice of a tool reaches the model")

for wrong, param in [({"n": 2}, "n"), ({"functions": [{"name": "f"}]}, "functions"), ({"logprobs": True}, "logprobs")]:
    try:
        ask([question], **wrong)
        raise AssertionError(f"{wrong} was taken")
    except openai.UnprocessableEntityError as error:
        assert error.param == param, (error.param, param)
promise("what would be answered wrongly is refused with its field")
