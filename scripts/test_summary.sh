#!/usr/bin/env bash
# Counts what the test programs left in BUILD/test_results (ctest has them write there): why tests were skipped, what failed with what it
# said, and last a line "N passed, N failed, N skipped". usage: test_summary.sh BUILD
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

# What a program that stopped before its end said in its last test, as ctest keeps it.
for name in "${stopped[@]}"; do
  awk -v name="$name" '
    /^[0-9]+\/[0-9]+ Testing: / { on = $3 == name; next }
    /^<end of output>/ { on = 0 }
    on && /^\[ RUN / { n = 0 }
    on { line[n++] = $0 }
    END {
      print name " ended in the midst of this:"
      for (i = 0; i < n && i < 60; ++i) print "  " line[i]
    }' "${results%/*}"/Testing/Temporary/LastTest.log* </dev/null
done

awk -v stopped="${stopped[*]}" -v has_data="${BHYT_DATA:+yes}" '
  function attribute(name,   value) {
    if (!match($0, " " name "=\"[^\"]*\"")) return ""
    value = substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 4)
    gsub(/&#x0A;/, "\n", value); gsub(/&lt;/, "<", value); gsub(/&gt;/, ">", value); gsub(/&quot;/, "\"", value); gsub(/&apos;/, "\047", value); gsub(/&amp;/, "\\&", value)
    return value
  }
  function finish() {
    if (test == "") return
    if (said != "") { ++failed; print "failed: " test said }
    else if (result == "skipped") {
      ++skipped; ++reasons[reason]
      if (has_data && reason ~ /BHYT_DATA/) { ++without_data; print "skipped for want of data, though BHYT_DATA is set: " test }
    }
    else if (result == "completed") ++passed
    test = ""
  }
  /<testcase / { finish(); test = attribute("classname") "." attribute("name"); result = attribute("result"); said = ""; reason = "no reason given" }
  # The message is the file and line, then what the test said.
  /<failure / { message = substr(attribute("message"), 1, 3000); gsub(/\n/, "\n    ", message); said = said "\n  " message }
  /<skipped / { reason = attribute("message"); sub(/^[^ ]*:[0-9]+\n/, "", reason); gsub(/\n$/, "", reason); gsub(/\n/, " ", reason) }
  /<\/testsuites>/ { finish() }
  END {
    n = split(stopped, names, " ")
    for (i = 1; i <= n; ++i) { ++failed; print "failed: " names[i] " stopped before its end" }
    for (reason in reasons) print reasons[reason] " skipped: " reason | "sort -rn"
    close("sort -rn")
    printf "%d passed, %d failed, %d skipped\n", passed, failed, skipped
    exit failed + without_data > 0
  }' "${reports[@]}" </dev/null
