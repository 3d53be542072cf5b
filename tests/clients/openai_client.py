"""The official OpenAI client against the OpenAI-compatible door of `callboard serve`.

Usage: openai_client.py URL KEY. Ends with 0 and a line `ok: …` for each promise, or with the failed one.
"""

import sys

import openai

url, key = sys.argv[1:3]
client = openai.OpenAI(base_url=f"{url}/openai/v1", api_key=key, max_retries=0, timeout=30)


def promise(name):
    print(f"ok: {name}", flush=True)


model = client.models.list().data[0].id
promise(f"models are listed: {model}")

whole = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Say something."}])
said = whole.choices[0].message.content
assert said and whole.choices[0].finish_reason == "stop", whole
assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0, whole.usage
promise("a completion comes whole, with usage")

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something."}],
    stream=True,
    stream_options={"include_usage": True},
)
pieces, finish, usage, ids = [], None, None, set()
for chunk in stream:
    ids.add(chunk.id)
    usage = chunk.usage or usage
    for choice in chunk.choices:
        pieces.append(choice.delta.content or "")
        finish = choice.finish_reason or finish
assert len([piece for piece in pieces if piece]) > 1, pieces
assert "".join(pieces) == said and finish == "stop", (pieces, finish, said)
assert usage and usage.total_tokens > 0 and len(ids) == 1, (usage, ids)
promise(f"a completion streams in {len(pieces)} chunks, with usage at the end")

bound = {"X-Conversation-Id": "openai-client"}
first = [{"role": "user", "content": "First."}]
answer = client.chat.completions.create(model=model, messages=first, extra_headers=bound).choices[0].message.content
then = first + [{"role": "assistant", "content": answer}, {"role": "user", "content": "Second."}]
client.chat.completions.create(model=model, messages=then, extra_headers=bound)
promise("a bound conversation goes on")

try:
    other = [{"role": "user", "content": "Something else."}, {"role": "assistant", "content": "No."}, {"role": "user", "content": "Third."}]
    client.chat.completions.create(model=model, messages=other, extra_headers=bound)
    raise AssertionError("a differing prefix was taken")
except openai.ConflictError as error:
    promise(f"a differing prefix is refused: {error.code}")

try:
    openai.OpenAI(base_url=f"{url}/openai/v1", api_key="cb_wrong", max_retries=0).models.list()
    raise AssertionError("a wrong key was taken")
except openai.AuthenticationError as error:
    promise(f"a wrong key is refused: {error.code}")

with client.chat.completions.create(model=model, messages=first, stream=True) as left:
    next(iter(left))
promise("a client may leave in the middle")
