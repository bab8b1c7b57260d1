#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# settings.sh LIBRARY: the settings in the environment, in programs that use no device.
. "$(dirname "$0")/../lib/script.sh"
library=$1
cd "$work" || exit 1

says() { env "$@" LD_PRELOAD="$library" true 2>&1; }

# A program that calls the library: a registration and a deregistration fail.
"${CC:-cc}" -I"$here/../../include" "$here/../packages/consumer.c" "$here/../lib/tap.c" -o failing "$library" -libverbs
errors() { env LD_PRELOAD="$library" "$@" 2>&1 >/dev/null; }
fields=$(sed -n '/^struct rdmamr_stats {/,/^};/s/^ *uint64_t \([a-z_]*\);/\1/p' "$here/../../include/rdmamr.h")
# The expected line: all fields of the header, 0 but for the two.
line={$(while read -r field; do echo "\"$field\":$([[ $field = @(reg|dereg)_failed ]] && echo 1 || echo 0)"; done <<<"$fields" | paste -sd,)}
check "without settings, not a word" [ -z "$(says)" ]
check "RDMAMR_STATS=stderr: one line of JSON, with the fields of struct rdmamr_stats: $(xargs <<<"$fields")" \
	[ "$(errors RDMAMR_STATS=stderr ./failing)" = "$line" ]

errors RDMAMR_STATS=file ./failing
check "RDMAMR_STATS=FILE, relative" [ "$(cat "$work/file")" = "$line" ]
errors RDMAMR_STATS=file ./failing chdir
check "also after the process has changed its directory" [ "$(grep -cxF "$line" "$work/file")" = 2 ]
env RDMAMR_STATS="$work/file" LD_PRELOAD="$library" perl -e 'system("./failing"); if (!fork) { exit 0 } wait; exec "./failing"' >/dev/null
check "each program that calls the library adds a line, and the others none" bash -c '[ "$(grep -cxF "$1" file) $(wc -l <file)" = "4 4" ]' - "$line"
for output in stderr table silent; do
	check "a program that registers nothing says nothing: RDMAMR_STATS=$output" bash -c '[ -z "$1" ] && [ ! -e silent ]' - "$(says RDMAMR_STATS=$output)"
done
check "but one line for debugging" \
	grep -qx 'rdmamr: process [0-9]* has no statistics: it registered nothing' <<<"$(says RDMAMR_STATS=stderr RDMAMR_LOG=debug)"
check "a line reports a file that cannot be written" grep -q 'RDMAMR_STATS: cannot be written' <<<"$(errors RDMAMR_STATS=/nowhere/file ./failing)"
check "a process that is killed writes nothing" [ -z "$(RDMAMR_STATS=stderr LD_PRELOAD="$library" ./failing kill 2>&1 | grep reg_kernel)" ]

# Standard error has no reader any more: that is a pipe whose reader has closed it.
unread() { # SETTING...: the exit status
	env "$@" LD_PRELOAD="$library" perl -e 'pipe(my $from, my $to); close $from; open(STDERR, ">&", $to); $SIG{PIPE} = "DEFAULT"; exec "./failing"' >/dev/null 2>&1
	echo $?
}
check "a program lives on if its standard error has no reader: statistics" [ "$(unread RDMAMR_STATS=stderr)" = 0 ]
check "a warning before main, and the reasons of failures" [ "$(unread RDMAMR_STAT=1 RDMAMR_LOG=debug)" = 0 ]
errors RDMAMR_STATS=stderr RDMAMR_LOG=debug ./failing reuse >/dev/null
check "a file of the program's own that has got the number of standard error stays its own" [ -e own -a ! -s own ]
for how in redirect append; do
	rm own
	RDMAMR_STATS=stderr LD_PRELOAD="$library" ./failing $how >/dev/null 2>&1
	check "a file to which the program has sent its messages gets the statistics: $how" grep -qxF "$line" own
done
closed=$(RDMAMR_STATS=stderr RDMAMR_LOG=debug LD_PRELOAD="$library" bash -c 'exec 2>&-; exec ./failing' >/dev/null 2>&1; echo $?)
check "standard error that is closed from the start is no error" [ "$closed" = 0 ]

for name in RDMAMR_STATS RDMAMR_TRACE; do
	closed=$(timeout 60 env $name=/dev/stdout LD_PRELOAD="$library" bash -c 'exec ./failing >&-' 2>&1; echo $?)
	check "$name=/dev/stdout, which is closed, is reported" grep -qzP "$name: cannot be written.*\n0\n" <<<"$closed"
done
full=$(ulimit -f 0; RDMAMR_STATS=stderr LD_PRELOAD="$library" ./failing 2>>full >/dev/null; echo $?)
check "standard error that is a file as long as RLIMIT_FSIZE allows is no error" [ "$full" = 0 ]

# src/config has the other mistakes.
warning() { # NAME SETTING WORDS: one line, with these words
	local output
	output=$(says "$2")
	check "$1: $output" bash -c '[ "$(wc -l <<<"$1")" = 1 ] && grep -qF "$2" <<<"$1"' - "$output" "$3"
}
warning "an unknown name" RDMAMR_STAT=stderr "did you mean RDMAMR_STATS?"
warning "no number" RDMAMR_PREFAULT=two "any number up to 64."
# All names that something of the project sets or reads are in the table, so that none is a mistake.
# The headers' names are C's; src/config has the table, and its tests have mistakes. RDMAMR_X is any.
names() { (cd "$here/../.." && grep -rhoE '\b_?RDMAMR_[A-Z_]+[A-Z]\b' --exclude-dir=config --exclude-dir=target "$@") | sort -u; }
table=$(grep -oP 'name: c"\K_?RDMAMR_[A-Z_]+' "$here/../../src/config/lib.rs")
strange() { names src tool/src packaging docs examples man pkgconfig debian README.md SECURITY.md | grep -vxF "$table" | grep -vxF "$(names include)"; }
check "the names of the sources, recipes, documents and examples are in the table: $(strange | paste -sd,)" [ -z "$(strange)" ]
check "of which there are $(wc -l <<<"$table")" [ "$(names docs | grep -cxF "$table")" = "$(wc -l <<<"$table")" ]
for name in $table; do
	case $name in
	RDMAMR_LIBRARY | RDMAMR_LIBDIR | _RDMAMR_PROGRAM) check "$name, which others read, is known" [ -z "$(says $name=/x)" ] ;;
	esac
done

reasons=$(RDMAMR_LOG=warn LD_PRELOAD=$library ./failing 2>&1 >/dev/null)
check "RDMAMR_LOG=warn prints why a call failed: $(head -1 <<<"$reasons" | tr -d '#')" \
	grep -q '^rdmamr: ibv_reg_mr of 64 bytes at .*: EINVAL: the protection domain is NULL$' <<<"$reasons"
check "and RDMAMR_LOG=error does not" [ -z "$(RDMAMR_LOG=error LD_PRELOAD=$library ./failing 2>&1 >/dev/null)" ]

# Programs with more rights than their callers: ctests/tool/hostile.sh.
tap_done
