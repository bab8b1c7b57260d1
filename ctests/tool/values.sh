# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# What FILE.json says, of this folder (values.py). Source this. One interpreter answers all questions: in the machine
# of vm/ its start takes a second or two.
coproc PYTHON { exec python3 -B "${BASH_SOURCE[0]%.sh}.py"; }
exec {answers}<&"${PYTHON[0]}" {questions}>&"${PYTHON[1]}"
value() { # FILE EXPRESSION
	local answer
	printf '%s\t%s\n' "$1" "$2" >&"$questions"
	IFS= read -r answer <&"$answers"
	printf '%s\n' "$answer"
}
# Runs a command under $library, traced into FILE, from which $rdmamr makes FILE.json. The command's
# status is in $status, its output in FILE.said; $behind is preloaded too.
recorded() { # FILE COMMAND...
	rm -f "$1"
	RDMAMR_TRACE=$PWD/$1 LD_PRELOAD="$library ${behind:-}" timeout 500 "${@:2}" >"$1.said" 2>&1
	status=$?
	"$rdmamr" report --json "$1" >"$1.json" 2>"$1.error" || cat "$1.error"
}
reports() { is "$1" "$2" "$(value "$3" "$4")"; } # NAME WANTED FILE EXPRESSION
