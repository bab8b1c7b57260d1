#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# other_libfabric.sh LIBRARY: the provider under libfabrics of other versions than the installed
# one. Each is a stand-in that has a version and nothing else.
. "$(dirname "$0")/../lib/script.sh"
library=$1

offered() { # [LIBFABRIC]: what the provider offers to it
	python3 - "$library" "$@" <<-'END'
		import ctypes, sys
		class Provider(ctypes.Structure):  # struct fi_provider, as far as its name
		    _fields_ = [("version", ctypes.c_uint32), ("fi_version", ctypes.c_uint32), ("context", ctypes.c_void_p * 4), ("name", ctypes.c_char_p)]
		for file in reversed(sys.argv[1:]):
		    loaded = ctypes.CDLL(file)
		loaded.fi_prov_ini.restype = ctypes.POINTER(Provider)
		provider = loaded.fi_prov_ini()
		if provider:
		    provider[0].context[0] = 1  # As libfabric's core, which writes here.
		print(f"{provider[0].name.decode()} {provider[0].fi_version >> 16}.{provider[0].fi_version & 0xffff}" if provider else "none")
	END
}
while read -r major minor wanted; do
	echo "unsigned fi_version(void) { return $major << 16 | $minor; }" |
		"${CC:-cc}" -shared -fPIC -Wl,-soname,libfabric.so.1 -o "$work/libfabric.so.1" -x c -
	is "to libfabric $major.$minor: $wanted" "$wanted" "$(offered "$work/libfabric.so.1")"
done <<-'ROWS'
	1 0 none
	1 4 none
	1 5 rdmamr 1.5
	1 17 rdmamr 1.17
	2 1 rdmamr 2.1
	2 6 rdmamr 2.6
	2 9 rdmamr 2.6
	3 0 none
ROWS
is "without a libfabric: none" none "$(offered)"
tap_done
