#!/bin/bash
# Callboard names the places by variables; the others are those of Harbor.
tests="${CALLBOARD_TESTS:-/tests}"
exec python3 -I -B "$tests/check.py" "${CALLBOARD_WORKSPACE:-/app}" "${CALLBOARD_LOGS:-/logs/verifier}"
