#!/bin/bash
set -e
sed -i 's/total(VALUES.split(","))/total([int(value) for value in VALUES.split(",")])/' main.py
