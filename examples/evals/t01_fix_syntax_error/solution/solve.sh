#!/bin/bash
set -e
sed -i 's/^def mean(numbers)$/def mean(numbers):/' calc.py
