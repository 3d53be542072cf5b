"""The official OpenAI client against the Responses of `callboard serve`.

Usage: openai_responses.py URL KEY. Ends with 0 and a line `ok: …` for each promise, or with the failed one.
"""

import json
import sys

import openai

url, key = sys.argv[1:3]
client = openai.OpenAI(base_url=f"{url}/openai/v1", api_key=key, max_retries=0, timeout=30)
weather = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
question = {"role": "user", "content": "Do I need an umbrella in Oslo?"}


def promise(name):
    print(f"ok: {name}", flush=True)


def outputs(response):
    calls = [item for item in response.output if item.type == "function_call"]
    return [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"It rains in {json.loads(call.arguments)['city']}."}
        for call in calls
    ]


plain = client.responses.create(model="default", input="Say something.", store=False)
assert plain.status == "completed" and plain.output_text == "I cannot know.", plain
assert plain.usage.total_tokens == plain.usage.input_tokens + plain.usage.output_tokens > 0, plain.usage
promise("a response comes whole, with usage")

first = client.responses.create(model="default", input=[question], tools=[weather], store=False)
assert [item.type for item in first.output] == ["function_call"], first
whole = [question] + [item.model_dump(exclude_none=True) for item in first.output] + outputs(first)
last = client.responses.create(model="default", input=whole, tools=[weather], store=False)
assert "It rains in Oslo." in last.output_text, last
promise("a function is called and its output is sent back with the whole history")

first = client.responses.create(model="default", input=[question], tools=[weather])
last = client.responses.create(model="default", input=outputs(first), tools=[weather], previous_response_id=first.id)
assert "It rains in Oslo." in last.output_text and last.id != first.id, (first, last)
then = client.responses.create(model="default", input="Thanks.", previous_response_id=last.id)
assert then.status == "completed" and then.output_text == "I cannot know.", then
branch = client.responses.create(model="default", input="Really?", previous_response_id=last.id)
assert branch.status == "completed" and branch.id.split("_")[1] != then.id.split("_")[1], (then.id, branch.id)
promise("a stored response is followed, also twice")

with client.responses.stream(model="default", input=[question], tools=[weather], store=False) as stream:
    numbers, kinds = [], []
    for event in stream:
        numbers.append(getattr(event, "sequence_number", None))
        kinds.append(event.type)
    final = stream.get_final_response()
assert kinds[0] == "response.created" and kinds[-1] == "response.completed", kinds
assert [json.loads(item.arguments) for item in final.output] == [{"city": "Oslo"}], final
promise("calls come in a stream")

with client.responses.stream(model="default", input="Say something.", store=False) as stream:
    text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert text == stream.get_final_response().output_text == "I cannot know.", text
promise("text comes in a stream")

again = client.responses.retrieve(last.id)
assert (again.status, again.output_text, again.usage) == ("completed", last.output_text, last.usage), (again, last)
items = list(client.responses.input_items.list(last.id, order="asc"))
assert [item.type for item in items] == ["function_call_output"] and items[0].output == "It rains in Oslo.", items
promise("a stored response is read again, with its input")

events = list(client.responses.create(model="default", input="Say something.", stream=True))
response, last_number = events[0].response, events[-1].sequence_number
for seen in events[:-1]:
    rest = list(client.responses.retrieve(response.id, stream=True, starting_after=seen.sequence_number))
    assert rest[-1].type == "response.completed" and rest[-1].sequence_number == last_number, rest[-1]
    known = [event for event in events if event.sequence_number <= seen.sequence_number]
    text = "".join(event.delta for event in known + rest if event.type == "response.output_text.delta")
    assert text == "I cannot know.", (seen.sequence_number, text)
promise("a stream continues after any of its events")

begun = client.responses.create(model="default", input="Say something.", background=True)
assert begun.status in ("queued", "in_progress"), begun
for event in client.responses.retrieve(begun.id, stream=True):
    pass
assert event.type == "response.completed" and event.response.output_text == "I cannot know.", event
assert client.responses.retrieve(begun.id).status == "completed"
assert client.responses.cancel(begun.id).status == "completed", "one that has ended is answered as it is"
promise("a response in the background is read when it is done")

client.responses.delete(then.id)
try:
    client.responses.create(model="default", input="And now?", previous_response_id=then.id)
    raise AssertionError("a deleted response was followed")
except openai.NotFoundError as error:
    assert error.param == "previous_response_id", error.param
promise("a deleted response is gone")

for wrong, param in [({"background": True, "store": False}, "background"), ({"conversation": "conv_1"}, "conversation"), ({"text": {"format": {"type": "grammar"}}}, "text.format.type")]:
    try:
        client.responses.create(model="default", input="Hi.", **wrong)
        raise AssertionError(f"{wrong} was taken")
    except openai.UnprocessableEntityError as error:
        assert error.param == param, (error.param, param)
promise("what is not supported is refused with its field")
