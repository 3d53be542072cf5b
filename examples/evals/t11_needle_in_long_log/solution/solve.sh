#!/bin/bash
set -e
awk '{ split($3, p, "="); if (p[2] > 5) print $1, $2 }' pumps.log >answer.txt
