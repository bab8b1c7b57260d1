#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# provider.sh LIBRARY [BUILT]: the library as a provider of libfabric. libfabric finds it by its
# name; it offers the machine's devices, and leaves programs alone that do not request it. The program
# is that of BUILT (target/ctests). Needs an RDMA device in CHECK_DEVICE.
. "$(dirname "$0")/../../lib/script.sh"
expects 1 "$@"
library=$(realpath "$1") built=${2:-$here/../../../target/ctests}
needs fi_info
devices=$(ibv_devices 2>/dev/null | awk 'NR > 2 { print $1 }' | sort)
[ -n "$devices" ] || skip_all "there is no RDMA device"
mkdir "$work/none" "$work/link" "$work/copy"
ln -s "$library" "$work/link/librdmamr-fi.so"
cp "$library" "$work/copy/librdmamr-fi.so"

registers=$(realpath "$built/registers")
needed() { readelf -dW "$1" | sed -n 's/.*NEEDED.*\[lib\([a-z]*\)\..*/\1/p' | grep -v '^c$' | sort | xargs; }
check "the program needs $(needed "$registers")" [ "$(needed "$registers")" = fabric ]

with() { env FI_PROVIDER_PATH="$work/link" "$@" 2>"$work/stderr"; }
without() { env FI_PROVIDER_PATH="$work/none" "$@" 2>"$work/stderr"; }
same() { diff <(echo "$1") <(echo "$2"); } # LIST LIST
# The values of one field in a listing, without the indentation.
field() { sed -n "s/^ *$1: *//p"; }

ours=$(with fi_info -p rdmamr)
check "fi_info -p rdmamr succeeds" with fi_info -p rdmamr
check "and writes nothing to standard error" [ ! -s "$work/stderr" ]
check "it lists each device once: $(xargs <<<"$devices")" same "$(field domain <<<"$ours" | sort)" "$devices"
check "each is of the provider alone" [ "$(field provider <<<"$ours" | sort -u)" = rdmamr ]
check "no utility provider is stacked on it" bash -c '[ -n "$1" ] && ! grep -q ";" <<<"$1"' - "$ours"
check "the fabric is rdmamr" [ "$(field fabric <<<"$ours" | sort -u)" = rdmamr ]
check "the endpoints are FI_EP_RDM" [ "$(field type <<<"$ours" | sort -u)" = FI_EP_RDM ]
verbose=$(with fi_info -v -p rdmamr)
check "regions of 16 pieces" [ "$(field mr_iov_limit <<<"$verbose" | sort -u)" = 16 ]
check "fi_info -d DEVICE: one of them" [ "$(with fi_info -p rdmamr -d "${devices%%$'\n'*}" | field domain)" = "${devices%%$'\n'*}" ]
check "a device that does not exist: nothing" [ -z "$(with fi_info -p rdmamr -d nosuch0 | grep provider)" ]
for type in FI_EP_MSG FI_EP_DGRAM; do
	check "an endpoint of type $type: nothing" [ -z "$(with fi_info -p rdmamr -t $type)" ]
done

list=$(with fi_info -l)
check "fi_info -l has it: $(grep -A1 '^rdmamr:' <<<"$list" | xargs)" grep -q '^rdmamr:' <<<"$list"
others() { awk '/^[^ ]/ { shown = $1 != "rdmamr:" } shown'; }
check "and the others are unchanged" same "$(others <<<"$list")" "$(without fi_info -l)"

# Entries of other providers, each a line; the library's left out.
entries() { awk '/^provider: / { if (entry) print entry; entry = "" } { entry = entry $0 " " } END { print entry }' | sed 's/  */ /g'; }
default=$(with fi_info | entries)
plain=$(without fi_info | entries)
check "fi_info lists the same as without the library ($(grep -c . <<<"$plain") entries)" same "$(grep -v 'provider: rdmamr ' <<<"$default")" "$plain"
check "also beside libfabric's own folder of providers" same "$(grep -v 'provider: rdmamr ' <<<"$default")" "$(env -u FI_PROVIDER_PATH fi_info 2>/dev/null | entries)"
for caps in 'FI_MSG|FI_TAGGED' FI_MSG FI_TAGGED 'FI_MSG|FI_RMA' FI_ATOMIC; do
	wanted=$(with fi_info -c "$caps")
	check "a request for $caps without a name gets others ($(grep -c provider: <<<"$wanted")), not the library" \
		bash -c '[ -n "$1" ] && ! grep -q rdmamr <<<"$1"' - "$wanted"
	check "and the same as without the library" same "$wanted" "$(without fi_info -c "$caps")"
done
first=$(with fi_info | field provider | head -1)
check "a request without hints gets another first: $first" [ -n "$first" -a "$first" != rdmamr ]

provided=(timeout 600 env FI_PROVIDER_PATH="$work/link")
results "by libfabric" "${provided[@]}" "$registers"
results "by libfabric, and preloaded" "${provided[@]}" LD_PRELOAD="$library" "$registers"
results "by libfabric, preloaded and a copy" timeout 600 env FI_PROVIDER_PATH="$work/copy" LD_PRELOAD="$library" "$registers"
results "for libfabric 1.5" "${provided[@]}" "$registers" 1.5
results "for libfabric 1.9" "${provided[@]}" "$registers" 1.9
# A version for which libfabric itself is too old.
results "for libfabric 1.999" "${provided[@]}" "$registers" 1.999
tap_done
