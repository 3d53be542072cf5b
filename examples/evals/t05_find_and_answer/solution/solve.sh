#!/bin/bash
set -e
grep -o 'UPLOAD = Limit(.*again=[0-9]*' src/net/limits.py | grep -o '[0-9]*$' >answer.txt
