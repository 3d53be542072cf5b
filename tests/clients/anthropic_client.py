"""The official Anthropic client against the Messages of `callboard serve`.

Usage: anthropic_client.py URL KEY. Ends with 0 and a line `ok: …` for each promise, or with the failed one.
"""

import sys

import anthropic

url, key = sys.argv[1:3]
client = anthropic.Anthropic(base_url=f"{url}/anthropic", api_key=key, max_retries=0, timeout=30)
weather = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
question = {"role": "user", "content": "Do I need an umbrella in Oslo?"}


def promise(name):
    print(f"ok: {name}", flush=True)


def ask(messages, **more):
    return client.messages.create(model="default", max_tokens=200, messages=messages, **more)


def results(message):
    calls = [block for block in message.content if block.type == "tool_use"]
    content = [{"type": "tool_result", "tool_use_id": call.id, "content": f"It rains in {call.input['city']}."} for call in calls]
    return {"role": "user", "content": content}


plain = ask([question], system="Be brief.", stop_sequences=["END"])
assert plain.stop_reason == "end_turn" and plain.content[0].text == "I cannot know.", plain
assert plain.usage.input_tokens + (plain.usage.cache_read_input_tokens or 0) > 0 < plain.usage.output_tokens, plain.usage
assert plain._request_id, "no request-id"
promise("a message comes whole, with usage")

with client.messages.stream(model="default", max_tokens=200, messages=[question]) as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_message()
assert kinds[0] == "message_start" and kinds[-1] == "message_stop", kinds
assert final.content[0].text == "I cannot know." and final.stop_reason == "end_turn", final
assert final.usage.output_tokens > 0, final.usage
promise("a message comes in a stream")

first = ask([question], tools=[weather])
assert first.stop_reason == "tool_use" and first.content[-1].input == {"city": "Oslo"}, first
last = ask([question, {"role": "assistant", "content": first.content}, results(first)], tools=[weather])
assert last.stop_reason == "end_turn" and "It rains in Oslo." in last.content[0].text, last
promise("a tool is called, its result is sent back with the history, and the answer follows")

with client.messages.stream(model="default", max_tokens=200, messages=[question], tools=[weather]) as stream:
    for event in stream:
        pass
    first = stream.get_final_message()
assert first.stop_reason == "tool_use" and first.content[-1].input == {"city": "Oslo"}, first
named = ask([question], tools=[weather], tool_choice={"type": "tool", "name": "weather"})
assert named.stop_reason == "tool_use", named
silent = ask([question], tools=[weather], tool_choice={"type": "none"})
assert silent.stop_reason == "end_turn", silent
promise("calls come in a stream, and the choice of a tool reaches the model")

short = client.messages.count_tokens(model="default", messages=[question]).input_tokens
longer = client.messages.count_tokens(model="default", messages=[question], system="Be brief. " * 50, tools=[weather]).input_tokens
assert 0 < short < longer - 50, (short, longer)
models = client.models.list(limit=10)
one = client.models.retrieve("default")
assert [model.id for model in models][-1] == one.id == "default" and one.max_input_tokens > 0, one
promise("tokens are counted, and the models are listed with their window")

for wrong, kind, of in [
    ({"model": "claude-none"}, anthropic.NotFoundError, "not_found_error"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, anthropic.BadRequestError, "invalid_request_error"),
    ({"messages": [question, {"role": "assistant", "content": "The"}]}, anthropic.BadRequestError, "invalid_request_error"),
]:
    try:
        client.messages.create(**{"model": "default", "max_tokens": 9, "messages": [question], **wrong})
        raise AssertionError(f"{wrong} was taken")
    except kind as error:
        assert error.type == of and error.error_code and error.request_id, (error.body, error.request_id)
try:
    anthropic.Anthropic(base_url=f"{url}/anthropic", api_key="cb_wrong", max_retries=0).models.list()
    raise AssertionError("a wrong key was taken")
except anthropic.AuthenticationError as error:
    assert error.type == "authentication_error", error.body
bearer = anthropic.Anthropic(base_url=f"{url}/anthropic", auth_token=key, api_key=None, max_retries=0)
assert bearer.messages.create(model="default", max_tokens=9, messages=[question]).content, "a bearer token was refused"
promise("refusals have their types, and a key is taken in either header")
