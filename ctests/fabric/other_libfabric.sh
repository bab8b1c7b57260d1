#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
# other_libfabric.sh LIBRARY: the provider under libfabrics of other versions than the installed
# one. Each is a stand-in that has a version and nothing else.
. "$(dirname "$0")/../lib/script.sh"
library=$1

cat >"$work/asks.c" <<'C'
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <rdma/providers/fi_prov.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *libfabric = argc > 2 ? dlopen(argv[2], RTLD_NOW | RTLD_LOCAL) : argv;
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
	struct fi_provider *(*ini)(void) = library ? (struct fi_provider *(*)(void))dlsym(library, "fi_prov_ini") : NULL;
	struct fi_provider *provider;

	if (!libfabric || !ini)
		return puts(dlerror()), 1;
	provider = ini();
	if (!provider)
		return puts("none"), 0;
	provider->context.internal[0] = provider; /* as libfabric's core, which writes here */
	printf("%s %u.%u\n", provider->name, FI_MAJOR(provider->fi_version), FI_MINOR(provider->fi_version));
	return 0;
}
C
check "a program that loads the provider compiles" "${CC:-cc}" -Wall -Wextra -Werror "$work/asks.c" -o "$work/asks" -ldl

offers() { # MAJOR MINOR EXPECTED
	echo "unsigned fi_version(void) { return $1 << 16 | $2; }" |
		"${CC:-cc}" -shared -fPIC -Wl,-soname,libfabric.so.1 -o "$work/libfabric.so.1" -x c -
	local got
	got=$("$work/asks" "$library" "$work/libfabric.so.1")
	check "to libfabric $1.$2: $3" [ "$got" = "$3" ]
}
offers 1 0 none
offers 1 4 none
offers 1 5 "rdmamr 1.5"
offers 1 17 "rdmamr 1.17"
offers 2 1 "rdmamr 2.1"
offers 2 6 "rdmamr 2.6"
offers 2 9 "rdmamr 2.6"
offers 3 0 none
check "without a libfabric: none" [ "$("$work/asks" "$library")" = none ]
tap_done
