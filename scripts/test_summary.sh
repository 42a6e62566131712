#!/usr/bin/env bash
# Counts what the test programs left in BUILD/test_results (ctest has them write there): why tests were skipped, what failed, and last
# a line "N passed, N failed, N skipped". usage: test_summary.sh BUILD
# Fails when a test failed, when a program stopped before its end, and when BHYT_DATA is set and a test says that data was missing.
set -euo pipefail
shopt -s nullglob
results=${1:?usage: test_summary.sh BUILD}/test_results
reports=("$results"/*.xml) running=("$results"/*.running)
if (( ${#reports[@]} + ${#running[@]} == 0 )); then
  echo "no test results in $results: ctest --test-dir ${1} makes them" >&2
  exit 1
fi
stopped=()
for file in "${running[@]}"; do stopped+=("$(basename "$file" .running)"); done

awk -v stopped="${stopped[*]}" -v has_data="${BHYT_DATA:+yes}" '
  function attribute(name,   value) {
    if (!match($0, " " name "=\"[^\"]*\"")) return ""
    value = substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
    gsub(/&lt;/, "<", value); gsub(/&gt;/, ">", value); gsub(/&quot;/, "\"", value); gsub(/&apos;/, "\047", value); gsub(/&amp;/, "\\&", value)
    return value
  }
  function finish() {
    if (test == "") return
    if (broken) { ++failed; print "failed: " test }
    else if (result == "skipped") {
      ++skipped; ++reasons[reason]
      if (has_data && reason ~ /BHYT_DATA/) { ++without_data; print "skipped for want of data, though BHYT_DATA is set: " test }
    }
    else if (result == "completed") ++passed
    test = ""
  }
  /<testcase / { finish(); test = attribute("classname") "." attribute("name"); result = attribute("result"); broken = 0; reason = "no reason given" }
  /<failure / { broken = 1 }
  # The message is the file and line, then what the test said.
  /<skipped / { reason = attribute("message"); sub(/^[^ ]*:[0-9]+&#x0A;/, "", reason); gsub(/&#x0A;$/, "", reason); gsub(/&#x0A;/, " ", reason) }
  /<\/testsuites>/ { finish() }
  END {
    n = split(stopped, names, " ")
    for (i = 1; i <= n; ++i) { ++failed; print "failed: " names[i] " stopped before its end" }
    for (reason in reasons) print reasons[reason] " skipped: " reason | "sort -rn"
    close("sort -rn")
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed + without_data > 0
  }' "${reports[@]}" </dev/null
