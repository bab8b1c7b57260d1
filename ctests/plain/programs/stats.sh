# SPDX-License-Identifier: MIT OR Apache-2.0
# shellcheck shell=bash
# The library's statistics in the file that RDMAMR_STATS names. Source this.

# By field: the sum over all processes, and their number. A process that was killed has written no
# line.
declare -A stats
stat_fields=(hits reg_kernel reg_next reg_failed dereg_kernel dereg_next dereg_failed live ended_elsewhere)

sum_stats() { # FILE
	local field line
	for field in processes "${stat_fields[@]}"; do stats[$field]=0; done
	[ -e "$1" ] || return 0
	while read -r line; do
		((++stats[processes]))
		for field in "${stat_fields[@]}"; do
			[[ ! $line =~ \"$field\":([0-9]+) ]] || ((stats[$field] += BASH_REMATCH[1])) || true
		done
	done <"$1"
}

show_stats() { # one line
	local field line="processes ${stats[processes]}"
	for field in "${stat_fields[@]}"; do line+=", $field ${stats[$field]}"; done
	echo "$line"
}
