#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# wheel.sh WHEEL [DEVICE ADDRESS GID_INDEX]: the Python wheel of "make wheel" in a fresh virtual
# environment, and Mooncake's transfer engine with it, on DEVICE. For "ctests/run wheel". Prints
# TAP.
. "$(dirname "$0")/../../lib/script.sh"
. "$here/stats.sh"
wheel=$1 device=${2-} address=${3-} gid=${4-}
# Debian's own Python, for which Mooncake's wheel is made.
python=/usr/bin/python3 venv=$work/venv
pip() { "$python" -m pip --python "$venv/bin/python" -q --disable-pip-version-check "$@"; }

check "a fresh environment" "$python" -m venv --without-pip "$venv"
files() { find "$venv" ! -type d | sort; }
files >"$work/fresh"
check "pip install ${wheel##*/}" pip install --no-index "$wheel"
check "it has no libibverbs" [ -z "$(find "$venv" -name '*ibverbs*')" ]
PATH=$venv/bin:$PATH
version=$(rdmamr --version 2>&1)
check "rdmamr --version names the library of the environment: $(sed -n 2p <<<"$version")" grep -qF " ($venv/lib/librdmamr.so.1)" <<<"$version"
maps=$(rdmamr run -- cat /proc/self/maps)
check "rdmamr run preloads that library" grep -qF " $venv/lib/librdmamr.so.1" <<<"$maps"
check "and the module for LD_AUDIT" grep -qF " $venv/lib/rdmamr/librdmamr-audit.so" <<<"$maps"

if [ -n "$device" ]; then
	. "$here/mooncake.sh"
	export RDMAMR_STATS=$work/stats RDMAMR_CACHE_LINGER=1000000
	moves=(timeout 600 rdmamr run --cache=all -- "$python" "$here/moves.py" engine "$device" "$address" "$work/moves")
	"${moves[@]}" target >"$work/target" 2>&1 &
	target=$!
	says=$("${moves[@]}" initiator 2>&1)
	status=$?
	[ $status = 0 ] || kill $target
	wait $target
	check "Mooncake's target under it" [ $? = 0 ]
	check "and its initiator: $(tail -n 1 <<<"$says")" [ $status = 0 ]
	{ cat "$work/target"; echo "$says"; } | sed 's/^/# /'
	sum_stats "$work/stats"
	# shellcheck disable=SC2154 # sum_stats sets them
	check "all registrations are the library's, and some are reused: $(show_stats)" \
		[ "$((stats[processes] >= 2 && stats[reg_kernel] > 0 && stats[hits] > 0)) ${stats[reg_next]} ${stats[dereg_next]}" = "1 0 0" ]
fi

check "pip uninstall" pip uninstall -y rdmamr
files >"$work/left"
check "nothing is left of it" diff "$work/fresh" "$work/left"
tap_done
