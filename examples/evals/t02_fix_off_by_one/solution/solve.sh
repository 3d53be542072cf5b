#!/bin/bash
set -e
sed -i 's/range(len(items) \/\/ size)/range((len(items) + size - 1) \/\/ size)/' pages.py
