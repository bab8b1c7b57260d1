# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# Test results of shell scripts, in the Test Anything Protocol. Source this; end with "tap_done".
tap_count=0

pass() { echo "ok $((++tap_count)) - $1"; }
fail() { # NAME [DETAIL...]: details go to the report as comments
	echo "not ok $((++tap_count)) - $1"
	shift
	[ $# -eq 0 ] || printf '%s\n' "$@" | sed 's/^/# /'
}
skip() { echo "ok $((++tap_count)) - $1 # SKIP $2"; }
# "make check" has installed all tools of its suites when the first one starts (CHECK_INSTALLED).
lacks() { # NAME TOOL: fails there, else skips
	if [ -n "${CHECK_INSTALLED:-}" ]; then
		fail "$1" "$2 is not installed, and make check should have installed it (vm/packages)"
	else
		skip "$1" "$2 is not installed"
	fi
}
needs() { # TOOL...: ends the suite if it lacks one
	local tool
	for tool; do command -v "$tool" >/dev/null || { lacks "the suite" "$tool"; tap_done; exit; }; done
}
check() { # NAME COMMAND...: passes if the command succeeds; otherwise shows its output
	local name=$1 output
	shift
	if output=$("$@" 2>&1); then pass "$name"; else fail "$name" "$output"; fi
}
is() { # NAME WANTED FOUND
	if [ "$2" = "$3" ]; then pass "$1"; else fail "$1" "wanted: $2" "found: $3"; fi
}
fails() { ! "$@"; } # COMMAND...
ends_with() { # STATUS WORDS COMMAND...: the command ends with that status, and has printed these words
	local wanted=$1 words=$2 status=0 output
	shift 2
	output=$("$@" 2>&1) || status=$?
	echo "status $status: $output"
	[ $status = "$wanted" ] && grep -q -- "$words" <<<"$output"
}
awaits() { # COMMAND...: it succeeds, sooner or later
	local tries
	for ((tries = 1200; tries > 0; tries--)); do ! "$@" 2>/dev/null || return 0; sleep 0.1; done
	return 1
}
whole() { # NAME COMMAND...: the results of a program that reports its own, as one
	local name=$1 output
	shift
	if output=$("$@" 2>&1) && ! grep -q '^not ok\|Sanitizer' <<<"$output" && grep -q '^1\.\.[1-9]' <<<"$output"; then
		pass "$name: $(grep -c '^ok' <<<"$output") checks"
	else
		fail "$name" "$(grep -A12 '^not ok\|Sanitizer\|^Bail' <<<"$output" | head -40)" "$(tail -n 5 <<<"$output")"
	fi
}
take_over() { # NAME STATUS OUTPUT: forwards each result of a program that reports its own, and checks that it ran to its end
	local name=$1 status=$2 output=$3 line
	while read -r line; do
		case $line in
		"ok "*"# SKIP "*) line=${line#*- } && skip "$name: ${line%% # SKIP *}" "${line#* # SKIP }" ;;
		"ok "*) pass "$name: ${line#*- }" ;;
		"not ok "*) fail "$name: ${line#*- }" ;;
		"1.."*) ;;
		*) echo "# ${line#\# }" ;;
		esac
	done <<<"$output"
	if [ "$status" = 0 ] && grep -q '^1\.\.[1-9]' <<<"$output"; then
		pass "$name: ran to its end"
	else
		fail "$name: ran to its end" "exit status $status" "$(tail -n 5 <<<"$output")"
	fi
}
results() { # NAME COMMAND...: runs a program that reports its own results, and takes them over
	local output status=0
	output=$("${@:2}" 2>&1) || status=$?
	take_over "$1" $status "$output"
}
tap_done() { echo "1..$tap_count"; }
