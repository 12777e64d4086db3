#!/usr/bin/env bash
# Sums up sales.csv by region: prints each line as it is known, and leaves report.txt.
set -euo pipefail

echo "reading $(wc -l < sales.csv) lines on $(hostname)"
awk -F, 'NR > 1 { units[$2] += $3; money[$2] += $3 * $4 }
         END { for (region in units) printf "%-8s %6d units  %10.2f\n", region, units[region], money[region] }' sales.csv |
  sort > report.txt

while IFS= read -r line; do
  echo "$line"
  sleep 0.2
done < report.txt

echo "report.txt has $(wc -l < report.txt) regions" >&2
