# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# answers FILE COMMAND...: writes the lines of a program of lib/stale.h into FILE, and the standard
# error of its last run into FILE.stderr. A change that stops the program is "stops", and the
# program goes on behind it.
answers() {
	local file=$1 from=0 ended_by_alarm=142 status=142
	shift
	: >"$file"
	while [ $status = $ended_by_alarm ]; do
		# In a shell of its own, whose message "Alarm clock" is lost.
		(env "$@" "$from" >>"$file" 2>"$file.stderr"; exit $?) 2>/dev/null
		status=$?
		[ $status != $ended_by_alarm ] || echo "stops||" >>"$file"
		from=$(grep -c '|' "$file")
	done
	[ $status = 0 ] || echo "# $*: exit status $status: $(tail -n 1 "$file") $(tail -n 3 "$file.stderr")"
}
