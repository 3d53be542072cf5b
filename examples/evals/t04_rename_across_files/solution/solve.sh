#!/bin/bash
set -e
sed -i 's/get_data/load_records/g' store.py report.py stats.py README.md
